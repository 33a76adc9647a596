//! The conformance suite's core: any component, run as the host runs it, against a real server behind a
//! [`FaultProxy`](crate::FaultProxy).
//!
//! A [`Life`] is an object that comes into being, is changed and is deleted, in a management cluster in memory, by the
//! host's own rules. A [`Case`] is a life that trouble strikes: a fault at one exchange, a host that is killed there or
//! at one of its own steps, a server that is away for minutes, a series of faults by seed. Whatever the trouble:
//!
//! - the object comes up and goes in the end;
//! - at no time more is on the server than a life without trouble has there, in the end of coming up exactly that, and
//!   after deletion nothing, however late what was under way arrives;
//! - the number of changing calls is bounded;
//! - calls that must not change anything send nothing that does.
//!
//! Time is the management cluster's and passes without sleeping; only the server's own work takes real time.

mod case;
mod life;
mod summary;

pub use case::{Case, OUTAGE, Reference, Trouble};
pub use life::{Life, Server, Setting};
pub use summary::Summary;
