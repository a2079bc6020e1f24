//! The manifest of a program of Odeon, read from its file without running it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use memchr::memmem;
use serde::{Deserialize, Serialize};

/// The manifest of a program of Odeon: its name, its versions, and the actors that it has.
///
/// It lies anywhere in the program's file as [`magic`](Self::magic), the length of what follows as
/// a little-endian `u32`, and this as JSON. A reader takes fields that it does not know for ones of
/// a later version and passes over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The name of the program.
    pub name: String,
    /// The version of the crate `odeon` that it was built with.
    pub odeon: String,
    /// The version of frames between processes.
    pub wire: u32,
    /// The actors that it can host.
    pub actors: Vec<ActorEntry>,
}

/// A kind of actor in a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorEntry {
    /// The name of the actor.
    pub name: String,
    /// The messages that it takes.
    pub messages: Vec<MessageEntry>,
    /// The resources that it needs of a node, unless whoever spawns it says.
    pub needs: Option<NeedsEntry>,
}

/// A message in a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageEntry {
    /// The name of the message.
    pub name: String,
    /// The id of the method: a hash of its shape, in JSON as up to 16 hexadecimal digits, since
    /// numbers there are exact to 53 bits only.
    #[serde(with = "hex")]
    pub method: u64,
}

/// The resources that an actor in a [`Manifest`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NeedsEntry {
    /// Processors, in parts too.
    pub cpus: f64,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Whole accelerators.
    pub gpus: u32,
    /// Memory of an accelerator in GiB.
    pub gpu_memory_gib: f64,
}

impl Manifest {
    /// The first half of [`magic`](Self::magic).
    pub const MAGIC_HEAD: [u8; 8] = *b"\x7fODEON-M";
    /// Its second half. The last byte is the version of the format.
    pub const MAGIC_TAIL: [u8; 8] = *b"ANIFEST\x01";
    /// The longest JSON.
    pub const JSON_BYTES_MAX: usize = 1 << 20;

    /// The bytes that a manifest begins with in a file.
    #[must_use]
    pub fn magic() -> [u8; 16] {
        // Put together when it is needed, so that a program that only looks for manifests does not
        // look like one that has one.
        let mut magic = [0; 16];
        magic[..8].copy_from_slice(&Self::MAGIC_HEAD);
        magic[8..].copy_from_slice(&Self::MAGIC_TAIL);
        magic
    }

    /// As it lies in a program.
    ///
    /// # Errors
    /// When it is longer than anybody reads.
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        // Of names and numbers, of which every one can be written.
        let json = serde_json::to_vec(self).expect("a manifest can be written as JSON");
        if json.len() > Self::JSON_BYTES_MAX {
            return Err(ManifestError::TooLong { bytes: json.len() });
        }
        let mut bytes = Self::magic().to_vec();
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// Finds the manifest of the program in this file, in constant memory.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        Self::find(File::open(path)?)
    }

    /// Finds the manifest in a program, in constant memory. Of several the first that can be read
    /// counts.
    ///
    /// # Errors
    /// When there is none, or only ones that cannot be read, or `program` cannot be read.
    pub fn find(program: impl Read + Seek) -> Result<Self, ManifestError> {
        find(program, WINDOW_BYTES)
    }

    /// Reads the JSON of a manifest.
    fn decode(json: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        for actor in &manifest.actors {
            let needs = actor.needs.iter();
            let mut amounts =
                needs.flat_map(|needs| [needs.cpus, needs.memory_gib, needs.gpu_memory_gib]);
            if amounts.any(|amount| amount < 0.0) {
                return Err(format!("{} needs less than nothing", actor.name));
            }
        }
        Ok(manifest)
    }
}

