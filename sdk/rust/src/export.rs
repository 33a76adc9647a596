//! The macros that make a crate a component: the exports of its world and its two custom sections.

/// Makes the crate an infrastructure provider.
///
/// ```ignore
/// capstan_provider::export_infrastructure!(Simulated, { "name": "simulated", "kinds": { … }, … });
/// ```
/// The second argument is the manifest in JSON without `version`, `contract` and `role`, which are filled in. Identities that
/// the manifest names follow: `export_infrastructure!(Cloud, { … }, identities: [CloudStaticIdentity, CloudRoleIdentity]);`.
#[macro_export]
macro_rules! export_infrastructure {
    ($provider:ty, $manifest:tt $(, identities: [$($identity:ty),+ $(,)?])? $(,)?) => {
        $crate::sections!(
            "infrastructure",
            $manifest,
            [
                <<$provider as $crate::InfrastructureProvider>::Cluster as $crate::Kind>::CRD,
                <<$provider as $crate::InfrastructureProvider>::Machine as $crate::Kind>::CRD
                $($(, <$identity as $crate::Kind>::CRD)+)?
            ]
        );

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs, clippy::all, clippy::indexing_slicing, reason = "generated")]
        mod component {
            use super::*;
            use $crate::bindings::capstan::provider::types as wit;
            use $crate::private::infrastructure as dispatch;

            $crate::private::world!("infrastructure-provider");
            use exports::capstan::provider::{infra_cluster, infra_machine, kinds, needs, resources};

            struct Component;
            export!(Component);

            $crate::export_kinds_and_needs!($provider $($(, $identity)+)?);

            fn operation(operation: $crate::Operation) -> resources::Operation {
                resources::Operation { token: operation.token, look_again_after: operation.look_again_after }
            }
            fn absence(absence: $crate::Absence) -> resources::Absence {
                match absence {
                    $crate::Absence::LookedUpById => resources::Absence::LookedUpById,
                    $crate::Absence::SearchedByKey => resources::Absence::SearchedByKey,
                }
            }
            fn presence(presence: $crate::Presence) -> resources::Presence {
                match presence {
                    $crate::Presence::Absent(how) => resources::Presence::Absent(absence(how)),
                    $crate::Presence::Pending(running) => resources::Presence::Pending(operation(running)),
                    $crate::Presence::Failed(how, why) => resources::Presence::Failed((absence(how), why.into())),
                    $crate::Presence::Foreign(why) => resources::Presence::Foreign(why.into()),
                    $crate::Presence::Present(observed) => resources::Presence::Present(resources::Observed {
                        id: observed.id,
                        ready: observed.ready,
                        todo: observed.todo.into_iter().map(Into::into).collect(),
                        outdated: observed.outdated.into_iter().map(Into::into).collect(),
                        operation: observed.operation.map(operation),
                        state: observed.state,
                    }),
                }
            }
            fn progress(progress: $crate::Progress) -> resources::Progress {
                match progress {
                    $crate::Progress::Done(id) => resources::Progress::Done(id),
                    $crate::Progress::Started { id, operation: running } => {
                        resources::Progress::Started(resources::UnderWay { id, operation: operation(running) })
                    }
                    $crate::Progress::Waiting(why) => resources::Progress::Waiting(why.into()),
                }
            }

            impl resources::Guest for Component {
                fn parts() -> Result<Vec<resources::Part>, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let parts = dispatch::parts::<$provider>()?;
                    Ok(parts
                        .into_iter()
                        .map(|part| resources::Part {
                            name: part.name,
                            after: part.after,
                            ownership: match part.borrowed {
                                true => resources::Ownership::Borrowed,
                                false => resources::Ownership::Managed,
                            },
                            replaceable: part.replaceable,
                        })
                        .collect())
                }
                fn identify(part: String, reserved: Vec<String>) -> Result<resources::Choice, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let choice = dispatch::identify::<$provider>(&part, &reserved)?;
                    Ok(resources::Choice {
                        identity: match choice.id {
                            Some(id) => resources::Identity::Chosen(id),
                            None => resources::Identity::AssignedByRemote,
                        },
                        frozen: choice.frozen,
                    })
                }
                fn observe(part: String) -> Result<resources::Presence, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    Ok(presence(dispatch::observe::<$provider>(&part)?))
                }
                fn create(part: String) -> Result<resources::Progress, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    Ok(progress(dispatch::create::<$provider>(&part)?))
                }
                fn update(part: String, todo: Vec<wit::Reason>) -> Result<resources::Progress, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let todo: Vec<$crate::Reason> = todo.into_iter().map(Into::into).collect();
                    Ok(progress(dispatch::update::<$provider>(&part, &todo)?))
                }
                fn delete(part: String) -> Result<resources::Progress, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    Ok(progress(dispatch::delete::<$provider>(&part)?))
                }
            }

            impl infra_cluster::Guest for Component {
                fn report() -> Result<infra_cluster::Facts, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let facts = dispatch::report_cluster::<$provider>()?;
                    Ok(infra_cluster::Facts {
                        control_plane_endpoint: facts.control_plane_endpoint.map(Into::into),
                        failure_domains: facts
                            .failure_domains
                            .into_iter()
                            .map(|domain| infra_cluster::FailureDomain {
                                name: domain.name,
                                control_plane: domain.control_plane,
                                attributes: domain.attributes,
                            })
                            .collect(),
                        conditions: facts.conditions.into_iter().map(Into::into).collect(),
                        status: $crate::or_empty_object(facts.status),
                    })
                }
            }

            impl infra_machine::Guest for Component {
                fn report() -> Result<infra_machine::Facts, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let facts = dispatch::report_machine::<$provider>()?;
                    Ok(infra_machine::Facts {
                        phase: match facts.phase {
                            $crate::Phase::Pending => infra_machine::Phase::Pending,
                            $crate::Phase::Running => infra_machine::Phase::Running,
                            $crate::Phase::Stopped => infra_machine::Phase::Stopped,
                            $crate::Phase::Failed => infra_machine::Phase::Failed,
                            $crate::Phase::Deleting => infra_machine::Phase::Deleting,
                        },
                        provider_id: facts.provider_id,
                        addresses: facts
                            .addresses
                            .into_iter()
                            .map(|address| infra_machine::Address {
                                kind: match address.kind {
                                    $crate::AddressKind::Hostname => infra_machine::AddressKind::Hostname,
                                    $crate::AddressKind::InternalIp => infra_machine::AddressKind::InternalIp,
                                    $crate::AddressKind::ExternalIp => infra_machine::AddressKind::ExternalIp,
                                    $crate::AddressKind::InternalDns => infra_machine::AddressKind::InternalDns,
                                    $crate::AddressKind::ExternalDns => infra_machine::AddressKind::ExternalDns,
                                },
                                value: address.value,
                            })
                            .collect(),
                        failure_domain: facts.failure_domain,
                        node_name: facts.node_name,
                        interruptible: facts.interruptible,
                        conditions: facts.conditions.into_iter().map(Into::into).collect(),
                        status: $crate::or_empty_object(facts.status),
                    })
                }
                fn capacity() -> Vec<(String, String)> {
                    $crate::private::panics_to_log();
                    dispatch::capacity::<$provider>()
                }
            }
        }
    };
}

