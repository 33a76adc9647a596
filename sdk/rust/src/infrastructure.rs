//! Infrastructure: what stands behind a cluster and behind a machine, as parts.
//!
//! A part is one external resource. The host decides when each function is called; `identify` and `observe` read, and
//! `create`, `update` and `delete` may send one changing request per call. Nothing here keeps state: what a part must
//! remember is its id, what `identify` froze, and the state that `observe` returned, all kept by the host and read back
//! with [`Context::known`](crate::Context::known).

use serde::{Serialize, de::DeserializeOwned};

use crate::{Condition, Context, Error, HostPort, Kind, Need, Reason, Result, Violation, json};

/// The provider: which kinds it serves.
pub trait InfrastructureProvider {
    /// The kind behind a Cluster.
    type Cluster: ClusterKind;
    /// The kind behind a Machine.
    type Machine: MachineKind;
}

/// What is common to both kinds: parts, needs, admission.
pub trait PartsOf: Kind + DeserializeOwned + 'static {
    /// The parts of an object, from its spec. Pure.
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>>;

    /// A part by name, also one that `parts` no longer lists and the host has on record.
    fn part(ctx: &Context<Self>, name: &str) -> Result<Option<Box<dyn Part<Self>>>> {
        Ok(Self::parts(ctx)?.into_iter().find(|part| part.name() == name))
    }

    /// What is needed from Kubernetes, by label. Pure.
    fn needs(_ctx: &Context<Self>) -> Result<Vec<(String, Need)>> {
        Ok(Vec::new())
    }

    /// What the schema cannot say. `old` is absent on creation.
    fn validate(_old: Option<&Self>, _new: &Self) -> Vec<Violation> {
        Vec::new()
    }
}

/// A spec behind a Cluster.
pub trait ClusterKind: PartsOf {
    /// What Cluster API wants to know, from the spec and the known parts. Pure.
    fn report(ctx: &Context<Self>) -> Result<ClusterFacts>;
}

/// A spec behind a Machine.
pub trait MachineKind: PartsOf {
    /// What Cluster API wants to know, from the spec and the known parts. Pure.
    fn report(ctx: &Context<Self>) -> Result<MachineFacts>;

    /// What a machine offers (`cpu`, `memory`, … as Kubernetes quantities), for scaling from zero. Pure.
    fn capacity(_ctx: &Context<Self>) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// One external resource.
pub trait Part<S> {
    /// Unique within the object and never used for something else.
    fn name(&self) -> String;

    /// Created after these are ready, deleted before them.
    fn after(&self) -> Vec<String> {
        Vec::new()
    }

    /// Looked up only: what the user brought along.
    fn borrowed(&self) -> bool {
        false
    }

    /// Made anew when it has vanished; if false, only reported (a machine's VM).
    fn replaceable(&self) -> bool {
        true
    }

    /// The id and the choices that stay the same however often `create` is tried. `reserved` are ids that other
    /// objects have chosen and the remote has not shown yet. Reads only.
    fn identify(&self, ctx: &Context<S>, reserved: &[String]) -> Result<Choice>;

    /// What is there. Reads only.
    fn observe(&self, ctx: &Context<S>) -> Result<Presence>;

    /// Makes it: at most one changing request.
    fn create(&self, ctx: &Context<S>) -> Result<Progress>;

    /// Does what comes first in `todo`: at most one changing request. Called again until nothing is left to do.
    fn update(&self, _ctx: &Context<S>, todo: &[Reason]) -> Result<Progress> {
        let code = todo.first().map_or("nothing", |reason| reason.code.as_str());
        Err(Error::internal(format!("part `{}` observed `{code}` to do and has no `update`", self.name())))
    }

    /// Takes it away: at most one changing request. Called again until `observe` shows it absent.
    fn delete(&self, ctx: &Context<S>) -> Result<Progress>;
}

/// What `identify` fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The id, or `None` where the remote assigns it.
    pub id: Option<String>,
    /// Other choices, as JSON.
    pub frozen: String,
}

impl Choice {
    /// The provider names the resource.
    pub fn chosen(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), frozen: "{}".to_owned() }
    }

    /// The remote names the resource.
    pub fn assigned_by_remote() -> Self {
        Self { id: None, frozen: "{}".to_owned() }
    }

    /// With further choices that stay the same.
    pub fn freeze(mut self, frozen: &impl Serialize) -> Result<Self> {
        self.frozen = json::text(frozen)?;
        Ok(self)
    }
}

