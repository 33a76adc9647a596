//! Clusters of containers on a real Docker Engine.

mod bad_input;
mod field_cases;
mod life;
mod stand;
mod versions;
