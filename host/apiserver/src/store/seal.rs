//! Encryption at rest: Secrets are in the file as AES-256-GCM under a key that is not in the state directory.
//!
//! The first key writes, all of them read: whoever gives a new key before the old one has everything written anew under it at
//! the next start, and can leave the old one out then. Each value is bound to its row, so that none can be put in another's
//! place.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

/// What is kept encrypted.
pub(super) const COLLECTION: &str = "secrets";
/// How encrypted values begin; JSON never does.
const MAGIC: &[u8] = b"\0enc1";
/// How a key is told from others: the beginning of its digest.
const ID: usize = 8;

/// Keys for Secrets in a state file. Their bytes are shown to nobody.
pub struct Keys(Vec<([u8; ID], LessSafeKey)>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// Of these bytes, 32 for each; the first is for writing. None where one has another length, or there are none.
    pub fn new(keys: &[Vec<u8>]) -> Option<Keys> {
        let all: Option<Vec<([u8; ID], LessSafeKey)>> = keys
            .iter()
            .map(|bytes| {
                let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).ok()?);
                let digest = Sha256::digest(bytes);
                let id = AsRef::<[u8]>::as_ref(&digest).first_chunk::<ID>().copied()?;
                Some((id, key))
            })
            .collect();
        all.filter(|all| !all.is_empty()).map(Keys)
    }

    /// Whether a value is encrypted under the key that writes.
    pub(super) fn is_current(&self, value: &[u8]) -> bool {
        let first = self.0.first().map(|(id, _)| id.as_slice());
        value.strip_prefix(MAGIC).and_then(|rest| rest.get(..ID)) == first
    }

    /// A value as it is written to the row. None when the system has no random numbers.
    pub(super) fn seal(&self, row: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let (id, key) = self.0.first()?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = value.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(row), &mut sealed).ok()?;
        Some([MAGIC, id.as_slice(), nonce.as_slice(), sealed.as_slice()].concat())
    }
}

/// A value of the row as it was before it was written; as it is when it is not encrypted.
pub(super) fn open(keys: Option<&Keys>, row: &[u8], value: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let Some(rest) = value.strip_prefix(MAGIC) else { return Ok(value) };
    let Some((id, rest)) = rest.split_first_chunk::<ID>() else { return Err("an encrypted Secret is cut short") };
    let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_LEN>() else {
        return Err("an encrypted Secret is cut short");
    };
    let key = keys.and_then(|keys| keys.0.iter().find(|(own, _)| own == id));
    let Some((_, key)) = key else {
        return Err("its Secrets are encrypted with a key that was not given (--encryption-key-file)");
    };
    let mut sealed = sealed.to_vec();
    let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(row), &mut sealed);
    opened.map(|value| value.to_vec()).map_err(|_| "an encrypted Secret was changed by somebody, or moved")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_under_its_key_and_in_its_row_only() {
        let (old, new) = (vec![1; 32], vec![2; 32]);
        let first = Keys::new(std::slice::from_ref(&old)).unwrap();
        let sealed = first.seal(b"row", b"{\"a\":1}").unwrap();
        assert!(!sealed.windows(3).any(|part| part == b"\"a\""));
        assert_eq!(open(Some(&first), b"row", sealed.clone()).unwrap(), b"{\"a\":1}");
        assert!(open(Some(&first), b"other", sealed.clone()).is_err());
        assert!(open(None, b"row", sealed.clone()).unwrap_err().contains("--encryption-key-file"));
        let both = Keys::new(&[new.clone(), old]).unwrap();
        assert!(first.is_current(&sealed) && !both.is_current(&sealed) && !both.is_current(b"{}"));
        assert_eq!(open(Some(&both), b"row", sealed.clone()).unwrap(), b"{\"a\":1}");
        assert!(open(Some(&Keys::new(&[new]).unwrap()), b"row", sealed).is_err());
        assert_eq!(open(None, b"row", b"{}".to_vec()).unwrap(), b"{}");
        assert!(Keys::new(&[vec![1; 31]]).is_none() && Keys::new(&[]).is_none());
    }
}
