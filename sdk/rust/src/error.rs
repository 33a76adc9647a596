//! Why a call did not succeed, in the words of the contract. The host chooses the back-off.

/// The result of most functions here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A CamelCase code for conditions and a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `ImageNotFound`
    pub code: String,
    /// What, on what, why and what to do.
    pub message: String,
}

impl Reason {
    /// A reason from its two halves.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// A field that can never work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// JSON pointer into the object, such as `/spec/cpus`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl Violation {
    /// A violation of the field at this JSON pointer.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// May succeed later as it is.
    Transient(Reason),
    /// The remote asked for a pause, and perhaps said how long (ms).
    Throttled(Option<u64>),
    /// The endpoint's credential was refused.
    Unauthorized(Reason),
    /// The desired state can never work; not tried again until the object changes.
    Invalid(Vec<Violation>),
    /// Somebody else holds what is wanted, or a precondition failed.
    Conflict(Reason),
    /// A defect in the provider.
    Internal(Reason),
}

impl Error {
    /// May succeed later as it is.
    pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Transient(Reason::new(code, message))
    }

    /// One field that can never work, by JSON pointer.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Violation::new(path, message)])
    }

    /// Somebody else holds what is wanted.
    pub fn conflict(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Conflict(Reason::new(code, message))
    }

    /// A defect in the provider, or an answer that the API should never give.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal(Reason::new("ProviderDefect", message))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Transient(r) | Self::Unauthorized(r) | Self::Conflict(r) | Self::Internal(r) => {
                write!(f, "{}: {}", r.code, r.message)
            }
            Self::Throttled(None) => f.write_str("the remote asked for a pause"),
            Self::Throttled(Some(ms)) => write!(f, "the remote asked for a pause of {ms} ms"),
            Self::Invalid(violations) => {
                for (index, violation) in violations.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "; " };
                    write!(f, "{comma}{}: {}", violation.path, violation.message)?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {}
