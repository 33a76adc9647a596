//! The rules that are no matter of one fault at one place.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use capstan_core::contract::ProviderError;
use capstan_core::turn::{Reply, no_fence};

use super::case::Reference;
use super::life::{Called, Life, Living};
use super::server::Setting;
use crate::fault::{self, Fault};

/// Longer than any pause that is obeyed, and than any answer is shared (milliseconds).
const LONG: Duration = Duration::from_secs(600);

/// Ten calls leave the footprint of one, and a pure call answers the same each time.
pub(super) async fn ten_calls_are_one(setting: &Setting<'_>, life: &Life) -> anyhow::Result<()> {
    let once = Reference::live(setting, life, 1).await.context("once")?;
    let ten = Reference::live(setting, life, 10).await.context("each changing call ten times")?;
    ensure!(ten.up == once.up, "called ten times, it has {:?} on the server; once, {:?}", ten.up, once.up);
    ensure!(ten.changed == once.changed, "changed ten times, it has {:?}; once, {:?}", ten.changed, once.changed);
    ensure!(ten.changes > once.changes, "nothing was called again");
    Ok(())
}

/// An error of the server comes back as that error, whatever was asked, and never as an answer.
pub(super) async fn errors_are_told(setting: &Setting<'_>, life: &Life) -> anyhow::Result<()> {
    let mut living = Living::begin(setting, life)?;
    living.called = Some(BTreeMap::new());
    living.settle().await.context("coming up")?;
    if let Some(change) = life.change {
        change(&mut living.world);
        living.settle().await.context("being changed")?;
    }
    living.delete();
    living.settle().await.context("being deleted")?;
    let called = living.called.unwrap_or_default();
    ensure!(called.len() > 1, "nothing was called");
    let faults = [
        Fault::DropRequest,
        Fault::FailBefore(500),
        Fault::FailBefore(502),
        Fault::FailBefore(503),
        Fault::FailBefore(504),
        Fault::Throttle(7),
        Fault::Busy(7),
        Fault::FailBefore(401),
        Fault::FailBefore(403),
        // An answer, but none of this server's.
        Fault::FailBefore(200),
    ];
    for ((name, first), called) in &called {
        for fault in faults {
            error_is_told(setting, called, fault).await.with_context(|| {
                format!("{} {name}, {} of its calls", life.name, if *first { "first" } else { "last" })
            })?;
        }
    }
    Ok(())
}

async fn error_is_told(setting: &Setting<'_>, called: &Called, fault: Fault) -> anyhow::Result<()> {
    setting.proxy.pass(LONG).await;
    setting.proxy.set(fault::from(0, fault));
    let before = setting.proxy.look(<[_]>::len);
    let mut guest = setting.component.begin((*called.input).clone(), &setting.gateway()).await?;
    let Called { call, known, granted, .. } = called.clone();
    let reply = guest.call(call, known, granted, &no_fence()).await.reply;
    setting.proxy.set(fault::calm());
    if setting.proxy.look(<[_]>::len) == before {
        // It asked nothing: what it says, it knows.
        return Ok(());
    }
    let fits = match (fault, &reply) {
        // What a change came to is seen by looking.
        (Fault::FailBefore(200), Ok(Reply::Progress(_))) => true,
        (Fault::FailBefore(200), Err(error)) => !matches!(error, ProviderError::Violated(_)),
        (Fault::Throttle(_) | Fault::Busy(_), Err(ProviderError::Throttled(_))) => true,
        (Fault::FailBefore(401 | 403), Err(ProviderError::Unauthorized(_))) => true,
        (Fault::DropRequest | Fault::FailBefore(500..), Err(ProviderError::Transient(_))) => true,
        _ => false,
    };
    ensure!(fits, "the server did {fault} to all it was asked, and the component says {reply:?}");
    Ok(())
}

/// A settled fleet costs one read per part and object, and one for all where a read serves many; a pause that one was
/// asked for is kept by the others; each has its own on the server.
pub(super) async fn a_fleet_is_modest(setting: &Setting<'_>, fleet: &[Life]) -> anyhow::Result<()> {
    setting.proxy.set(fault::calm());
    setting.proxy.forget();
    let gateway = setting.gateway();
    let (mut living, mut each) = (Vec::new(), None);
    for life in fleet {
        let mut one = Living::begin_beside(setting, life, gateway.clone())?;
        one.settle().await.with_context(|| format!("{}: coming up", life.name))?;
        if let Some(change) = life.change {
            change(&mut one.world);
            one.settle().await.with_context(|| format!("{}: being changed", life.name))?;
        }
        living.push(one);
        let left = setting.server.left().await?.len();
        let each = *each.get_or_insert(left);
        ensure!(left == each * living.len(), "{left} on the server for {} objects; one has {each}", living.len());
    }
    setting.proxy.pass(LONG).await;
    let before = setting.proxy.look(<[_]>::len);
    let mut parts = 0;
    for one in &mut living {
        one.look().await?;
        parts += one.parts;
    }
    let shared = |all: &[crate::Exchange]| all.iter().skip(before).filter(|e| setting.server.is_shared(e)).count();
    let (all, shared) = (setting.proxy.look(<[_]>::len) - before, setting.proxy.look(shared));
    ensure!(all > 0, "a look at {} settled objects asked nothing", fleet.len());
    ensure!(shared <= 1, "{shared} reads that serve many, for one look at {} objects", fleet.len());
    ensure!(all - shared <= parts, "{} reads for one look at {} parts", all - shared, parts);
    for fault in [Fault::Throttle(60), Fault::Busy(60)] {
        pause_holds_for_all(setting, &mut living, fault).await.with_context(|| fault.to_string())?;
    }
    for one in &mut living {
        one.delete();
        let before = setting.server.left().await?.len();
        one.settle().await.context("being deleted")?;
        let gone = before - setting.server.left().await?.len().min(before);
        ensure!(Some(gone) == each, "one object was deleted, and {gone} went from the server; one has {each:?}");
    }
    let left = setting.server.left().await?;
    ensure!(left.is_empty(), "after deletion there is {left:?}");
    Ok(())
}

async fn pause_holds_for_all(setting: &Setting<'_>, living: &mut [Living<'_>], fault: Fault) -> anyhow::Result<()> {
    let Some((first, others)) = living.split_first_mut() else { return Ok(()) };
    setting.proxy.pass(LONG).await;
    setting.proxy.set(fault::from(0, fault));
    let asked = |before| setting.proxy.look(<[_]>::len) - before;
    let before = setting.proxy.look(<[_]>::len);
    first.look().await?;
    ensure!(asked(before) == 1, "{} requests went out although the first was answered with a pause", asked(before));
    setting.proxy.set(fault::calm());
    for one in others.iter_mut() {
        one.look().await?;
    }
    ensure!(asked(before) == 1, "others have sent {} requests into the pause", asked(before) - 1);
    setting.proxy.pass(Duration::from_secs(61)).await;
    for one in others {
        one.look().await?;
    }
    ensure!(asked(before) > 1, "the pause is over, and nothing was asked");
    Ok(())
}
