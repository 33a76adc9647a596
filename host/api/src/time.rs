//! Kubernetes time: RFC 3339 in UTC with whole seconds, and milliseconds since the Unix epoch.

use jiff::Timestamp;

/// Milliseconds since the Unix epoch as `metav1.Time` writes it, such as `2026-11-30T00:00:00Z`. A time that
/// no calendar knows becomes the epoch.
pub fn rfc3339(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// What an RFC 3339 time is in milliseconds since the Unix epoch; `None` when it is none, or before the epoch.
pub fn millis(rfc3339: &str) -> Option<u64> {
    rfc3339.parse::<Timestamp>().ok().and_then(|t| u64::try_from(t.as_millisecond()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_and_read_back() {
        assert_eq!(rfc3339(1_764_460_800_999), "2025-11-30T00:00:00Z");
        assert_eq!(millis("2025-11-30T00:00:00Z"), Some(1_764_460_800_000));
        assert_eq!(millis("2025-11-30T01:00:00.250+01:00"), Some(1_764_460_800_250));
        assert_eq!(millis("yesterday"), None);
    }
}
