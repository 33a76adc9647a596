//! What a person can do about what AWS refuses, beside AWS's own words.

use capstan_provider::{Error, Result, Violation, aws::Fault};

/// Beginnings of codes, and what to do. The first that fits counts.
const ADVICE: &[(&str, &str)] = &[
    (
        "InvalidAMIID",
        "images are of one region and of accounts that may use them: name one of this region, or leave ami out",
    ),
    ("InvalidInstanceType", "choose a type that the region has: aws ec2 describe-instance-type-offerings"),
    ("Unsupported", "choose another instanceType, or another zone by the machine's failure domain"),
    ("InvalidKeyPair", "import the key pair into the region, or set sshKeyName to \"\" for none"),
    (
        "InsufficientFreeAddressesInSubnet",
        "free addresses of the subnet, or name another one; until then it is tried again now and then",
    ),
    (
        "Insufficient",
        "AWS has none of it at present: it is tried again now and then; another instanceType or failure domain may be had at once",
    ),
    ("SpotMaxPriceTooLow", "raise spotMarketOptions.maxPrice, or leave it out"),
];

/// Of an exhausted quota.
const QUOTA: &str = "the account's quota is used up: raise it (Service Quotas) or delete what is not needed; it is tried again now and then";

fn of(code: &str) -> Option<&'static str> {
    let quota = code.ends_with("LimitExceeded") || code.ends_with("CountExceeded") || code.starts_with("TooMany");
    let advice = || ADVICE.iter().find(|(start, _)| code.starts_with(start)).map(|(_, advice)| *advice);
    if quota { Some(QUOTA) } else { advice() }
}

/// The error that the host should act on, with what to do; `fields` as [`Fault::error_at`] has them.
pub fn refusal(fault: &Fault, fields: &[(&str, &str)]) -> Error {
    if fault.is("InvalidParameterValue") && fault.message.contains("iamInstanceProfile") {
        let message = format!("{}; create the instance profile in this account, or name another", fault.message);
        return Error::Invalid(vec![Violation::new("/spec/iamInstanceProfile", message)]);
    }
    let Some(advice) = of(&fault.code) else { return fault.error_at(fields) };
    let told = |text: &mut String| text.push_str(&format!("; {advice}"));
    let mut error = fault.error_at(fields);
    match &mut error {
        Error::Invalid(violations) => violations.iter_mut().for_each(|violation| told(&mut violation.message)),
        Error::Transient(reason) | Error::Conflict(reason) => told(&mut reason.message),
        _ => {}
    }
    error
}

/// A region that does not exist has no host.
pub fn of_region<T>(result: Result<T>, region: Option<&str>) -> Result<T> {
    result.map_err(|mut error| {
        if let Error::Transient(reason) = &mut error
            && reason.code == "NotSent"
            && reason.message.contains("cannot be resolved")
        {
            let region = region.unwrap_or_default();
            reason.message.push_str(&format!(
                "; if there is no region {region:?}, delete the cluster and make it with the right /spec/region, which is immutable"
            ));
        }
        error
    })
}