/// Makes the crate a bootstrap provider; see [`export_infrastructure!`](crate::export_infrastructure).
#[macro_export]
macro_rules! export_bootstrap {
    ($provider:ty, $manifest:tt) => {
        $crate::sections!("bootstrap", $manifest, [<$provider as $crate::Kind>::CRD]);

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs, clippy::all, clippy::indexing_slicing, reason = "generated")]
        mod component {
            use super::*;
            use $crate::bindings::capstan::provider::types as wit;
            use $crate::private::bootstrap as dispatch;

            $crate::private::world!("bootstrap-provider");
            use exports::capstan::provider::{bootstrap, kinds, needs};

            struct Component;
            export!(Component);

            $crate::export_kinds_and_needs!($provider);

            impl bootstrap::Guest for Component {
                fn render() -> Result<bootstrap::Rendered, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let rendered = dispatch::render::<$provider>()?;
                    Ok(bootstrap::Rendered { format: rendered.format, content: rendered.content.into_handle() })
                }
            }
        }
    };
}

/// Makes the crate a control-plane provider; see [`export_infrastructure!`](crate::export_infrastructure).
#[macro_export]
macro_rules! export_control_plane {
    ($provider:ty, $manifest:tt) => {
        $crate::sections!("control-plane", $manifest, [<$provider as $crate::Kind>::CRD]);

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs, clippy::all, clippy::indexing_slicing, reason = "generated")]
        mod component {
            use super::*;
            use $crate::bindings::capstan::provider::types as wit;
            use $crate::private::control_plane as dispatch;

            $crate::private::world!("control-plane-provider");
            use exports::capstan::provider::{control_plane, kinds, needs};

            struct Component;
            export!(Component);

            $crate::export_kinds_and_needs!($provider);

            fn step(step: $crate::control_plane::Step) -> control_plane::Step {
                use $crate::control_plane::Step;
                match step {
                    Step::CreateMachine { failure_domain, kubernetes_version, bootstrap } => {
                        control_plane::Step::CreateMachine(control_plane::NewMachine {
                            failure_domain,
                            kubernetes_version,
                            bootstrap,
                        })
                    }
                    Step::ChangeMachine { machine, bootstrap } => {
                        control_plane::Step::ChangeMachine(control_plane::MachineChange { machine, bootstrap })
                    }
                    Step::DeleteMachine { machine, reason } => {
                        control_plane::Step::DeleteMachine(control_plane::Removal { machine, reason: reason.into() })
                    }
                    Step::MoveEtcdLeader(from, to) => control_plane::Step::MoveEtcdLeader((from, to)),
                    Step::RemoveEtcdMember(id) => control_plane::Step::RemoveEtcdMember(id),
                    Step::ApplyWorkload(label, object) => control_plane::Step::ApplyWorkload((label, object)),
                    Step::DeleteWorkload(label) => control_plane::Step::DeleteWorkload(label),
                    Step::Wait(why) => control_plane::Step::Wait(why.into()),
                    Step::Settled => control_plane::Step::Settled,
                }
            }

            impl control_plane::Guest for Component {
                fn plan() -> Result<control_plane::Decision, wit::ProviderError> {
                    $crate::private::panics_to_log();
                    let decision = dispatch::plan::<$provider>()?;
                    Ok(control_plane::Decision {
                        step: step(decision.step),
                        look_again_after: decision.look_again_after,
                        conditions: decision.conditions.into_iter().map(Into::into).collect(),
                        status: $crate::or_empty_object(decision.status),
                        memory: $crate::or_empty_object(decision.memory),
                    })
                }
            }
        }
    };
}

