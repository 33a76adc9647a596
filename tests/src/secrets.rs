//! A search of everything that a run has said for every secret of that run.
//!
//! A secret is looked for in pieces, so that a part of it is found as well, and in the clothes in which bytes go about: as they
//! are, base64 (at any place inside of something longer), percent-encoded, hexadecimal, and as a list of numbers.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The length of a piece in bytes. Anything of a secret that is twice as long holds a whole one.
pub const PIECE: usize = 12;
/// The shortest that is looked for.
const SHORTEST: usize = 8;

/// What must be found nowhere.
#[derive(Default)]
pub struct Secrets {
    /// By their first [`SHORTEST`] bytes: pieces, and what they are of.
    pieces: HashMap<[u8; SHORTEST], Vec<(Vec<u8>, String)>>,
    known: BTreeSet<Vec<u8>>,
}

impl Secrets {
    /// How many secrets are looked for.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Looks for this, all of which is secret.
    pub fn add(&mut self, what: &str, secret: &[u8]) {
        if secret.len() < SHORTEST || !self.known.insert(secret.to_vec()) {
            return;
        }
        for piece in cut(secret, PIECE) {
            self.piece(what, piece);
            let hexadecimal: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
            self.piece(what, hexadecimal.as_bytes());
            let numbers: Vec<String> = piece.iter().map(u8::to_string).collect();
            self.piece(what, numbers.join(", ").as_bytes());
            self.piece(what, numbers.join(",").as_bytes());
        }
        let percent: String = secret
            .iter()
            .map(|byte| match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(*byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect();
        cut(percent.as_bytes(), PIECE).for_each(|piece| self.piece(what, piece));
        // What stands before it shifts how it comes out; the characters that depend on its neighbours are left out.
        for before in 0..3 {
            let shifted = [&[0; 3][..before], secret].concat();
            let encoded = STANDARD.encode(&shifted);
            let (first, last) = ((before * 8).div_ceil(6), shifted.len() * 8 / 6);
            let inner = encoded.as_bytes().get(first..last).unwrap_or_default();
            cut(inner, PIECE).for_each(|piece| self.piece(what, piece));
        }
    }

    fn piece(&mut self, what: &str, piece: &[u8]) {
        let Some(first) = piece.first_chunk::<SHORTEST>() else { return };
        let all = self.pieces.entry(*first).or_default();
        if !all.iter().any(|(known, _)| known == piece) {
            all.push((piece.to_vec(), what.to_owned()));
        }
    }

    /// Looks for what is secret in a text: private keys (not their public halves), bootstrap tokens, certificate keys, and what
    /// of that is in it as base64.
    pub fn add_text(&mut self, what: &str, text: &str) {
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----") {
                let body: String = lines.by_ref().take_while(|line| !line.starts_with("-----END ")).collect();
                if let Ok(der) = STANDARD.decode(&body) {
                    self.add_key(what, &der, &body);
                }
                continue;
            }
            for word in line.split(|letter: char| letter.is_whitespace() || "\"',:{}[]".contains(letter)) {
                if let Some(secret) = token(word) {
                    self.add(&format!("{what}: bootstrap token"), secret.as_bytes());
                } else if word.len() == 64 && line.starts_with("certificateKey") {
                    self.add(&format!("{what}: certificate key"), word.as_bytes());
                } else if word.len() > 100
                    && let Ok(Ok(inner)) = STANDARD.decode(word).map(String::from_utf8)
                {
                    self.add_text(what, &inner);
                }
            }
        }
    }

    /// The secret part of a private key, as bytes and as its PEM shows it.
    fn add_key(&mut self, what: &str, der: &[u8], body: &str) {
        // EC: the scalar is the first OCTET STRING of 32 bytes. RSA: modulus and exponent come first, and are public.
        let scalar = der.windows(2).position(|pair| pair == [4, 32]).filter(|_| der.len() < 200);
        let range = scalar.map_or(der.len() * 2 / 5..der.len() - 12, |at| at + 2..at + 34);
        self.add(&format!("{what}: private key"), &der[range.clone()]);
        let (first, last) = ((range.start * 8).div_ceil(6), range.end * 8 / 6);
        // As lines of 64 characters: a piece lies in one of them.
        for at in (first..last).step_by(1) {
            if at % 64 + PIECE <= 64 && (at % 64).is_multiple_of(PIECE) && at + PIECE <= last {
                self.add(&format!("{what}: private key in PEM"), &body.as_bytes()[at..at + PIECE]);
            }
        }
    }

    /// Looks for what is secret in a Kubernetes Secret.
    pub fn add_object(&mut self, secret: &Value) {
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let Ok(bytes) = STANDARD.decode(value.as_str().unwrap_or_default()) else { continue };
            let (what, text) = (format!("Secret {name}, {key}"), String::from_utf8_lossy(&bytes).into_owned());
            if ["secret", "token-secret", "password", "certificate-key"].contains(&key.as_str()) {
                self.add(&what, &bytes);
            }
            self.add_text(&what, &text);
        }
    }

    /// Which secrets are in what was said.
    pub fn found_in(&self, said: &[u8]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (at, first) in said.windows(SHORTEST).enumerate() {
            let Some(pieces) = first.first_chunk::<SHORTEST>().and_then(|first| self.pieces.get(first)) else {
                continue;
            };
            for (_, what) in pieces.iter().filter(|(piece, _)| said[at..].starts_with(piece)) {
                let around = &said[at.saturating_sub(60)..(at + 8).min(said.len())];
                found.insert(format!("{what} (…{}…)", String::from_utf8_lossy(around).replace('\n', " ")));
            }
        }
        found
    }
}

/// Pieces that cover it, the last one its end.
fn cut(bytes: &[u8], length: usize) -> impl Iterator<Item = &[u8]> {
    let end = bytes.len().saturating_sub(length);
    bytes.chunks_exact(length).chain(std::iter::once(&bytes[end..]))
}

/// The secret part of a bootstrap token.
fn token(word: &str) -> Option<&str> {
    let (id, secret) = word.split_once('.')?;
    let fits = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (fits(id, 6) && fits(secret, 16)).then_some(secret)
}
