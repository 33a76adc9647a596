//! Every namespace has a ServiceAccount `default`, which is what a Pod runs as that names none.

use crate::rest::now;
use crate::server::ApiServer;
use crate::store::{Change, Draft, Key};
use serde_json::json;

/// Where service accounts are.
pub(super) const COLLECTION: &str = "serviceaccounts";
/// The name of the account.
pub(super) const DEFAULT: &str = "default";

impl ApiServer {
    /// Makes the default account of a namespace when there is none.
    pub(super) fn give_account(&self, namespace: &str) {
        let store = &self.inner.options.store;
        let key = Key::new(namespace, DEFAULT);
        let Some(resource) = self.catalog().of_collection(COLLECTION).cloned() else { return };
        if store.get(COLLECTION, &key).is_some() {
            return;
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT, "namespace": namespace,
            "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now()}});
        // It is there already, or the namespace is going or gone: there is nothing to do then.
        if let Ok(committed) = store.commit(&resource.collection, &key, Change::Create(Draft::new(&account))) {
            self.committed(&resource, None, &committed, false);
        }
    }
}
