//! Egress: the only way by which a provider component reaches anything.
//!
//! A guest names an endpoint and says what to ask; this crate finds out what the name means for the guest's object
//! ([`Endpoints`]), checks the request ([`Request`]), decides by the endpoint's protocol whether it changes
//! something ([`Protocol`]), fills secrets in, sends it ([`Transport`]) and keeps the record ([`Ledger`]),
//! which can be written to a file that answers again ([`Recorded`], [`Replay`]).
//!
//! Promises:
//! - a request that may change something leaves only in a call that may change something, once in that call, and
//!   only when the caller has just said that it still may ([`Call`]), which is asked again before each connection's
//!   attempt and when the connection takes the request's body;
//! - the [`capstan_core::contract::Effect`] of a call comes from what was sent and answered, never from the guest;
//! - no redirect is followed, no proxy used, no header of the guest decides where or as whom a request goes;
//! - what is dialled is an address or socket that the operator's [`policy`] permits, checked after names are resolved;
//! - a guest never sees a credential, and secrets are in no error, log line or ledger entry.

mod aws;
mod clock;
mod credential;
mod endpoint;
mod fence;
mod gate;
mod ledger;
mod operation;
pub mod policy;
mod protocol;
mod recording;
mod redact;
mod request;
mod shared;
mod transport;
mod turn;

pub use capstan_core::identity::{CredentialReference, RolePointers};
pub use clock::{Clock, RealTime};
pub use credential::{AssumeRole, AwsKeys, Credential, CredentialKind, CredentialSource, SecretData, SigningScope};
pub use endpoint::{Declared, Destination, EndpointConfig, Endpoints, MAX_REQUEST, Origin, Signing};
pub use gate::{Admitted, Rate};
pub use ledger::{Exchange, Ledger};
pub use operation::{Narrowed, ReadOperation};
pub use policy::Policy;
pub use protocol::Protocol;
pub use recording::{Recorded, RecordedAnswer, Replay};
pub use request::{Chunk, HttpError, Method, Request, Response};
pub use transport::{Network, Transport, TransportError, Unreachable, WireRequest, WireResponse, resolve};
pub use turn::{Call, Gateway, Limits, Session, TurnScope};
