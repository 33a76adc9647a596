//! What was made of objects of the store (compiled expressions), kept until the objects change.

use crate::store::Object;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// By name.
pub(crate) struct Known<T>(Mutex<HashMap<Box<str>, Made<T>>>);

/// What was made of an object, with the revision that it had.
type Made<T> = (u64, Arc<T>);

impl<T> Default for Known<T> {
    fn default() -> Known<T> {
        Known(Mutex::default())
    }
}

impl<T> Known<T> {
    /// What was made of all objects of a collection, in their order.
    pub fn of(&self, objects: &[Arc<Object>], make: impl Fn(&Object) -> T) -> Vec<Arc<T>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = objects.iter().map(|object| {
            if let Some((revision, made)) = known.get(&object.key.name)
                && *revision == object.revision
            {
                return made.clone();
            }
            let made = Arc::new(make(object));
            known.insert(object.key.name.clone(), (object.revision, made.clone()));
            made
        });
        let all: Vec<Arc<T>> = all.collect();
        if known.len() > objects.len() {
            known.retain(|name, _| objects.iter().any(|object| object.key.name == *name));
        }
        all
    }
}
