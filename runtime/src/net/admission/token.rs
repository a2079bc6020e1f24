//! Tokens: what they are, how people write them, and the book of those that are valid.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Admission, Newcomer, Refusal};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::SystemError;
use crate::net::security::ClusterIdentity;

/// The beginning of a token.
const PREFIX: &str = "odeon1";

const SECRET_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// The token with which a machine becomes a node: a secret, and whose certificate to trust. Written
/// as `odeon1.<secret>.<hash of the authority>`; whoever reads it can join, so it is kept like a
/// password.
#[derive(Clone)]
pub struct JoinToken {
    secret: [u8; SECRET_BYTES],
    /// SHA-256 of the authority's certificate.
    authority: [u8; HASH_BYTES],
}

impl JoinToken {
    /// A new secret for a cluster.
    ///
    /// # Errors
    /// The cluster's certificate cannot be read.
    pub fn generate(cluster: &ClusterIdentity) -> Result<Self, SystemError> {
        Ok(Self {
            secret: rand::random(),
            authority: sha256(&cluster.authority()?),
        })
    }

    /// The hash of the secret, which the head keeps.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash::of(&self.secret)
    }

    pub(super) const fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Returns true if a certificate is that of the cluster's authority.
    pub(super) fn names(&self, certificate: &[u8]) -> bool {
        sha256(certificate) == self.authority
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("authority", &base32(&self.authority))
            .finish_non_exhaustive()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secret, authority) = (base32(&self.secret), base32(&self.authority));
        write!(f, "{PREFIX}.{secret}.{authority}")
    }
}

/// Text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this is no token: one is `{PREFIX}.`, 26 letters and digits, a dot and 52 more; copy all of it"
)]
pub struct BadToken;

impl FromStr for JoinToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let mut parts = text.trim().split('.');
        let (prefix, secret, authority) = (parts.next(), parts.next(), parts.next());
        if prefix != Some(PREFIX) || parts.next().is_some() {
            return Err(BadToken);
        }
        Ok(Self {
            secret: secret.and_then(from_base32).ok_or(BadToken)?,
            authority: authority.and_then(from_base32).ok_or(BadToken)?,
        })
    }
}

/// The SHA-256 of a token's secret. Equality takes the same time wherever two differ.
#[derive(Clone, Copy)]
pub struct SecretHash([u8; HASH_BYTES]);

impl SecretHash {
    pub(super) fn of(secret: &[u8]) -> Self {
        Self(sha256(secret))
    }
}

impl fmt::Display for SecretHash {
    /// As hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        let differ = |all, (a, b): (&u8, &u8)| all | (a ^ b);
        std::hint::black_box(self.0.iter().zip(&other.0).fold(0, differ)) == 0
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash")
    }
}

/// The tokens of a cluster that are valid, each for some time and so many nodes. Clones share them.
#[derive(Clone, Default)]
pub struct Tokens {
    book: std::sync::Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    issued: Vec<Issued>,
    told: Vec<u8>,
    /// Names that were given out, and until when they are kept for whoever has them.
    names: HashMap<String, Timestamp>,
}

struct Issued {
    secret: SecretHash,
    expires: Timestamp,
    uses_left: u32,
}

/// The time for which a token that has expired or was used up is remembered, so that it is called
/// so.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// The time that a newcomer may take from its certificate to its link, before its name is free
/// again.
const NAME_KEPT: Duration = Duration::from_secs(60);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("issued", &self.book.lock().issued.len())
            .finish_non_exhaustive()
    }
}

impl Tokens {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every newcomer is told this (256 KiB at most).
    pub fn tell(&self, told: impl Into<Vec<u8>>) {
        self.book.lock().told = told.into();
    }

    /// A new token, for so many nodes that join within this time.
    ///
    /// # Errors
    /// The cluster's certificate cannot be read.
    pub fn issue(
        &self,
        cluster: &ClusterIdentity,
        valid: Duration,
        uses: u32,
    ) -> Result<JoinToken, SystemError> {
        let token = JoinToken::generate(cluster)?;
        self.book.lock().issued.push(Issued {
            secret: token.secret_hash(),
            expires: Clock::now().after(valid),
            uses_left: uses,
        });
        Ok(token)
    }

    /// Nobody joins with this token any more. Returns true if it was known.
    pub fn revoke(&self, token: &JoinToken) -> bool {
        let secret = token.secret_hash();
        let issued = &mut self.book.lock().issued;
        let before = issued.len();
        issued.retain(|one| one.secret != secret);
        issued.len() < before
    }
}