/// A running remote operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its token.
    pub token: String,
    /// How long until it is worth looking again (ms).
    pub look_again_after: u64,
}

/// A part that is there and ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its id.
    pub id: String,
    /// The parts that come after it may be created.
    pub ready: bool,
    /// What `update` would do next; empty when nothing differs.
    pub todo: Vec<Reason>,
    /// Differences that only a replacement of the whole object can cure.
    pub outdated: Vec<Reason>,
    /// An operation that is running.
    pub operation: Option<Operation>,
    /// What the other parts and `report` need to know, as JSON.
    pub state: String,
}

impl Observed {
    /// There, with its state, which other parts and `report` read back; not ready yet.
    pub fn new(id: impl Into<String>, state: &impl Serialize) -> Result<Self> {
        Ok(Self {
            id: id.into(),
            ready: false,
            todo: Vec::new(),
            outdated: Vec::new(),
            operation: None,
            state: json::text(state)?,
        })
    }

    /// Ready, or not.
    #[must_use]
    pub fn ready(mut self, ready: bool) -> Self {
        self.ready = ready;
        self
    }

    /// Something for `update` to do.
    #[must_use]
    pub fn todo(mut self, code: &str, message: impl Into<String>) -> Self {
        self.todo.push(Reason::new(code, message));
        self
    }

    /// A difference that only a replacement of the whole object can cure.
    #[must_use]
    pub fn outdated(mut self, code: &str, message: impl Into<String>) -> Self {
        self.outdated.push(Reason::new(code, message));
        self
    }

    /// An operation that is running, worth a look after so many milliseconds.
    #[must_use]
    pub fn operation(mut self, token: impl Into<String>, look_again_after: u64) -> Self {
        self.operation = Some(Operation { token: token.into(), look_again_after });
        self
    }
}

/// How absence was established. Without a recorded id only a search counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Absence {
    LookedUpById,
    SearchedByKey,
}

/// What `observe` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not there.
    Absent(Absence),
    /// Not to be seen yet; the operation on record is still running.
    Pending(Operation),
    /// The operation on record ended without effect and nothing is there.
    Failed(Absence, Reason),
    /// Something has this id or name, and it is not ours.
    Foreign(Reason),
    /// There.
    Present(Observed),
}

impl Presence {
    /// The API says that nothing has this id.
    pub fn absent_by_id() -> Self {
        Self::Absent(Absence::LookedUpById)
    }

    /// A search for the owner key found nothing.
    pub fn absent_by_key() -> Self {
        Self::Absent(Absence::SearchedByKey)
    }

    /// Something has this id or name, and it is not ours.
    pub fn foreign(code: &str, message: impl Into<String>) -> Self {
        Self::Foreign(Reason::new(code, message))
    }
}

/// What a changing call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Done; the id.
    Done(String),
    /// An operation is running; the id where the remote has already named it.
    Started {
        /// The id, if there is one already.
        id: Option<String>,
        /// The operation.
        operation: Operation,
    },
    /// A precondition is not met yet; nothing was sent.
    Waiting(Reason),
}

impl Progress {
    /// Done; the id.
    pub fn done(id: impl Into<String>) -> Self {
        Self::Done(id.into())
    }

    /// A precondition is not met yet; nothing was sent.
    pub fn waiting(code: &str, message: impl Into<String>) -> Self {
        Self::Waiting(Reason::new(code, message))
    }
}

/// What Cluster API wants to know of an InfraCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The control-plane endpoint, once it is known.
    pub control_plane_endpoint: Option<HostPort>,
    /// Failure domains.
    pub failure_domains: Vec<FailureDomain>,
    /// Conditions beside those of the host.
    pub conditions: Vec<Condition>,
    /// Provider-owned fields of `status`, as JSON; empty for none.
    pub status: String,
}

/// A failure domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureDomain {
    /// Its name.
    pub name: String,
    /// Control-plane machines may be placed there.
    pub control_plane: bool,
    /// Free attributes.
    pub attributes: Vec<(String, String)>,
}

