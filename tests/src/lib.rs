//! What the whole-system scenarios share: a management plane as its user starts it, a real kubectl, a real API server,
//! and what stands in for clouds.

pub mod authority;
pub mod clients;
pub mod docker;
pub mod ec2;
pub mod fakepve;
pub mod gate;
pub mod http;
pub mod hypervisor;
pub mod lab;
pub mod machines;
pub mod moto;
pub mod nocloud;
pub mod plane;
pub mod real;
pub mod registry;
pub mod replica;
pub mod secrets;
pub mod site;
pub mod stage;
pub mod witness;
pub mod workers;

pub use plane::{BackEnd, Plane, Up};

/// Makes two tests of each of these functions: `name::embedded` and `name::real`.
#[macro_export]
macro_rules! on_both_back_ends {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn embedded() -> anyhow::Result<()> {
                super::$name($crate::BackEnd::Embedded)
            }

            #[test]
            fn real() -> anyhow::Result<()> {
                if $crate::real::programs().is_none() {
                    return $crate::plane::skip(concat!(module_path!(), ": no real kube-apiserver (tests/setup.sh builds one)"));
                }
                super::$name($crate::BackEnd::Real)
            }
        }
    )+};
}
