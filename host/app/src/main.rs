//! The `capstan` binary.
fn main() {}
