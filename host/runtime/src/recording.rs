//! Turns written down, to be run again elsewhere.
//!
//! A turn about an object with the annotation [`RECORD`] is written to a file: what the guest was told, each call, the HTTP
//! exchanges in it and what it answered. [`crate::Module::replay`] runs it again and names the first difference. No secret is
//! in it: of what was granted the length and the fingerprint are kept, and exchanges are those of the gateway's recordings.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use capstan_core::contract::{Effect, Granted, KnownPart};
use capstan_core::turn::{Call, Outcome, TurnInput};
use capstan_gateway::Recorded;
use serde::{Deserialize, Serialize};

use crate::module::Loaded;
use crate::secrets;
use crate::state::describe;

/// Annotation of objects whose turns are recorded, whatever its value.
pub const RECORD: &str = "capstan.dev/record";
/// Recordings that are kept of one object; the oldest is written over.
const KEPT: u64 = 16;

/// A turn that was written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Recording {
    /// Name of the ProviderModule.
    pub module: String,
    /// `sha256:…` of the component.
    pub digest: String,
    /// What the guest was told.
    pub input: TurnInput,
    /// The calls, in order.
    pub calls: Vec<RecordedCall>,
}

/// One call of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RecordedCall {
    /// Which function.
    pub call: Call,
    /// The parts on record.
    pub known: BTreeMap<String, KnownPart>,
    /// What was granted.
    pub granted: Granted,
    /// Fingerprints of the granted secrets, by label.
    pub fingerprints: BTreeMap<String, String>,
    /// What was asked over HTTP and answered.
    pub exchanges: Vec<Recorded>,
    /// What the guest returned.
    pub reply: String,
    /// What is known of its changing request.
    pub effect: Effect,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// When the file cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{} is no recording of a turn: {error}", path.display()))
    }

    /// How many requests were sent.
    pub fn requests(&self) -> usize {
        self.calls.iter().map(|call| call.exchanges.len()).sum()
    }

    pub(crate) fn exchanges(&self) -> Vec<Recorded> {
        self.calls.iter().flat_map(|call| call.exchanges.iter().cloned()).collect()
    }
}

impl RecordedCall {
    pub(crate) fn asked(
        input: &TurnInput,
        call: &Call,
        known: &BTreeMap<String, KnownPart>,
        granted: &Granted,
    ) -> Self {
        let fingerprint = |label: &String| {
            let secret = secrets::get(granted, label).ok()?;
            Some((label.clone(), secrets::fingerprint(&input.owner_key, &secret)))
        };
        Self {
            call: call.clone(),
            known: known.clone(),
            granted: granted.clone(),
            fingerprints: granted.secrets.keys().filter_map(fingerprint).collect(),
            exchanges: Vec::new(),
            reply: String::new(),
            effect: Effect::default(),
        }
    }

    pub(crate) fn answered(mut self, exchanges: Vec<Recorded>, outcome: &Outcome) -> Self {
        self.exchanges = exchanges;
        self.reply = format!("{:?}", outcome.reply);
        self.effect = outcome.effect;
        self
    }

    /// What is first different in another run of the same call.
    pub(crate) fn difference(&self, again: &Self) -> Option<String> {
        let name = describe(&self.call).0;
        let shown = |one: &Recorded| {
            let Recorded { endpoint, method, target, body, .. } = one;
            format!("{method} {target} of endpoint {endpoint} {body}").trim_end().to_owned()
        };
        let most = self.exchanges.len().max(again.exchanges.len());
        for number in 0..most {
            let (before, now) = (self.exchanges.get(number).map(shown), again.exchanges.get(number).map(shown));
            if before != now {
                let told = |one: Option<String>| one.unwrap_or_else(|| "nothing".to_owned());
                return Some(format!("{name}: request {} was {} and is now {}", number + 1, told(before), told(now)));
            }
        }
        if self.reply != again.reply {
            return Some(format!("{name}: the answer was {} and is now {}", self.reply, again.reply));
        }
        (self.effect != again.effect)
            .then(|| format!("{name}: its effect was {:?} and is now {:?}", self.effect, again.effect))
    }
}

/// Writes a turn down when it ends.
pub(crate) struct Recorder {
    file: PathBuf,
    recording: Recording,
}

impl Recorder {
    /// For turns about objects that ask for it, where recordings have a place.
    pub(crate) fn of(module: &Loaded, name: &str, input: &TurnInput) -> Option<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let directory = module.engine.config.recordings.as_ref()?;
        let subject = &input.subject;
        subject.annotation(RECORD)?;
        let slot = COUNTER.fetch_add(1, Ordering::Relaxed) % KEPT;
        let file = format!("{}.{}.{}.{slot}.json", subject.kind(), subject.namespace(), subject.name());
        let recording = Recording {
            module: name.to_owned(),
            digest: module.digest.clone(),
            input: input.clone(),
            calls: Vec::new(),
        };
        Some(Self { file: directory.join(file), recording })
    }

    pub(crate) fn push(&mut self, call: RecordedCall) {
        self.recording.calls.push(call);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let write = || -> std::io::Result<()> {
            if let Some(directory) = self.file.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            options.open(&self.file)?.write_all(&serde_json::to_vec_pretty(&self.recording)?)
        };
        match write() {
            Ok(()) => tracing::info!(file = %self.file.display(), "a turn was recorded"),
            Err(error) => tracing::warn!(file = %self.file.display(), %error, "a turn cannot be recorded"),
        }
    }
}
