//! The manifest of a program, which can be read without running it: a constant in its file, made at
//! compile time by [`job!`](crate::job).
//!
//! ```text
//! \x7fODEON-MANIFEST\x01   u32 length, little-endian   JSON
//! ```

use crate::actor::actor_type::ActorType;
use crate::actor::registry::Registered;

/// The bytes that begin it.
const MAGIC: &[u8; 16] = b"\x7fODEON-MANIFEST\x01";

/// One actor type of a program.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct ActorPart {
    /// Its stable name.
    pub name: &'static str,
    /// The names and ids of its messages.
    pub messages: &'static [(&'static str, u64)],
    /// Its row in the table.
    pub actor_type: fn() -> &'static ActorType,
}

impl ActorPart {
    /// The part of `A`.
    #[must_use]
    pub const fn of<A: Registered>() -> Self {
        Self {
            name: A::NAME,
            messages: A::MESSAGES,
            actor_type: A::actor_type,
        }
    }
}

/// The rows of all parts, of which there are as many as `N` says.
#[doc(hidden)]
#[must_use]
pub const fn types<const N: usize>(parts: &[ActorPart]) -> [fn() -> &'static ActorType; N] {
    let mut types: [fn() -> &'static ActorType; N] = [|| unreachable!("each is set below"); N];
    let mut n = 0;
    while n < N {
        types[n] = parts[n].actor_type;
        n += 1;
    }
    types
}

/// The length of the constant in bytes.
#[doc(hidden)]
#[must_use]
pub const fn len(name: &str, parts: &[ActorPart]) -> usize {
    let mut none = Text { bytes: [], at: 0 };
    none.manifest(name, parts, 0);
    none.at
}

/// The constant, of as many bytes as [`len`] says.
#[doc(hidden)]
#[must_use]
pub const fn bytes<const N: usize>(name: &str, parts: &[ActorPart]) -> [u8; N] {
    let mut text = Text {
        bytes: [0; N],
        at: 0,
    };
    text.manifest(name, parts, N - MAGIC.len() - 4);
    text.bytes
}

/// Text that is put together at compile time. What has no room is counted all the same.
struct Text<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Text<N> {
    const fn manifest(&mut self, name: &str, parts: &[ActorPart], json: usize) {
        self.push(MAGIC);
        self.push(&(json as u32).to_le_bytes());
        self.push(b"{\"name\":");
        self.string(name);
        self.push(b",\"odeon\":");
        self.string(env!("CARGO_PKG_VERSION"));
        self.push(b",\"wire\":");
        self.number(crate::net::wire::VERSION);
        self.push(b",\"actors\":[");
        let mut n = 0;
        while n < parts.len() {
            if n > 0 {
                self.push(b",");
            }
            self.actor(&parts[n]);
            n += 1;
        }
        self.push(b"]}");
    }

    const fn actor(&mut self, part: &ActorPart) {
        self.push(b"{\"name\":");
        self.string(part.name);
        self.push(b",\"messages\":[");
        let mut n = 0;
        while n < part.messages.len() {
            let (name, method) = part.messages[n];
            if n > 0 {
                self.push(b",");
            }
            self.push(b"{\"name\":");
            self.string(name);
            self.push(b",\"method\":\"");
            self.hex(method);
            self.push(b"\"}");
            n += 1;
        }
        self.push(b"],\"needs\":null}");
    }

    const fn push(&mut self, bytes: &[u8]) {
        let mut n = 0;
        while n < bytes.len() {
            if self.at < N {
                self.bytes[self.at] = bytes[n];
            }
            self.at += 1;
            n += 1;
        }
    }

    const fn string(&mut self, text: &str) {
        let bytes = text.as_bytes();
        self.push(b"\"");
        let mut n = 0;
        while n < bytes.len() {
            let byte = bytes[n];
            assert!(
                byte >= 0x20 && byte != b'"' && byte != b'\\',
                "names of actors and messages have no quotes and no control characters"
            );
            self.push(&[byte]);
            n += 1;
        }
        self.push(b"\"");
    }

    const fn number(&mut self, number: u32) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }

    const fn hex(&mut self, number: u64) {
        let mut shift = 64;
        while shift > 0 {
            shift -= 4;
            let digit = (number >> shift & 15) as u8;
            let letter = if digit < 10 { b'0' } else { b'a' - 10 };
            self.push(&[letter + digit]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_what_readers_expect() {
        const PARTS: &[ActorPart] = &[
            ActorPart {
                name: "a.A",
                messages: &[("Add", 0x0123_4567_89ab_cdef), ("Get", 7)],
                actor_type: || unreachable!("nobody hosts it"),
            },
            ActorPart {
                name: "b.B",
                messages: &[],
                actor_type: || unreachable!("nobody hosts it"),
            },
        ];
        const LEN: usize = len("demo", PARTS);
        static MANIFEST: [u8; LEN] = bytes::<LEN>("demo", PARTS);
        let (magic, rest) = MANIFEST.split_at(16);
        assert_eq!(magic, MAGIC);
        let (length, json) = rest.split_at(4);
        assert_eq!(
            u32::from_le_bytes(length.try_into().unwrap()) as usize,
            json.len()
        );
        let json = std::str::from_utf8(json).unwrap();
        let expected = format!(
            "{{\"name\":\"demo\",\"odeon\":\"{}\",\"wire\":{},\"actors\":[{{\"name\":\"a.A\",\
             \"messages\":[{{\"name\":\"Add\",\"method\":\"0123456789abcdef\"}},{{\"name\":\"Get\",\
             \"method\":\"0000000000000007\"}}],\"needs\":null}},{{\"name\":\"b.B\",\"messages\":[],\
             \"needs\":null}}]}}",
            env!("CARGO_PKG_VERSION"),
            crate::net::wire::VERSION
        );
        assert_eq!(json, expected);
    }
}
