//! Wasmtime: engine, compile cache, limits, the imports of the contract.

pub mod package;
