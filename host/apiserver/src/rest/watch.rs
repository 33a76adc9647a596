//! Watches: what happened since a revision, and what happens, until the client or the server ends it.

use super::Call;
use super::read::{too_old, unreadable};
use super::render::{self, Include};
use crate::catalog::{Resource, Version};
use crate::request::AnswerForm;
use crate::response::{self, ResponseBody};
use crate::schema::FieldError;
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Event, EventKind, Object, OutOfRange, Store};
use bytes::Bytes;
use http::Response;
use rand::Rng;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many events are taken from the history at a time.
const BATCH: usize = 256;
/// How often a quiet watch is told how far it has come.
const BOOKMARK: Duration = Duration::from_secs(60);
/// How long a watch lasts when the client does not say; somewhere between this and twice this, so that not all end at once.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The annotation of the bookmark after which a streamed list is complete.
const INITIAL_END: &str = "k8s.io/initial-events-end";

struct Watch {
    store: Store,
    resource: Arc<Resource>,
    version: Arc<Version>,
    namespace: String,
    selector: Selector,
    form: AnswerForm,
    include: Include,
    bookmarks: bool,
    /// Told up to here.
    cursor: u64,
    signal: Receiver<u64>,
    /// What there was at the beginning and is not told yet; rendered as the client takes it.
    initial: std::vec::IntoIter<Arc<Object>>,
    /// A bookmark follows what there was.
    mark_end: bool,
    lean: bool,
    ready: VecDeque<Bytes>,
    definitions_sent: bool,
    ends: Instant,
    next_bookmark: Instant,
    shutdown: Option<CancellationToken>,
    over: bool,
}

impl Call<'_> {
    pub(super) async fn watch(&self) -> Result<Response<ResponseBody>, Status> {
        let form = self.form()?;
        let selector = self.selector()?;
        let asked = self.query.get("resourceVersion").map(|text| text.parse::<u64>().map_err(|_| unreadable(text)));
        let asked = asked.transpose().map_err(|why| Status::new(500, "", why))?;
        let initial = self.query.flag("sendInitialEvents");
        let bookmarks = self.query.flag("allowWatchBookmarks") == Some(true);
        self.check_initial(initial)?;
        let timeout = match self.query.number("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()),
            _ => rand::rng().random_range(TIMEOUT..TIMEOUT * 2),
        };
        let store = self.server.inner.options.store.clone();
        // Subscribed before anything is read, so that nothing falls between.
        let signal = store.subscribe(&self.resource.collection);
        let mut watch = Watch {
            resource: self.resource.clone(),
            version: self.version.clone(),
            namespace: self.path.namespace.clone(),
            selector,
            form,
            include: Include::of(self),
            bookmarks,
            cursor: 0,
            signal,
            initial: Vec::new().into_iter(),
            mark_end: false,
            lean: self.lean,
            ready: VecDeque::new(),
            definitions_sent: false,
            ends: Instant::now() + timeout,
            next_bookmark: Instant::now() + BOOKMARK,
            shutdown: self.shutdown.clone(),
            over: false,
            store,
        };
        let with_state = initial == Some(true) || (initial.is_none() && asked.is_none_or(|asked| asked == 0));
        if with_state {
            if let Some(asked) = asked.filter(|asked| *asked > watch.store.revision()) {
                return Err(Status::too_large_revision(asked, watch.store.revision()));
            }
            watch.begin_with_state(initial == Some(true)).await?;
        } else {
            watch.cursor = asked.filter(|asked| *asked > 0).unwrap_or_else(|| watch.store.durable());
        }
        let mut answer = response::json(200, Bytes::new());
        *answer.body_mut() = ResponseBody::stream(futures::stream::unfold(watch, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((chunk, watch))
        }));
        Ok(answer)
    }

    fn check_initial(&self, initial: Option<bool>) -> Result<(), Status> {
        let matching = self.query.get("resourceVersionMatch");
        let forbidden =
            |field: &str, why: &str| Err(Status::invalid_options("List", &[FieldError::forbidden(field, why)]));
        match (initial, matching) {
            (Some(_), Some("NotOlderThan")) | (None, None) => Ok(()),
            (Some(_), _) => forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
            (None, Some(_)) => forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
        }
    }
}

impl Watch {
    /// Begins with what there is, as if it had just been added.
    async fn begin_with_state(&mut self, mark_end: bool) -> Result<(), Status> {
        let listing = self.store.list(&self.resource.collection, &self.namespace, None, None);
        let listing = listing.map_err(|_| Status::internal("the current state cannot be listed"))?;
        self.store.settled(listing.settled).await?;
        self.cursor = listing.revision.min(self.store.durable()).max(listing.settled);
        self.initial = listing.objects.into_iter();
        self.mark_end = mark_end && self.bookmarks;
        Ok(())
    }