/// As [`Manifest::find`], holding `window` bytes at a time.
fn find(mut program: impl Read + Seek, window: usize) -> Result<Manifest, ManifestError> {
    let magic = Manifest::magic();
    let finder = memmem::Finder::new(&magic);
    let mut buffer = vec![0; window.max(2 * magic.len())];
    // The buffer holds what lies at `base`.
    let (mut base, mut filled) = (0, 0);
    let mut malformed = None;
    loop {
        program.seek(SeekFrom::Start(base + filled as u64))?;
        let read = read_full(&mut program, &mut buffer[filled..])?;
        if read == 0 {
            return Err(malformed.unwrap_or(ManifestError::NotOdeon));
        }
        filled += read;
        for at in finder.find_iter(&buffer[..filled]) {
            let at = base + at as u64;
            match candidate(&mut program, at + magic.len() as u64)? {
                Some(Ok(manifest)) => return Ok(manifest),
                Some(Err(why)) => {
                    malformed.get_or_insert(ManifestError::Malformed { at, why });
                }
                None => {}
            }
        }
        // The magic may lie across the end, all but its last byte.
        let kept = filled.min(magic.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
        base += (filled - kept) as u64;
        filled = kept;
    }
}

/// The manifest whose length lies at `at`. `None` when none begins there: another program that
/// looks for manifests holds the magic as well.
fn candidate(
    program: &mut (impl Read + Seek),
    at: u64,
) -> io::Result<Option<Result<Manifest, String>>> {
    program.seek(SeekFrom::Start(at))?;
    let mut head = [0; 5];
    if read_full(program, &mut head)? < head.len() {
        return Ok(None);
    }
    let [length @ .., first] = head;
    let len = u32::from_le_bytes(length) as usize;
    if first != b'{' || !(2..=Manifest::JSON_BYTES_MAX).contains(&len) {
        return Ok(None);
    }
    let mut json = vec![first; len];
    let read = 1 + read_full(program, &mut json[1..])?;
    if read < len {
        return Ok(Some(Err(format!("it ends after {read} of {len} bytes"))));
    }
    Ok(Some(Manifest::decode(&json)))
}

/// Reads until `into` is full or nothing more comes.
fn read_full(source: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match source.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

const WINDOW_BYTES: usize = 1 << 20;

/// Ids as hexadecimal digits.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{id:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits =
            (1..=16).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit());
        let id = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        id.ok_or_else(|| D::Error::custom("an id is 1 to 16 hexadecimal digits"))
    }
}

