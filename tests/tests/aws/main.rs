//! Clusters in AWS, as far as anybody can tell without one: moto checks signatures and rights, its instances boot from the user
//! data that they are given, and its load balancers lead to them.

mod bad_input;
mod borrowed;
mod life;
mod objects;
mod site;
mod tenants;