/// The exports that every role has.
#[doc(hidden)]
#[macro_export]
macro_rules! export_kinds_and_needs {
    ($provider:ty $(, $identity:ty)*) => {
        impl kinds::Guest for Component {
            fn convert(object: String, to_version: String) -> Result<String, wit::Reason> {
                $crate::private::panics_to_log();
                $(if let Some(converted) = dispatch::convert_identity::<$identity>(&object, &to_version) {
                    return Ok(converted?);
                })*
                Ok(dispatch::convert::<$provider>(&object, &to_version)?)
            }
            fn validate(old: Option<String>, new: String) -> Vec<wit::Violation> {
                $crate::private::panics_to_log();
                $(if dispatch::is_identity::<$identity>(&new) {
                    return Vec::new();
                })*
                dispatch::validate::<$provider>(old.as_deref(), &new).into_iter().map(Into::into).collect()
            }
        }

        fn need(need: $crate::Need) -> needs::Need {
            use $crate::{Algorithm, KeyUse, Need};
            match need {
                Need::Address { group, kind, name } => needs::Need::Address(needs::PoolRef { group, kind, name }),
                Need::AddressPool { addresses, prefix, gateway } => {
                    needs::Need::AddressPool(needs::AddressPool { addresses, prefix, gateway })
                }
                Need::Secret(pointer) => needs::Need::Secret(pointer),
                Need::ConfigMap(pointer) => needs::Need::ConfigMap(pointer),
                Need::KeyPair(pair) => needs::Need::KeyPair(needs::KeyPair {
                    algorithm: match pair.algorithm {
                        Algorithm::Rsa2048 => needs::Algorithm::Rsa2048,
                        Algorithm::Rsa3072 => needs::Algorithm::Rsa3072,
                        Algorithm::Rsa4096 => needs::Algorithm::Rsa4096,
                        Algorithm::EcdsaP256 => needs::Algorithm::EcdsaP256,
                        Algorithm::EcdsaP384 => needs::Algorithm::EcdsaP384,
                    },
                    purpose: match pair.purpose {
                        KeyUse::CertificateAuthority => needs::KeyUse::CertificateAuthority,
                        KeyUse::SigningOnly => needs::KeyUse::SigningOnly,
                    },
                    common_name: pair.common_name,
                    validity_days: pair.validity_days,
                }),
                Need::ClusterToken(length) => needs::Need::ClusterToken(length),
                Need::BootstrapToken => needs::Need::BootstrapToken,
            }
        }

        impl needs::Guest for Component {
            fn declare() -> Result<Vec<(String, needs::Need)>, wit::ProviderError> {
                $crate::private::panics_to_log();
                let declared = dispatch::declare::<$provider>()?;
                Ok(declared.into_iter().map(|(label, wanted)| (label, need(wanted))).collect())
            }
        }
    };
}

/// The two custom sections, as constants everywhere and as sections in a component.
#[doc(hidden)]
#[macro_export]
macro_rules! sections {
    ($role:literal, $manifest:tt, [$first:expr $(, $more:expr)*]) => {
        /// The component's manifest, as its section `capstan:manifest` carries it.
        pub const MANIFEST: &str = $crate::private::manifest_json!($role $manifest);
        /// The CRDs it serves, as its section `capstan:crds` carries them.
        pub const CRDS: &str = $crate::concat_text!("[", $first $(, ",", $more)*, "]");

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "a section's name is all that is special here")]
        const _: () = {
            #[used]
            #[unsafe(link_section = "capstan:manifest")]
            static MANIFEST_SECTION: [u8; MANIFEST.len()] = $crate::schema::bytes(MANIFEST);
            #[used]
            #[unsafe(link_section = "capstan:crds")]
            static CRDS_SECTION: [u8; CRDS.len()] = $crate::schema::bytes(CRDS);
        };
    };
}