    /// Tells more of what there was at the beginning. Whether there was more.
    fn tell_initial(&mut self) -> bool {
        while self.ready.len() < BATCH {
            let Some(object) = self.initial.next() else {
                if std::mem::take(&mut self.mark_end) {
                    self.bookmark(true);
                }
                break;
            };
            if self.selector.matches(&object) {
                self.tell("ADDED", &object);
            }
        }
        !self.ready.is_empty()
    }

    /// The next piece of the answer. None when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(first) = self.ready.pop_front() {
                return Some(self.gather(first));
            }
            if self.over {
                return None;
            }
            if self.tell_initial() {
                continue;
            }
            self.signal.borrow_and_update();
            match self.store.events(&self.resource.collection, self.cursor, BATCH) {
                Err(OutOfRange::TooOld { oldest }) => {
                    self.fail(&too_old(self.cursor, oldest));
                    continue;
                }
                // A revision of a state that is no more: start over.
                Err(OutOfRange::TooNew { current }) => {
                    self.fail(&too_old(self.cursor, current));
                    continue;
                }
                Ok((events, durable)) => {
                    self.cursor = match events.last() {
                        Some(last) if events.len() == BATCH => last.object.revision,
                        _ => self.cursor.max(durable),
                    };
                    for event in &events {
                        self.event(event);
                    }
                    if events.len() == BATCH || !self.ready.is_empty() {
                        continue;
                    }
                }
            }
            let shutdown = self.shutdown.clone();
            let stopped = async {
                match shutdown {
                    Some(shutdown) => shutdown.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.signal.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = tokio::time::sleep_until(self.ends.min(self.next_bookmark)) => {
                    let now = Instant::now();
                    if now >= self.ends {
                        return None;
                    }
                    self.next_bookmark = now + BOOKMARK;
                    if self.bookmarks {
                        if let Ok((events, durable)) = self.store.events(&self.resource.collection, self.cursor, 1)
                            && events.is_empty()
                        {
                            self.cursor = self.cursor.max(durable);
                        }
                        self.bookmark(false);
                    }
                }
                () = stopped => return None,
            }
        }
    }

    /// Puts what is ready into one piece, up to a size.
    fn gather(&mut self, first: Bytes) -> Bytes {
        if self.ready.is_empty() {
            return first;
        }
        let mut out = Vec::from(first);
        while out.len() < 64 << 10
            && let Some(next) = self.ready.pop_front()
        {
            out.extend_from_slice(&next);
        }
        Bytes::from(out)
    }

    fn event(&mut self, event: &Event) {
        if !self.namespace.is_empty() && *event.object.key.namespace != *self.namespace {
            return;
        }
        let before = event.previous.as_ref().filter(|previous| self.selector.matches(previous));
        let after = event.kind != EventKind::Deleted && self.selector.matches(&event.object);
        match (before, after) {
            (None, true) => self.tell("ADDED", &event.object),
            (Some(_), true) => self.tell("MODIFIED", &event.object),
            (Some(_), false) if event.kind == EventKind::Deleted => self.tell("DELETED", &event.object),
            // Out of the selector's sight: its last state in it, at the revision when it left.
            (Some(before), false) => self.tell("DELETED", &before.with_revision(event.object.revision)),
            (None, false) => {}
        }
    }

    fn tell(&mut self, kind: &str, object: &Object) {
        let definitions = !std::mem::replace(&mut self.definitions_sent, true);
        match render::object(&self.resource, &self.version, object, self.form, self.include, self.lean, definitions) {
            Ok(json) => self.frame(kind, &json),
            Err(status) => self.fail(&status),
        }
    }

    fn frame(&mut self, kind: &str, json: &[u8]) {
        let mut out = Vec::with_capacity(json.len() + 40);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        out.extend_from_slice(json);
        out.extend_from_slice(b"}\n");
        self.ready.push_back(Bytes::from(out));
    }

    fn fail(&mut self, status: &Status) {
        self.frame("ERROR", status.object().to_string().as_bytes());
        self.over = true;
    }

    fn bookmark(&mut self, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": self.cursor.to_string()});
        if initial_end && let Some(fields) = metadata.as_object_mut() {
            fields.insert("annotations".into(), json!({INITIAL_END: "true"}));
        }
        let object = match self.form {
            AnswerForm::Object => {
                json!({"kind": self.resource.kind, "apiVersion": self.version.api_version, "metadata": metadata})
            }
            AnswerForm::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            AnswerForm::Table => {
                let partial: Value =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                let rows = vec![json!({"cells": [], "object": partial})];
                render::table(None, rows, json!({"resourceVersion": self.cursor.to_string()}))
            }
        };
        self.frame("BOOKMARK", object.to_string().as_bytes());
    }
}
