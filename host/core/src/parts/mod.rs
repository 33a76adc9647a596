//! Parts: the external resources behind an object, brought up in order and taken down in reverse (design, sections 3.2
//! and 3.4).
//!
//! What these rules promise, whatever a provider says and wherever the process dies:
//! - nothing is created before the intent, with the finalizer, the owner key and the chosen id, is on record;
//! - an attempt is created once, unless it is proved that nothing of it is there or can still arrive;
//! - at most one changing call is made in a turn;
//! - the finalizer goes only when every managed part is proved absent.

mod desk;
mod live;
mod order;
mod removal;

pub(crate) use desk::{Desk, Job};
pub(crate) use live::bring_up;
pub(crate) use removal::take_down;
