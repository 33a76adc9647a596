//! Secrets as a guest arranges them: handles in the store, bytes that never enter guest memory.

use std::fmt;

use bytes::Bytes;
use capstan_core::contract::Granted;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The largest secret that may come out of arranging others, in bytes.
const MAX_SECRET: usize = 16 << 20;
/// What the secrets of one turn may add up to, in bytes. The guest can make as many as it likes, on the host's memory.
const MAX_TOTAL: usize = 64 << 20;
/// The most handles of one turn.
const MAX_HANDLES: usize = 4096;

/// A secret behind a handle.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Where it comes from, for records.
    pub(crate) label: String,
    pub(crate) bytes: Bytes,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, {} bytes)", self.label, self.bytes.len())
    }
}

/// How a secret can be dressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    Base64,
    JsonString,
    FormUrlencoded,
    Percent,
}

/// A file or directory of an archive.
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// Why a label gives no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSecret {
    Unbound,
    Missing,
}

/// Counts what a turn's secrets take.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    bytes: usize,
    handles: usize,
}

impl Quota {
    /// Accounts for one more handle.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        self.handles += 1;
        if bytes > MAX_SECRET || self.bytes > MAX_TOTAL || self.handles > MAX_HANDLES {
            return Err(format!(
                "the turn's secrets take more than {MAX_SECRET} bytes each, {MAX_TOTAL} bytes or {MAX_HANDLES} handles in all"
            ));
        }
        Ok(())
    }
}

/// Whether a secret of this size is allowed.
pub(crate) fn fits(bytes: usize) -> Result<(), String> {
    if bytes > MAX_SECRET { Err(format!("a secret is larger than {MAX_SECRET} bytes")) } else { Ok(()) }
}

/// The secret of a label.
pub(crate) fn get(granted: &Granted, label: &str) -> Result<Secret, NoSecret> {
    if let Some(bytes) = granted.secrets.get(label) {
        return Ok(Secret { label: label.to_owned(), bytes: Bytes::copy_from_slice(bytes) });
    }
    let whole = label.split_once('/').map_or(label, |(whole, _)| whole);
    let missing = granted.missing_secrets.iter().any(|m| m == label || m == whole);
    Err(if missing { NoSecret::Missing } else { NoSecret::Unbound })
}

/// A digest that is different for every object.
pub(crate) fn fingerprint(owner_key: &str, secret: &Secret) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(owner_key.as_bytes()) else { return String::new() };
    mac.update(secret.label.as_bytes());
    mac.update(&[0]);
    mac.update(&secret.bytes);
    mac.finalize().into_bytes().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The secret in other clothes.
pub(crate) fn encode(secret: &Secret, encodings: &[Encoding]) -> Result<Secret, String> {
    let mut bytes = secret.bytes.clone();
    if encodings.len() > 8 {
        return Err("more than 8 encodings of one secret".to_owned());
    }
    for encoding in encodings {
        bytes = encode_once(&bytes, *encoding)?.into();
        if bytes.len() > MAX_SECRET {
            return Err(format!("an encoded secret is larger than {MAX_SECRET} bytes"));
        }
    }
    Ok(Secret { label: secret.label.clone(), bytes })
}

fn encode_once(bytes: &[u8], encoding: Encoding) -> Result<Vec<u8>, String> {
    use base64::Engine as _;
    Ok(match encoding {
        Encoding::Gzip => {
            use std::io::Write as _;
            // Neither time stamp nor operating system: the same bytes in, the same bytes out.
            let mut gzip =
                flate2::GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), flate2::Compression::best());
            gzip.write_all(bytes).and_then(|()| gzip.finish()).map_err(|e| format!("gzip: {e}"))?
        }
        Encoding::Base64 => base64::engine::general_purpose::STANDARD.encode(bytes).into_bytes(),
        Encoding::JsonString => {
            let text = std::str::from_utf8(bytes)
                .map_err(|_| "a secret that is no UTF-8 cannot become a JSON string".to_owned())?;
            let quoted = serde_json::to_string(text).map_err(|e| format!("json-string: {e}"))?;
            quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().as_bytes().to_vec()
        }
        Encoding::FormUrlencoded => {
            percent(bytes, |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'*'), true)
        }
        Encoding::Percent => {
            percent(bytes, |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~'), false)
        }
    })
}

fn percent(bytes: &[u8], plain: impl Fn(u8) -> bool, plus: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b' ' if plus => out.push(b'+'),
            _ if plain(byte) => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}

/// A part of a secret.
pub(crate) fn slice(secret: &Secret, start: u64, length: u64) -> Result<Secret, String> {
    let size = secret.bytes.len() as u64;
    let end = start.checked_add(length).filter(|end| *end <= size);
    let (Some(end), Ok(start)) = (end.and_then(|e| usize::try_from(e).ok()), usize::try_from(start)) else {
        return Err(format!("a slice of {length} bytes from {start} reaches past the end of a secret of {size} bytes"));
    };
    Ok(Secret { label: secret.label.clone(), bytes: secret.bytes.slice(start..end) })
}

