//! The name of content.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// BLAKE3 of some bytes: 256 bits, written as 64 lower-case hexadecimal digits.
///
/// Formats for people hold the digits, others the 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The name of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A name from its 32 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As much as people compare.
        f.write_str(&blake3::Hash::from(self.0).to_hex()[..12])
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let lower = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        // A name is written in one way only, since files are called by it.
        if text.len() != 64 || !text.bytes().all(lower) {
            return Err(DigestError);
        }
        blake3::Hash::from_hex(text)
            .map(Self::from)
            .map_err(|_| DigestError)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(D::Error::custom)
        } else {
            Deserialize::deserialize(deserializer).map(Self)
        }
    }
}

/// Not 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is written as 64 lower-case hexadecimal digits")]
pub struct DigestError;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // From the test vectors of BLAKE3.
    const OF_NOTHING: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    #[test]
    fn a_digest_is_blake3() {
        assert_eq!(Digest::of(b"").to_string(), OF_NOTHING);
        assert_eq!(format!("{:?}", Digest::of(b"")), "af1349b9f5f9");
    }

    #[test]
    fn only_one_way_of_writing_is_read() {
        for text in ["", "ab", &OF_NOTHING[1..], &OF_NOTHING.to_uppercase()] {
            assert_eq!(text.parse::<Digest>(), Err(DigestError), "{text}");
        }
        assert!(
            OF_NOTHING
                .replace('a', "g")
                .parse::<Digest>()
                .unwrap_err()
                .to_string()
                .contains("64 lower-case")
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(bytes in any::<[u8; 32]>()) {
            let digest = Digest::from_bytes(bytes);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            let json = serde_json::to_string(&digest).unwrap();
            prop_assert_eq!(&json, &format!("\"{digest}\""));
            prop_assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        }
    }
}
