//! How many Machines each MachineSet of a MachineDeployment should have: arithmetic and nothing else.
//!
//! Counts come from the Machines themselves, not from the sets' status, so a step is never taken on counters that
//! lag behind. Machines that a set is yet to take away count as there for the surge, and as gone for availability.

use capstan_api::machine_deployment::RollingUpdate;
use capstan_api::meta::IntOrString;

/// One MachineSet. Sets are given oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetState {
    /// Machines wanted; the functions here change it.
    pub wanted: i64,
    /// Machines that are there and not being deleted.
    pub alive: i64,
    /// Machines that are being deleted.
    pub deleting: i64,
    /// Machines that are alive and available.
    pub available: i64,
    /// It is the current set.
    pub current: bool,
}

impl SetState {
    /// Machines that exist or will.
    fn most(&self) -> i64 {
        self.wanted.max(self.alive + self.deleting)
    }

    /// Available Machines that stay when the set has come down to what is wanted: it takes those away first that are
    /// not available (`machine_set::priority`).
    fn lasting(&self) -> i64 {
        self.available.min(self.wanted).max(0)
    }
}

/// The bounds of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Replicas of the MachineDeployment.
    pub desired: i64,
    /// How many more there may be.
    pub surge: i64,
    /// How many fewer may be available.
    pub unavailable: i64,
}

impl Bounds {
    /// Percentages: surge rounds up, unavailable rounds down; if both come to 0, unavailable is 1, or nothing could
    /// ever move.
    pub fn of(desired: i64, rolling: Option<&RollingUpdate>) -> Self {
        let part = |value: Option<&IntOrString>, default: i64, up: bool| match value {
            None => default,
            Some(IntOrString::Int(n)) => i64::from(*n).max(0),
            Some(IntOrString::String(text)) => {
                let percent = text.strip_suffix('%').and_then(|n| n.parse::<i64>().ok()).unwrap_or_default().max(0);
                let hundredths = desired.saturating_mul(percent);
                if up { hundredths.saturating_add(99) / 100 } else { hundredths / 100 }
            }
        };
        let surge = part(rolling.and_then(|r| r.max_surge.as_ref()), 1, true);
        let unavailable = part(rolling.and_then(|r| r.max_unavailable.as_ref()), 0, false);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Self { desired, surge, unavailable: unavailable.min(desired.max(1)) }
    }

    /// The fewest Machines that must be available.
    pub fn fewest(&self) -> i64 {
        (self.desired - self.unavailable).max(0)
    }

    /// The most Machines that may exist.
    pub fn most(&self) -> i64 {
        self.desired + self.surge
    }
}

/// One step of a rolling update. There must be a current set.
pub fn rolling(bounds: Bounds, sets: &mut [SetState]) {
    let most: i64 = sets.iter().map(SetState::most).sum();
    let Some(current) = sets.iter_mut().find(|s| s.current) else { return };
    if current.wanted > bounds.desired {
        current.wanted = bounds.desired;
    } else {
        let room = (bounds.most() - most).min(bounds.desired - current.wanted);
        current.wanted += room.max(0);
    }
    let missing = current.wanted - current.lasting();
    let total: i64 = sets.iter().map(|s| s.wanted).sum();
    let mut room = total - bounds.fewest() - missing;
    // Old Machines that are of no use go first: nobody misses them, unless none would be left to become available.
    for old in sets.iter_mut().filter(|s| !s.current) {
        let useless = old.wanted - old.lasting();
        let down = useless.min(room).max(0);
        old.wanted -= down;
        room -= down;
    }
    let lasting: i64 = sets.iter().map(SetState::lasting).sum();
    let mut spare = (lasting - bounds.fewest()).min(room);
    for old in sets.iter_mut().filter(|s| !s.current) {
        let down = old.wanted.min(spare).max(0);
        old.wanted -= down;
        spare -= down;
    }
}

/// One step of `OnDelete`: what a person deleted from an old set is not made again there but in the current one.
pub fn on_delete(desired: i64, sets: &mut [SetState]) {
    for old in sets.iter_mut().filter(|s| !s.current) {
        old.wanted = old.wanted.min(old.alive);
    }
    let total: i64 = sets.iter().map(|s| s.wanted).sum();
    let mut excess = total - desired;
    if excess < 0 {
        if let Some(current) = sets.iter_mut().find(|s| s.current) {
            current.wanted -= excess;
        }
        return;
    }
    let (old, current): (Vec<&mut SetState>, Vec<&mut SetState>) = sets.iter_mut().partition(|s| !s.current);
    for set in old.into_iter().chain(current) {
        let down = set.wanted.min(excess);
        set.wanted -= down;
        excess -= down;
    }
}

/// Scaling while paused: the sets keep their shares.
pub fn proportional(target: i64, sets: &mut [SetState]) {
    let total: i64 = sets.iter().map(|s| s.wanted).sum();
    if total == 0 {
        if let Some(last) = sets.iter().position(|s| s.current).or(sets.len().checked_sub(1))
            && let Some(set) = sets.get_mut(last)
        {
            set.wanted = target;
        }
        return;
    }
    let mut order: Vec<usize> = (0..sets.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(sets.get(*at).map_or(0, |s| s.wanted)));
    let mut left = target;
    for set in sets.iter_mut() {
        set.wanted = set.wanted.saturating_mul(target) / total;
        left -= set.wanted;
    }
    // What rounding left over goes to the biggest sets.
    for at in order {
        if left <= 0 {
            break;
        }
        if let Some(set) = sets.get_mut(at).filter(|s| s.wanted > 0 || left > 0) {
            set.wanted += 1;
            left -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