/// A tar archive (ustar, GNU long names) whose bytes depend on its members only. A path that ends with `/` is a directory.
pub(crate) fn tar(members: &[Member]) -> Result<Vec<u8>, String> {
    let mut archive = tar::Builder::new(Vec::new());
    for member in members {
        let path = member.path.trim_start_matches('/');
        if path.is_empty() || path.split('/').any(|segment| segment == "..") {
            return Err(format!("{:?} is no path for an archive", member.path));
        }
        let mut header = tar::Header::new_gnu();
        header.set_mode(member.mode & 0o7777);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_entry_type(if path.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular });
        header.set_size(member.content.len() as u64);
        archive.append_data(&mut header, path, member.content.as_slice()).map_err(|e| format!("{path}: {e}"))?;
    }
    archive.into_inner().map_err(|e| format!("the archive cannot be finished: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn secret(bytes: &[u8]) -> Secret {
        Secret { label: "s".into(), bytes: Bytes::copy_from_slice(bytes) }
    }

    fn encoded(bytes: &[u8], encodings: &[Encoding]) -> Vec<u8> {
        encode(&secret(bytes), encodings).unwrap().bytes.to_vec()
    }

    #[test]
    fn encodings_are_those_of_the_contract() {
        assert_eq!(encoded(b"a b/~*\xff", &[Encoding::Percent]), b"a%20b%2F~%2A%FF");
        assert_eq!(encoded(b"a b/~*\xff", &[Encoding::FormUrlencoded]), b"a+b%2F%7E*%FF");
        assert_eq!(encoded(b"a\"\n", &[Encoding::JsonString]), br#"a\"\n"#);
        assert_eq!(encoded(b"ab", &[Encoding::Base64, Encoding::Percent]), b"YWI%3D");
        assert!(encode(&secret(b"\xff"), &[Encoding::JsonString]).is_err());
        let gzip = encoded(b"hello", &[Encoding::Gzip]);
        assert_eq!(gzip, encoded(b"hello", &[Encoding::Gzip]));
        assert_eq!(gzip[4..8], [0; 4], "no time stamp");
        let mut back = String::new();
        flate2::read::GzDecoder::new(gzip.as_slice()).read_to_string(&mut back).unwrap();
        assert_eq!(back, "hello");
    }

    #[test]
    fn slices_stay_inside() {
        assert_eq!(slice(&secret(b"abcdef"), 2, 3).unwrap().bytes, "cde");
        assert_eq!(slice(&secret(b"abc"), 3, 0).unwrap().bytes, "");
        assert!(slice(&secret(b"abc"), 2, 2).is_err());
        assert!(slice(&secret(b"abc"), u64::MAX, 2).is_err());
    }

    #[test]
    fn labels_are_bound_missing_or_neither() {
        let mut granted = Granted::default();
        granted.secrets.insert("ca/tls.crt".into(), b"x".to_vec());
        granted.missing_secrets = vec!["token".into(), "sa/tls.key".into()];
        assert!(get(&granted, "ca/tls.crt").is_ok());
        assert_eq!(get(&granted, "ca/tls.key"), Err(NoSecret::Unbound));
        assert_eq!(get(&granted, "token"), Err(NoSecret::Missing));
        assert_eq!(get(&granted, "token/value"), Err(NoSecret::Missing));
        assert_eq!(get(&granted, "sa/tls.key"), Err(NoSecret::Missing));
        assert_eq!(get(&granted, "sa/tls.crt"), Err(NoSecret::Unbound));
    }

    #[test]
    fn fingerprints_tell_objects_and_rotations_apart() {
        let one = fingerprint("key-1", &secret(b"a"));
        assert_eq!(one, fingerprint("key-1", &secret(b"a")));
        assert_ne!(one, fingerprint("key-2", &secret(b"a")));
        assert_ne!(one, fingerprint("key-1", &secret(b"b")));
    }

    #[test]
    fn an_archive_is_deterministic_and_cannot_climb() {
        let member = |path: &str, content: &[u8]| Member { path: path.into(), mode: 0o640, content: content.to_vec() };
        let long = format!("{}/x", "d".repeat(150));
        let members = || vec![member("etc/", b""), member("/etc/a", b"hello"), member(&long, b"")];
        let bytes = tar(&members()).unwrap();
        assert_eq!(bytes, tar(&members()).unwrap());
        let mut read = tar::Archive::new(bytes.as_slice());
        let entries: Vec<_> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap(), text)
            })
            .collect();
        assert_eq!(entries[1], ("etc/a".to_owned(), 0o640, "hello".to_owned()));
        assert_eq!(entries[2].0, long);
        assert!(tar(&[member("a/../../b", b"")]).is_err() && tar(&[member("/", b"")]).is_err());
    }

    #[test]
    fn a_turn_cannot_fill_the_host_s_memory() {
        let mut quota = Quota::default();
        assert!(quota.take(MAX_SECRET + 1).is_err());
        let mut quota = Quota::default();
        let fitting = (0..100).take_while(|_| quota.take(MAX_SECRET).is_ok()).count();
        assert_eq!(fitting, MAX_TOTAL / MAX_SECRET);
        assert!(!format!("{:?}", secret(b"hunter2")).contains("hunter2"));
    }
}
