//! The daemon's own executable as a source of pieces: recipes and gangs run the command itself, which every node of a
//! release has on its disk already.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use odeon_artifacts::{Bundle, Digest, Listing, Piece, Store};

/// Puts into the store what a bundle lacks of its program where that is the program of this process, and says how many
/// pieces those were. Each is compared with its digest. A disk that takes none leaves the rest to whoever fetches it.
pub(crate) fn put_own(store: &Store, bundle: &Bundle, missing: &[Piece], now: SystemTime) -> usize {
    let own = std::env::current_exe();
    own.map_or(0, |path| put_from(&path, store, (bundle, missing), now))
}

fn put_from(
    path: &Path,
    store: &Store,
    (bundle, missing): (&Bundle, &[Piece]),
    now: SystemTime,
) -> usize {
    let Some(program) = bundle.file(bundle.entry()) else {
        return 0;
    };
    let Ok(file) = File::open(path) else {
        return 0;
    };
    let listing = &program.listing;
    if !file.metadata().is_ok_and(|it| it.len() == listing.bytes()) {
        return 0;
    }
    let missing: HashSet<Digest> = missing.iter().map(|it| it.digest).collect();
    let mut put = 0;
    for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
        if !missing.contains(&piece.digest) {
            continue;
        }
        // What differs in one piece is another program, as a rule.
        let Ok(bytes) = Listing::read(&file, range, piece) else {
            return put;
        };
        if store.put(&piece.digest, &bytes, now).is_err() {
            return put;
        }
        put += 1;
    }
    put
}

#[cfg(test)]
mod tests {
    use odeon_artifacts::Footprint;

    use super::*;

    #[test]
    fn pieces_are_put_of_the_same_program_and_of_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let ample = Footprint {
            piece_bytes: 1 << 30,
            folder_bytes: 1 << 30,
        };
        let store = Store::open(folder.path().join("store"), ample).unwrap();
        let path = folder.path().join("program");
        let mut bytes: Vec<u8> = (0..3_000_000_u32)
            .map(|it| (it.wrapping_mul(2_654_435_761) >> (it % 24)) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let bundle = Bundle::of_program(&path).unwrap();
        store.keep(&bundle).unwrap();
        let missing = |store: &Store| store.missing(bundle.pieces()).unwrap();
        let all = missing(&store).len();
        assert!(all > 2, "{all}");

        let put = |path: &Path, missing: &[Piece]| {
            put_from(path, &store, (&bundle, missing), SystemTime::UNIX_EPOCH)
        };
        let other = folder.path().join("other");
        bytes[0] ^= 1;
        std::fs::write(&other, &bytes).unwrap();
        assert_eq!(put(&other, &missing(&store)), 0);
        std::fs::write(&other, &bytes[1..]).unwrap();
        assert_eq!(put(&other, &missing(&store)), 0);
        assert_eq!(put(&folder.path().join("none"), &missing(&store)), 0);
        assert_eq!(missing(&store).len(), all);

        let one = missing(&store)[1..2].to_vec();
        assert_eq!(put(&path, &one), 1);
        assert_eq!(put(&path, &missing(&store)), all - 1);
        assert_eq!(missing(&store), []);
    }
}
