//! Components loaded, called, and stopped.

mod guest;
mod hostile;
mod refusals;
mod turns;
