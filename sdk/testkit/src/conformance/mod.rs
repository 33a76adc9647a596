//! The conformance suite: any component, run as the host runs it, against a real server behind a
//! [`FaultProxy`](crate::FaultProxy). `docs/conformance.md` says how to try one's own component.
//!
//! A [`Life`] is an object that comes into being, is changed and is deleted, in a management cluster in memory, by the
//! host's own rules. A [`Case`] is a life that trouble strikes: a fault at one exchange, a host that is killed there or
//! at one of its own steps, a server that is away for minutes, a series of faults by seed. Whatever the trouble:
//!
//! - the object comes up and goes in the end;
//! - at no time more is on the server than a life without trouble has there, in the end of coming up exactly that, and
//!   after deletion nothing, however late what was under way arrives;
//! - the number of changing calls is bounded;
//! - calls that must not change anything send nothing that does, and no call breaks the contract.
//!
//! The rules beside that ([`Suite::rules`]): ten calls leave the footprint of one, pure calls are pure, an error of the
//! server is told as what it is and never taken for absence, a settled object costs at most one read per part, a fleet
//! shares the reads that serve many, and a pause that one object was asked for holds for all.
//!
//! Time is the setting's own and passes without sleeping; only the server's own work takes real time. A [`Suite`] runs
//! cases in several worlds side by side.

mod case;
mod component;
mod life;
mod rules;
mod server;
mod suite;
mod summary;

pub use case::{Case, OUTAGE, Outcome, Reference, Trouble};
pub use component::{Component, Guest};
pub use life::Life;
pub use server::{Access, Server, Setting};
pub use suite::{Extent, Report, ServerStarts, Suite};
pub use summary::Summary;
