//! The byte format of messages: bincode's fixed-width little-endian layout, always with a limit.
//!
//! The layout is written down here because the library behind it gets no more releases: integers
//! are fixed-width little-endian, `usize` is 8 bytes, an enum is a `u32` index and its fields, a
//! sequence or string is a `u64` length and its items, an option is one byte and its value, structs
//! and tuples are their fields in order. Golden bytes in the tests pin it; any encoder that
//! produces them can take its place.

use bincode::config::{self, Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// No length prefix can make the decoder allocate more than this.
const BYTES_MAX: usize = 64 << 20;

const LAYOUT: Configuration<LittleEndian, Fixint, Limit<BYTES_MAX>> =
    config::legacy().with_limit::<BYTES_MAX>();

/// A value that could not be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct CodecError(pub String);

/// Appends the encoding of `value` to `out`.
pub(crate) fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(value, out, LAYOUT)
        .map(|_written| ())
        .map_err(|e| CodecError(e.to_string()))
}

/// The encoding of `value`.
///
/// # Errors
/// A type that serde cannot encode, or more than 64 MiB.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    // Most values take about as many bytes as in memory: one allocation instead of growth.
    let mut out = Vec::with_capacity(size_of::<T>().clamp(16, 4096));
    encode_into(value, &mut out)?;
    Ok(out)
}

/// Reads one value that fills `bytes` exactly.
///
/// # Errors
/// Bytes that are not an encoding of `T`, or that go on after it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, read) =
        bincode::serde::decode_from_slice(bytes, LAYOUT).map_err(|e| CodecError(e.to_string()))?;
    if read == bytes.len() {
        Ok(value)
    } else {
        Err(CodecError(format!("{} bytes too many", bytes.len() - read)))
    }
}

thread_local!(static ARRIVALS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });

/// Encodes something that will be decoded `arrivals` times, so that the pins of the handles in it
/// end with the last arrival. Outside of this, or with 0, they end by time only.
pub(crate) fn arriving<T>(arrivals: u32, encode: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            ARRIVALS.set(self.0);
        }
    }
    let _restore = Restore(ARRIVALS.replace(arrivals));
    encode()
}

/// The number of times that what is encoded now will arrive; 0 when nobody knows.
pub(crate) fn arrivals() -> u32 {
    ARRIVALS.get()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Plain,
        With { a: u16, b: Option<String> },
    }

    #[test]
    fn the_layout_is_pinned_by_golden_bytes() {
        let value = (
            1u32,
            -2i64,
            true,
            Kind::With {
                a: 3,
                b: Some("hi".into()),
            },
            vec![7u8, 8],
        );
        let golden = [
            1, 0, 0, 0, // u32
            0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // i64
            1,    // bool
            1, 0, 0, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, b'h', b'i', // enum
            2, 0, 0, 0, 0, 0, 0, 0, 7, 8, // sequence
        ];
        assert_eq!(encode(&value).unwrap(), golden);
        assert_eq!(
            decode::<(u32, i64, bool, Kind, Vec<u8>)>(&golden).unwrap(),
            value
        );
        assert_eq!(encode(&Kind::Plain).unwrap(), [0; 4]);
    }

    #[test]
    fn a_hostile_length_is_an_error() {
        let bytes = (1u64 << 40).to_le_bytes();
        assert!(decode::<Vec<f32>>(&bytes).is_err());
        assert!(decode::<String>(&bytes).is_err());
    }

    #[test]
    fn trailing_bytes_are_an_error() {
        assert_eq!(
            decode::<u8>(&[1, 2]),
            Err(CodecError("1 bytes too many".into()))
        );
    }
}