/// What a machine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Stopped,
    Failed,
    Deleting,
}

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AddressKind {
    Hostname,
    InternalIp,
    ExternalIp,
    InternalDns,
    ExternalDns,
}

/// An address of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its kind.
    pub kind: AddressKind,
    /// Its value.
    pub value: String,
}

/// What Cluster API wants to know of an InfraMachine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// What it is doing.
    pub phase: Phase,
    /// Unique for ever, and equal to the Node's.
    pub provider_id: Option<String>,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// Where it is.
    pub failure_domain: Option<String>,
    /// The Node's name where no cloud controller sets `spec.providerID`: the host then sets it.
    pub node_name: Option<String>,
    /// May vanish at any time, such as a spot instance.
    pub interruptible: bool,
    /// Conditions beside those of the host.
    pub conditions: Vec<Condition>,
    /// Provider-owned fields of `status`, as JSON; empty for none.
    pub status: String,
}

/// From the contract's functions to the traits; called by the export macro and by tests.
pub mod dispatch {
    use serde_json::Value;

    use super::*;
    use crate::{context, host, versions};

    /// Which of the two kinds a kind name means.
    enum Which {
        Cluster,
        Machine,
    }

    fn which<P: InfrastructureProvider>(kind: &str) -> Result<Which> {
        let plain = kind.strip_suffix("Template").unwrap_or(kind);
        match plain {
            _ if plain == P::Cluster::KIND => Ok(Which::Cluster),
            _ if plain == P::Machine::KIND => Ok(Which::Machine),
            _ => Err(Error::internal(format!("this provider does not serve the kind {kind}"))),
        }
    }

    macro_rules! by_kind {
        ($provider:ty, $function:ident ( $($argument:expr),* )) => {
            match which::<$provider>(&host::subject_kind())? {
                Which::Cluster => $function::<<$provider as InfrastructureProvider>::Cluster>($($argument),*),
                Which::Machine => $function::<<$provider as InfrastructureProvider>::Machine>($($argument),*),
            }
        };
    }

