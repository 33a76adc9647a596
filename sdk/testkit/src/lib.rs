//! Runs a built component against scripted HTTP.
