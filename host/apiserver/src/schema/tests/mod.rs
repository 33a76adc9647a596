//! Tables for each function of the engine.