/// A program without a manifest that can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It holds none.
    #[error("the file holds no manifest of Odeon: it is another program, or was built without one")]
    NotOdeon,
    /// It holds one that this version does not understand, or that was damaged.
    #[error("the manifest at byte {at} cannot be read: {why}")]
    Malformed {
        /// Where it begins.
        at: u64,
        /// The reason why it cannot be read.
        why: String,
    },
    /// A manifest that nobody would read.
    #[error(
        "the manifest has {bytes} bytes, and {} are read",
        Manifest::JSON_BYTES_MAX
    )]
    TooLong {
        /// Bytes of its JSON.
        bytes: usize,
    },
    /// The file cannot be read.
    #[error("the program cannot be read: {0}")]
    Read(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::noise::noise;

    fn manifest(name: &str) -> Manifest {
        let message = |name: &str, method| MessageEntry {
            name: name.into(),
            method,
        };
        Manifest {
            name: name.into(),
            odeon: "0.1.0".into(),
            wire: 3,
            actors: vec![
                ActorEntry {
                    name: "Trainer".into(),
                    messages: vec![message("Step", u64::MAX), message("Stop", 0x1f)],
                    needs: Some(NeedsEntry {
                        cpus: 0.5,
                        memory_gib: 4.0,
                        gpus: 1,
                        gpu_memory_gib: 40.0,
                    }),
                },
                ActorEntry {
                    name: "Log".into(),
                    messages: vec![],
                    needs: None,
                },
            ],
        }
    }

    fn find_in(parts: &[&[u8]]) -> Result<Manifest, ManifestError> {
        Manifest::find(Cursor::new(parts.concat()))
    }

    #[test]
    fn a_manifest_is_written_as_agreed() {
        let json = concat!(
            r#"{"name":"train","odeon":"0.1.0","wire":3,"actors":["#,
            r#"{"name":"Trainer","messages":[{"name":"Step","method":"ffffffffffffffff"},"#,
            r#"{"name":"Stop","method":"000000000000001f"}],"#,
            r#""needs":{"cpus":0.5,"memory_gib":4.0,"gpus":1,"gpu_memory_gib":40.0}},"#,
            r#"{"name":"Log","messages":[],"needs":null}]}"#,
        );
        let magic = [&b"\x7fODEON-"[..], b"MANIFEST\x01"].concat();
        let length = (json.len() as u32).to_le_bytes();
        let expected = [&magic, &length[..], json.as_bytes()].concat();
        assert_eq!(manifest("train").encode().unwrap(), expected);
    }

    #[test]
    fn a_program_without_one_is_not_odeon() {
        // Neither is this one, which looks for them.
        let own = Manifest::read(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(matches!(own, ManifestError::NotOdeon), "{own}");
        let magic = &Manifest::magic()[..];
        let long = &((1_u32 << 20) + 1).to_le_bytes()[..];
        let check = |parts: &[&[u8]]| {
            let error = find_in(parts).unwrap_err();
            assert!(matches!(error, ManifestError::NotOdeon), "{error}");
        };
        check(&[]);
        check(&[&noise(1, 3 << 20)]);
        check(&[magic]);
        check(&[magic, &[0; 40]]);
        check(&[magic, magic, b"\x02\0\0\0[]"]);
        check(&[magic, long, b"{}"]);
        let none = Manifest::read(Path::new("/nothing/here")).unwrap_err();
        assert!(matches!(none, ManifestError::Read(_)), "{none}");
    }

    #[test]
    fn one_that_cannot_be_read_says_why() {
        let good = manifest("train").encode().unwrap();
        let json = |text: &str| {
            let length = (text.len() as u32).to_le_bytes();
            [&Manifest::magic()[..], &length, text.as_bytes()].concat()
        };
        let check = |bytes: &[u8], said: &str| {
            let error = find_in(&[b"some code", bytes]).unwrap_err().to_string();
            assert!(error.starts_with("the manifest at byte 9 "), "{error}");
            assert!(error.contains(said), "{error}");
        };
        check(&good[..good.len() - 1], "it ends after");
        check(&json("{}"), "missing field `name`");
        check(&json("{\"name\": 3}"), "invalid type");
        let text = String::from_utf8(good[20..].to_vec()).unwrap();
        check(
            &json(&text.replace("0.5", "-0.5")),
            "Trainer needs less than nothing",
        );
        for id in ["", "+1f", "xyz", "00000000000000001"] {
            check(&json(&text.replace("000000000000001f", id)), "hexadecimal");
        }
    }

    #[test]
    fn the_first_that_can_be_read_counts() {
        let (one, two) = (manifest("one"), manifest("two"));
        let (magic, broken) = (Manifest::magic(), one.encode().unwrap());
        let found = find_in(&[
            &magic,
            b"\x04\0\0\0{!}}",
            &broken[..100],
            &two.encode().unwrap(),
            &one.encode().unwrap(),
        ]);
        assert_eq!(found.unwrap(), two);
        // What a later version adds is passed over.
        let text = String::from_utf8(broken[20..].to_vec()).unwrap();
        let text = text.replacen('{', r#"{"later":[1,2],"#, 1);
        let length = (text.len() as u32).to_le_bytes();
        assert_eq!(find_in(&[&magic, &length, text.as_bytes()]).unwrap(), one);
    }

    #[test]
    fn nobody_writes_one_that_nobody_reads() {
        let mut long = manifest("train");
        long.name = "x".repeat(Manifest::JSON_BYTES_MAX);
        let error = long.encode().unwrap_err();
        assert!(matches!(error, ManifestError::TooLong { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn it_is_found_wherever_it_lies(
            before in 0_usize..3_000, after in 0_usize..300, window in 32_usize..700,
            seed in any::<u64>(),
        ) {
            let manifest = manifest("train");
            let (before, after) = (noise(seed, before), noise(!seed, after));
            let bytes = [before, manifest.encode().unwrap(), after].concat();
            prop_assert_eq!(find(Cursor::new(bytes), window).unwrap(), manifest);
        }
    }
}
