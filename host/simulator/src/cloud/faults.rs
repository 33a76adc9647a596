//! Faults of the whole cloud: late boots, an API that answers with errors or late.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is wrong with the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// How long a machine takes to boot beyond what it takes anyway.
    pub boot_delay: Duration,
    /// What is wrong with the API.
    pub api: Option<ApiFault>,
}

/// What is wrong with the API of the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiFault {
    /// Answered instead of the true answer.
    pub status: Option<u16>,
    /// How late the answer is.
    pub delay: Duration,
    /// How many requests are still to be hit; none: all, until cleared.
    pub count: Option<u64>,
    /// The request takes effect although the answer is an error.
    pub carried_out: bool,
    /// Only requests of these methods; empty: all.
    pub methods: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Body {
    #[serde(default)]
    boot_delay: Option<String>,
    #[serde(default)]
    api: Option<ApiBody>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ApiBody {
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    count: Option<u64>,
    #[serde(default)]
    delay: Option<String>,
    #[serde(default)]
    carried_out: bool,
    #[serde(default)]
    methods: Vec<String>,
}

impl Faults {
    /// Reads the body of `PUT /v1/faults`; an error names the field and says why.
    pub(super) fn read(body: &[u8]) -> Result<Faults, (&'static str, String)> {
        let body: Body = serde_json::from_slice(body).map_err(|error| ("faults", error.to_string()))?;
        let length = |field: &'static str, text: Option<String>| match text {
            None => Ok(Duration::ZERO),
            Some(text) => duration(&text).ok_or((field, format!("{text:?} is no duration such as 250ms, 3s or 1m"))),
        };
        let api = match body.api {
            None => None,
            Some(api) => {
                if api.status.is_some_and(|status| !(400..=599).contains(&status)) {
                    return Err(("api.status", "must be a status from 400 to 599".into()));
                }
                Some(ApiFault {
                    status: api.status,
                    delay: length("api.delay", api.delay)?,
                    count: api.count,
                    carried_out: api.carried_out,
                    methods: api.methods.iter().map(|method| method.to_ascii_uppercase()).collect(),
                })
            }
        };
        Ok(Faults { boot_delay: length("bootDelay", body.boot_delay)?, api })
    }

    /// As the API shows them.
    pub(super) fn show(&self) -> Value {
        json!({
            "bootDelay": format!("{}ms", self.boot_delay.as_millis()),
            "api": self.api.as_ref().map(|api| json!({
                "status": api.status, "count": api.count, "delay": format!("{}ms", api.delay.as_millis()),
                "carriedOut": api.carried_out, "methods": api.methods,
            })),
        })
    }

    /// What hits the next request, which counts.
    pub(super) fn strike(&mut self, method: &str) -> Option<ApiFault> {
        let fault = self.api.as_mut()?;
        if !fault.methods.is_empty() && !fault.methods.iter().any(|m| m == method) {
            return None;
        }
        if let Some(count) = &mut fault.count {
            if *count == 0 {
                self.api = None;
                return None;
            }
            *count -= 1;
        }
        let struck = fault.clone();
        if fault.count == Some(0) {
            self.api = None;
        }
        Some(struck)
    }
}

/// `250ms`, `3s`, `1.5m`, `1h`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at_checked(split)?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_as_often_as_they_say() {
        let mut faults =
            Faults::read(br#"{"bootDelay":"3s","api":{"status":503,"count":2,"methods":["post"]}}"#).unwrap();
        assert_eq!(faults.boot_delay, Duration::from_secs(3));
        assert!(faults.strike("GET").is_none());
        assert_eq!(faults.strike("POST").unwrap().status, Some(503));
        assert!(faults.strike("POST").is_some());
        assert!(faults.strike("POST").is_none() && faults.api.is_none());
        let mut forever = Faults::read(br#"{"api":{"delay":"250ms"}}"#).unwrap();
        for _ in 0..9 {
            assert_eq!(forever.strike("GET").unwrap().delay, Duration::from_millis(250));
        }
        for (body, field) in [
            (&b"{\"bootDelay\":\"soon\"}"[..], "bootDelay"),
            (b"{\"api\":{\"status\":200}}", "api.status"),
            (b"{\"other\":1}", "faults"),
            (b"x", "faults"),
        ] {
            assert_eq!(Faults::read(body).unwrap_err().0, field);
        }
    }
}
