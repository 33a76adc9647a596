//! Times and durations as Kubernetes writes them, in milliseconds. A provider has no clock: [`Context::now`](crate::Context::now) is the
//! time of the turn.

/// Since the Unix epoch, of `2026-11-30T01:02:03.5Z` or with an offset (RFC 3339); `None` where it is no such time.
pub fn milliseconds(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let offset_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at_checked(offset_at)?;
    let mut parts = clock.splitn(3, ':');
    let (hour, minute) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let (second, fraction) = parts.next()?.split_once('.').unwrap_or((parts_second(clock)?, ""));
    let second = second.parse::<i64>().ok()?;
    let thousandths = format!("{fraction:0<3}").get(..3)?.parse::<i64>().ok()?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    // Days since 1970 in the Gregorian calendar; years begin in March, so that the leap day is the last.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let minutes = (days * 24 + hour) * 60 + minute - offset;
    u64::try_from((minutes * 60 + second) * 1000 + thousandths).ok()
}

/// `2026-11-30T00:19:51Z` of milliseconds since the Unix epoch, without the fraction.
pub fn rfc3339(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    // Years begin in March, so that the leap day is the last; 719,468 days lie between that year 0 and 1970.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Of a duration such as `5m`, `1h30m` or `1.5s`, as Go writes them; `None` where it is no such duration.
pub fn duration(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, unit) = rest.split_at_checked(digits)?;
        let letters = unit.find(|letter: char| letter.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at_checked(letters)?;
        let factor = match unit {
            "h" => 3_600_000.0,
            "m" => 60_000.0,
            "s" => 1000.0,
            "ms" => 1.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "no duration is negative or that long")]
    (!text.is_empty()).then_some(total as u64)
}

fn parts_second(clock: &str) -> Option<&str> {
    clock.rsplit(':').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("5m"), Some(300_000));
        assert_eq!(duration("1h30m"), Some(5_400_000));
        assert_eq!(duration("1.5s"), Some(1500));
        assert_eq!(duration("250ms"), Some(250));
        assert_eq!(duration("0"), Some(0));
        assert_eq!((duration(""), duration("5"), duration("m"), duration("5d")), (None, None, None, None));
    }

    #[test]
    fn times() {
        assert_eq!(milliseconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(milliseconds("2026-11-30T00:19:51Z"), Some(1_795_997_991_000));
        assert_eq!(milliseconds("2026-11-30T02:19:51.25+02:00"), Some(1_795_997_991_250));
        assert_eq!(milliseconds("2024-02-29T12:00:00Z"), Some(1_709_208_000_000));
        assert_eq!(milliseconds("2024-02-29"), None);
        assert_eq!(milliseconds("2024-13-01T00:00:00Z"), None);
        assert_eq!(milliseconds("now"), None);
        for text in ["1970-01-01T00:00:00Z", "2024-02-29T12:00:00Z", "2024-12-31T23:59:59Z", "2026-11-30T00:19:51Z"] {
            assert_eq!(rfc3339(milliseconds(text).unwrap()), text);
        }
    }
}
