//! Clusters in Proxmox VE, as far as anybody can tell without one: fakepve checks every call and right, and its machines boot
//! from the images that they are given.

mod bad_input;
mod life;
mod objects;
mod site;
mod tenants;