    /// A part as the contract lists it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Listed {
        pub name: String,
        pub after: Vec<String>,
        pub borrowed: bool,
        pub replaceable: bool,
    }

    /// `needs.declare`
    pub fn declare<P: InfrastructureProvider>() -> Result<Vec<(String, Need)>> {
        fn of<S: PartsOf>() -> Result<Vec<(String, Need)>> {
            S::needs(&*context::current::<S>()?)
        }
        by_kind!(P, of())
    }

    /// `resources.parts`
    pub fn parts<P: InfrastructureProvider>() -> Result<Vec<Listed>> {
        fn of<S: PartsOf>() -> Result<Vec<Listed>> {
            let parts = S::parts(&*context::current::<S>()?)?;
            Ok(parts
                .iter()
                .map(|part| Listed {
                    name: part.name(),
                    after: part.after(),
                    borrowed: part.borrowed(),
                    replaceable: part.replaceable(),
                })
                .collect())
        }
        by_kind!(P, of())
    }

    fn found<S: PartsOf>(ctx: &Context<S>, name: &str) -> Result<Box<dyn Part<S>>> {
        S::part(ctx, name)?.ok_or_else(|| Error::internal(format!("{} has no part `{name}`", S::KIND)))
    }

    /// `resources.identify`
    pub fn identify<P: InfrastructureProvider>(part: &str, reserved: &[String]) -> Result<Choice> {
        fn of<S: PartsOf>(part: &str, reserved: &[String]) -> Result<Choice> {
            let ctx = context::current::<S>()?;
            // Nothing is begun that admission would refuse; what is there already can still be looked at and deleted.
            let violations = S::validate(None, &ctx.spec);
            if !violations.is_empty() {
                return Err(Error::Invalid(violations));
            }
            found(&ctx, part)?.identify(&ctx, reserved)
        }
        by_kind!(P, of(part, reserved))
    }

    /// `resources.observe`
    pub fn observe<P: InfrastructureProvider>(part: &str) -> Result<Presence> {
        fn of<S: PartsOf>(part: &str) -> Result<Presence> {
            let ctx = context::current::<S>()?;
            found(&ctx, part)?.observe(&ctx)
        }
        by_kind!(P, of(part))
    }

    /// `resources.create`
    pub fn create<P: InfrastructureProvider>(part: &str) -> Result<Progress> {
        fn of<S: PartsOf>(part: &str) -> Result<Progress> {
            let ctx = context::current::<S>()?;
            found(&ctx, part)?.create(&ctx)
        }
        by_kind!(P, of(part))
    }

    /// `resources.update`
    pub fn update<P: InfrastructureProvider>(part: &str, todo: &[Reason]) -> Result<Progress> {
        fn of<S: PartsOf>(part: &str, todo: &[Reason]) -> Result<Progress> {
            let ctx = context::current::<S>()?;
            found(&ctx, part)?.update(&ctx, todo)
        }
        by_kind!(P, of(part, todo))
    }

    /// `resources.delete`
    pub fn delete<P: InfrastructureProvider>(part: &str) -> Result<Progress> {
        fn of<S: PartsOf>(part: &str) -> Result<Progress> {
            let ctx = context::current::<S>()?;
            found(&ctx, part)?.delete(&ctx)
        }
        by_kind!(P, of(part))
    }

    /// `infra-cluster.report`
    pub fn report_cluster<P: InfrastructureProvider>() -> Result<ClusterFacts> {
        P::Cluster::report(&*context::current::<P::Cluster>()?)
    }

    /// `infra-machine.report`
    pub fn report_machine<P: InfrastructureProvider>() -> Result<MachineFacts> {
        P::Machine::report(&*context::current::<P::Machine>()?)
    }

    /// `infra-machine.capacity`; nothing where the spec cannot be read.
    pub fn capacity<P: InfrastructureProvider>() -> Vec<(String, String)> {
        context::current::<P::Machine>().map(|ctx| P::Machine::capacity(&ctx)).unwrap_or_default()
    }

    /// `kinds.convert`
    pub fn convert<P: InfrastructureProvider>(object: &str, to: &str) -> Result<String, Reason> {
        match which::<P>(&versions::kind_of(object)) {
            Ok(Which::Cluster) => versions::convert_text::<P::Cluster>(object, to),
            Ok(Which::Machine) => versions::convert_text::<P::Machine>(object, to),
            Err(error) => Err(Reason::new("KindUnknown", error.to_string())),
        }
    }

    /// `kinds.convert` of an identity; `None` where the object is none of this kind.
    pub fn convert_identity<I: Kind>(object: &str, to: &str) -> Option<Result<String, Reason>> {
        is_identity::<I>(object).then(|| versions::convert_text::<I>(object, to))
    }

    /// Whether an object is an identity of this kind. Of those there is nothing to say beyond their schema.
    pub fn is_identity<I: Kind>(object: &str) -> bool {
        versions::kind_of(object) == I::KIND
    }

    /// `kinds.validate`
    pub fn validate<P: InfrastructureProvider>(old: Option<&str>, new: &str) -> Vec<Violation> {
        match which::<P>(&versions::kind_of(new)) {
            Ok(Which::Cluster) => validate_spec(old, new, P::Cluster::validate),
            Ok(Which::Machine) => validate_spec(old, new, P::Machine::validate),
            Err(error) => vec![Violation::new("/kind", error.to_string())],
        }
    }

    /// Admission of one spec type: what cannot be read is a violation, an unreadable old object is none.
    pub(crate) fn validate_spec<S: Kind + DeserializeOwned>(
        old: Option<&str>,
        new: &str,
        validate: fn(Option<&S>, &S) -> Vec<Violation>,
    ) -> Vec<Violation> {
        let read = |text: &str| match serde_json::from_str::<Value>(text) {
            // What the author checks is the stored version.
            Ok(object) => match versions::convert(object, S::VERSION, S::VERSION, &S::older()) {
                Ok(object) => context::spec_of::<S>(&object),
                Err(why) => Err(Error::invalid("/apiVersion", why.message)),
            },
            Err(error) => Err(Error::invalid("", format!("not JSON: {error}"))),
        };
        let new = match read(new) {
            Ok(new) => new,
            Err(Error::Invalid(violations)) => return violations,
            Err(other) => return vec![Violation::new("/spec", other.to_string())],
        };
        let old = old.and_then(|old| read(old).ok());
        validate(old.as_ref(), &new)
    }
}
