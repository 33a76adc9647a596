//! The string and number formats that the API server checks; unknown formats are accepted, as there.

use super::celvalue::duration_nanoseconds;
use base64::Engine;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether a string is of a format.
pub(crate) fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => is_date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => duration_nanoseconds(text).is_some(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::try_parse(text).is_ok(),
        "hostname" => is_hostname(text),
        "mac" => is_mac(text),
        "uri" => is_uri(text),
        "email" => text.split_once('@').is_some_and(|(name, host)| !name.is_empty() && is_hostname(host)),
        _ => true,
    }
}

/// Whether a whole number fits its format.
pub(crate) fn number_in_range(format: &str, number: &serde_json::Number) -> bool {
    let fits = |min: f64, max: f64| number.as_f64().is_some_and(|n| n >= min && n <= max);
    match format {
        "int32" => fits(f64::from(i32::MIN), f64::from(i32::MAX)),
        "uint32" => fits(0.0, f64::from(u32::MAX)),
        "int64" => number.as_i64().is_some() || (number.is_f64() && fits(-9.2e18, 9.2e18)),
        "uint64" => number.as_u64().is_some() || (number.is_f64() && fits(0.0, 1.8e19)),
        _ => true,
    }
}

/// RFC 3339, with its mandatory offset.
pub(crate) fn is_date_time(text: &str) -> bool {
    text.len() >= 20 && text.parse::<jiff::Timestamp>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u8>()) else { return false };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255
        && !text.is_empty()
        && text.trim_end_matches('.').split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
        })
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let groups: Vec<&str> = text.split(separator).collect();
    [6, 8, 20].contains(&groups.len())
        && groups.iter().all(|group| group.len() == 2 && group.chars().all(|c| c.is_ascii_hexdigit()))
}

/// An absolute URI or an absolute path, as Go's `url.ParseRequestURI` takes it.
fn is_uri(text: &str) -> bool {
    if text.chars().any(|c| c.is_control() || c == ' ') {
        return false;
    }
    text.starts_with('/')
        || text.split_once(':').is_some_and(|(scheme, rest)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                && !rest.is_empty()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn formats_accept_and_refuse() {
        let table = [
            ("date-time", "2026-11-29T23:54:58Z", "2026-11-29"),
            ("date-time", "2026-11-29T23:54:58.123456+01:00", "yesterday"),
            ("date", "2026-02-28", "2026-02-30"),
            ("duration", "1h30m", "1 hour"),
            ("byte", "aGVsbG8=", "a"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fd00::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "x"),
            ("hostname", "a.b-c.example", "-a"),
            ("mac", "00:11:22:33:44:55", "00:11:22"),
            ("uri", "https://example.com/x", "not a uri"),
            ("email", "a@example.com", "a"),
        ];
        for (format, good, bad) in table {
            assert!(matches(format, good), "{format} {good}");
            assert!(!matches(format, bad), "{format} {bad}");
        }
        assert!(matches("unknown-format", "anything"));
    }

    #[test]
    fn numbers_fit_their_format() {
        let number = |v: serde_json::Value| match v {
            serde_json::Value::Number(n) => n,
            _ => unreachable!(),
        };
        assert!(number_in_range("int32", &number(json!(2147483647))));
        assert!(!number_in_range("int32", &number(json!(2147483648u64))));
        assert!(number_in_range("int64", &number(json!(i64::MAX))));
        assert!(!number_in_range("int64", &number(json!(u64::MAX))));
        assert!(!number_in_range("uint32", &number(json!(-1))));
    }
}