impl Book {
    fn judge(&mut self, newcomer: &Newcomer<'_>, now: Timestamp) -> Result<Vec<u8>, Refusal> {
        self.issued
            .retain(|one| now < one.expires.after(REMEMBERED));
        self.names.retain(|_, until| now < *until);
        // All are looked at, so that the time tells nothing.
        let same = self
            .issued
            .iter_mut()
            .filter(|one| one.secret == newcomer.secret);
        let one = same.last().ok_or(Refusal::WrongToken)?;
        if now >= one.expires {
            return Err(Refusal::Expired);
        }
        if one.uses_left == 0 {
            return Err(Refusal::UsedUp);
        }
        if newcomer.is_taken || self.names.contains_key(newcomer.node) {
            return Err(Refusal::NameTaken);
        }
        one.uses_left -= 1;
        let until = now.after(NAME_KEPT);
        self.names.insert(newcomer.node.to_owned(), until);
        Ok(self.told.clone())
    }
}

impl Admission for Tokens {
    fn admit<'a>(&'a self, newcomer: Newcomer<'a>) -> BoxFuture<'a, Result<Vec<u8>, Refusal>> {
        let outcome = self.book.lock().judge(&newcomer, Clock::now());
        Box::pin(std::future::ready(outcome))
    }
}

fn sha256(bytes: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(bytes).into()
}

/// Of RFC 4648, in lower case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

fn base32(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut count) = (String::new(), 0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count) as usize & 31]));
        }
    }
    if count > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - count)) as usize & 31]));
    }
    text
}

/// The only bytes of this length that are written so; letters may be of either case.
fn from_base32<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(N), 0u32, 0);
    for letter in text.bytes() {
        let letter = letter.to_ascii_lowercase();
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        bits = bits << 5 | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    let padding = bits & ((1 << count) - 1);
    let bytes = <[u8; N]>::try_from(bytes).ok()?;
    (count < 5 && padding == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn base32_is_that_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
    }

    proptest! {
        #[test]
        fn a_token_survives_its_text(secret in any::<[u8; 16]>(), authority in any::<[u8; 32]>()) {
            let text = JoinToken { secret, authority }.to_string();
            for text in [text.clone(), format!(" {text}\n")] {
                let token: JoinToken = text.parse().unwrap();
                prop_assert_eq!((token.secret, token.authority), (secret, authority));
            }
        }

        #[test]
        fn text_that_is_no_token_is_refused(text in "(odeon1)?[.a-z2-7]{0,90}", cut in 0usize..86) {
            prop_assert!(text.parse::<JoinToken>().is_err());
            let token = JoinToken { secret: [1; 16], authority: [2; 32] }.to_string();
            prop_assert!(token[..cut.min(token.len() - 1)].parse::<JoinToken>().is_err());
        }
    }

    #[test]
    fn a_token_keeps_its_secret_out_of_debug_output() {
        let token = JoinToken {
            secret: [0x5a; 16],
            authority: [2; 32],
        };
        let text = format!("{token:?} {:?}", token.secret_hash());
        assert!(
            !text.contains(&base32(&token.secret)) && !text.contains("90"),
            "{text}"
        );
    }

    /// SEMANTICS 26.
    #[test]
    fn the_book_says_why_not() {
        let cluster = ClusterIdentity::generate().unwrap();
        let tokens = Tokens::new();
        let token = tokens.issue(&cluster, Duration::from_secs(60), 2).unwrap();
        let other = JoinToken::generate(&cluster).unwrap();
        let now = Clock::now();
        let try_as = |token: &JoinToken, node: &str, is_taken, at| {
            let newcomer = Newcomer {
                secret: token.secret_hash(),
                node,
                is_taken,
                from: "127.0.0.1:1".parse().unwrap(),
            };
            tokens.book.lock().judge(&newcomer, at)
        };
        assert_eq!(try_as(&other, "a", false, now), Err(Refusal::WrongToken));
        assert_eq!(try_as(&token, "a", true, now), Err(Refusal::NameTaken));
        assert_eq!(try_as(&token, "a", false, now), Ok(vec![]));
        assert_eq!(try_as(&token, "a", false, now), Err(Refusal::NameTaken));
        tokens.tell("welcome");
        assert_eq!(try_as(&token, "b", false, now), Ok(b"welcome".to_vec()));
        assert_eq!(try_as(&token, "c", false, now), Err(Refusal::UsedUp));
        let late = now.after(Duration::from_secs(120));
        assert_eq!(try_as(&token, "c", false, late), Err(Refusal::Expired));
        assert!(tokens.revoke(&token) && !tokens.revoke(&token));
        assert_eq!(try_as(&token, "c", false, now), Err(Refusal::WrongToken));
        // A name that came to nothing is free again.
        let fresh = tokens.issue(&cluster, Duration::from_secs(600), 1).unwrap();
        assert_eq!(try_as(&fresh, "a", false, late), Ok(b"welcome".to_vec()));
    }
}
