//! Keys as secrets: what is kept of them, and what a page holds in their place.

use odeon_artifacts::Digest;

/// A new secret, and what is kept of it.
pub(crate) fn new_key() -> (String, String) {
    let secret: String = (0..4)
        .map(|_| format!("{:016x}", rand::random::<u64>()))
        .collect();
    let secret = format!("odeon-{secret}");
    let hash = hash_of(&secret);
    (secret, hash)
}

/// The hash of a secret, which is kept in its place. Looking it up by this tells nothing of the
/// secret by time.
pub(super) fn hash_of(secret: &str) -> String {
    Digest::of(secret.as_bytes()).to_string()
}

/// The token that a page holds in the place of a key: good for looking on, and no key anywhere
/// else, so whoever else on this machine a browser shows its cookies to gets nothing that could be
/// used for more.
pub(crate) fn page_key(secret: &str) -> String {
    page_key_of(&hash_of(secret))
}

pub(super) fn page_key_of(hash: &str) -> String {
    format!("{PAGE}{}", hash_of(&format!("page of {hash}")))
}

/// The beginning of such a token.
pub(super) const PAGE: &str = "odeon-page-";
