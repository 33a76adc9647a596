//! Runs provider components: packaging, inspecting, compiling, loading and calling them.
//!
//! A component is checked from outside first (its manifest, kinds, imports and exports), then compiled in another
//! process, then instantiated afresh for every turn. A guest runs on threads of its own with a limit of memory and of
//! CPU time; its requests are carried out by whoever drives the turn, through the gateway.
//!
//! Promises:
//! - no code of a guest is compiled before all that can be checked without it was checked;
//! - a guest sees its turn's object and nothing else: no clock, file, socket, environment or WASI import;
//! - a guest that traps, spins, grows or answers with something forbidden ends its own turn and nothing else;
//! - secrets never enter guest memory.

mod cache;
mod check;
pub mod compile;
pub mod component;
mod engine;
mod iso9660;
mod limits;
pub mod manifest;
mod module;
pub mod package;
mod pure;
pub mod recording;
mod secrets;
mod slots;
mod state;
mod turn;
mod v0_1;

pub use component::{Inspection, LoadError, Refusal, inspect};
pub use engine::{Compiler, Engine, EngineConfig, EngineError, Maxima};
pub use limits::Granted as GrantedLimits;
pub use manifest::Manifest;
pub use module::Module;
pub use recording::Recording;
pub use turn::Turn;
