//! Tokens of service accounts: made on request (`kubectl create token`), believed as long as their account is there.
//!
//! Only this server reads them, so they are signed with a secret of its own (HS256) and not with a key that others could
//! check. A server without a kept secret makes one at its start, and what it signed before is worth nothing then.

use super::impersonation::{service_account, service_account_groups};
use super::{AUTHENTICATED, same};
use crate::options::User;
use crate::server::ApiServer;
use crate::store::Key;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

/// Who makes the tokens, and for whom they are where nobody says: this server.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The header of every token.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

/// The secret that tokens are signed with.
#[derive(Clone)]
pub(crate) struct Signer(Hmac<Sha256>);

impl Signer {
    /// With this secret, or with one that nobody knows.
    pub fn new(secret: Option<&[u8]>) -> Signer {
        let random;
        let secret = match secret {
            Some(secret) => secret,
            None => {
                random = [*uuid::Uuid::new_v4().as_bytes(), *uuid::Uuid::new_v4().as_bytes()].concat();
                &random
            }
        };
        // Every length is a key.
        match Hmac::<Sha256>::new_from_slice(secret) {
            Ok(mac) => Signer(mac),
            Err(_) => Signer(Hmac::<Sha256>::new(&Default::default())),
        }
    }

    fn signature(&self, text: &str) -> Vec<u8> {
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(self.signature(&text));
        format!("{text}.{signature}")
    }

    /// The claims of a token that was signed here.
    pub fn read(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !same(&self.signature(text), &signature) {
            return None;
        }
        let (header, claims) = text.split_once('.')?;
        if URL_SAFE_NO_PAD.decode(header).ok()? != HEADER.as_bytes() {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

/// The claims of a service account's token. Times in seconds since 1970.
pub(crate) fn claims(
    account: &Value,
    audiences: &[String],
    now: i64,
    seconds: i64,
    bound: Option<(&str, Value)>,
) -> Value {
    let text = |pointer: &str| account.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name, uid) = (text("/metadata/namespace"), text("/metadata/name"), text("/metadata/uid"));
    let mut own = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}});
    if let (Some((kind, reference)), Some(own)) = (bound, own.as_object_mut()) {
        own.insert(kind.to_owned(), reference);
    }
    json!({
        "aud": audiences, "exp": now + seconds, "iat": now, "iss": ISSUER, "jti": uuid::Uuid::new_v4().to_string(),
        "kubernetes.io": own, "nbf": now, "sub": format!("system:serviceaccount:{namespace}:{name}"),
    })
}

impl ApiServer {
    /// Whose a service account's token is. `audience`: for whom it has to be, else for this server.
    pub(crate) fn account_of(&self, token: &str, audiences: &[String]) -> Option<User> {
        let claims = self.inner.signer.read(token)?;
        let now = jiff::Timestamp::now().as_second();
        let number = |name: &str| claims.get(name).and_then(Value::as_i64);
        if number("exp")? <= now || number("nbf")? > now + 60 {
            return None;
        }
        let listed = claims.get("aud").and_then(Value::as_array)?;
        let is_for = |wanted: &str| listed.iter().any(|own| own.as_str() == Some(wanted));
        if !(if audiences.is_empty() { is_for(ISSUER) } else { audiences.iter().any(|wanted| is_for(wanted)) }) {
            return None;
        }
        let subject = claims.get("sub").and_then(Value::as_str)?;
        let (namespace, name) = service_account(subject)?;
        self.is_there("serviceaccounts", namespace, claims.pointer("/kubernetes.io/serviceaccount")?)?;
        for (kind, collection, of) in
            [("pod", "pods", namespace), ("secret", "secrets", namespace), ("node", "nodes", "")]
        {
            // A Node that a Pod runs on is told beside it, and binds nothing.
            let beside = kind == "node" && claims.pointer("/kubernetes.io/pod").is_some();
            if let Some(reference) = claims.pointer(&format!("/kubernetes.io/{kind}")).filter(|_| !beside) {
                self.is_there(collection, of, reference)?;
            }
        }
        let mut groups = service_account_groups(namespace);
        groups.push(AUTHENTICATED.to_owned());
        Some(User { name: format!("system:serviceaccount:{namespace}:{name}"), groups })
    }

    /// Whether what a token is bound to is there, and is the same as then.
    fn is_there(&self, collection: &str, namespace: &str, reference: &Value) -> Option<()> {
        let text = |name: &str| reference.get(name).and_then(Value::as_str);
        let object = self.inner.options.store.get(collection, &Key::new(namespace, text("name")?))?;
        let uid = object.value_without_managed_fields();
        let uid = uid.pointer("/metadata/uid").and_then(Value::as_str);
        (!object.meta.deleting && uid == text("uid")).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_signed_elsewhere_or_changed_is_not_believed() {
        let (own, other) = (Signer::new(None), Signer::new(None));
        let token = own.sign(&json!({"sub": "a"}));
        assert_eq!(own.read(&token), Some(json!({"sub": "a"})));
        assert_eq!(other.read(&token), None);
        let (head, signature) = token.rsplit_once('.').unwrap();
        let forged = format!("{}.{}", head.split('.').next().unwrap(), URL_SAFE_NO_PAD.encode(r#"{"sub":"b"}"#));
        assert_eq!(own.read(&format!("{forged}.{signature}")), None);
        assert_eq!(own.read("nonsense"), None);
        assert_eq!(Signer::new(Some(b"x")).read(&Signer::new(Some(b"x")).sign(&json!(1))), Some(json!(1)));
    }
}
