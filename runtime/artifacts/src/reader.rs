//! A file that is read while its pieces are still coming.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{GetError, Listing, Piece, Recorder, Store, Supply};

/// Reads a file of a bundle out of a store, whether or not all of its pieces are there.
///
/// A piece that is not there, or was damaged, is [brought](Supply::bring) first, and the read waits
/// for it. What is read was compared with its name. One piece is held at a time.
///
/// It blocks its thread, so it is for those who have one to spare: a file system that serves many
/// readers [asks](crate::Arrivals::bring_then) instead.
pub struct Reader<S> {
    store: Arc<Store>,
    listing: Arc<Listing>,
    supply: S,
    /// Where each piece begins, and where the last one ends.
    bounds: Vec<u64>,
    at: u64,
    held: Option<(usize, Vec<u8>)>,
    noting: Option<Noting>,
}

/// Where first reads are noted, and the time since the start.
struct Noting {
    recorder: Arc<Mutex<Recorder>>,
    since_start: Box<dyn Fn() -> Duration + Send>,
}

impl<S: Supply> Reader<S> {
    /// At the beginning of the file.
    #[must_use]
    pub fn new(store: Arc<Store>, listing: Arc<Listing>, supply: S) -> Self {
        let mut bounds = vec![0];
        bounds.extend(listing.ranges().map(|range| range.end));
        Self {
            store,
            listing,
            supply,
            bounds,
            at: 0,
            held: None,
            noting: None,
        }
    }

    /// Notes which pieces are read first. Several readers may share a recorder.
    #[must_use]
    pub fn noting(
        mut self,
        recorder: Arc<Mutex<Recorder>>,
        since_start: impl Fn() -> Duration + Send + 'static,
    ) -> Self {
        self.noting = Some(Noting {
            recorder,
            since_start: Box::new(since_start),
        });
        self
    }

    /// The rest of the piece at the present position; empty at the end of the file.
    fn ahead(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.listing.bytes() {
            return Ok(&[]);
        }
        // No piece is empty, so one alone holds the position.
        let index = self.bounds.partition_point(|bound| *bound <= self.at) - 1;
        let bytes = match self.held.take() {
            Some((held, bytes)) if held == index => bytes,
            _ => {
                let piece = self.listing.pieces()[index];
                if let Some(noting) = &self.noting {
                    let recorder = noting.recorder.lock();
                    let mut recorder = recorder.unwrap_or_else(PoisonError::into_inner);
                    recorder.note(piece.digest, (noting.since_start)());
                }
                self.fetch(&piece)?
            }
        };
        let (_, bytes) = self.held.insert((index, bytes));
        Ok(&bytes[(self.at - self.bounds[index]) as usize..])
    }

    fn fetch(&self, piece: &Piece) -> io::Result<Vec<u8>> {
        for _ in 0..ATTEMPTS {
            match self.store.get(&piece.digest) {
                Ok(bytes) if bytes.len() == piece.bytes as usize => return Ok(bytes),
                Ok(bytes) => {
                    let found = bytes.len();
                    let said = format!(
                        "piece {} has {found} bytes, and the listing says {}",
                        piece.digest, piece.bytes
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, said));
                }
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                    self.supply.bring(piece).map_err(io::Error::other)?;
                }
                Err(GetError::Disk(error)) => return Err(io::Error::other(error)),
            }
        }
        let said = format!("piece {} was brought and is not there", piece.digest);
        Err(io::Error::other(said))
    }
}

// A piece may be collected or damaged between coming and being read, though not time after time.
const ATTEMPTS: u32 = 4;

impl<S: Supply> Read for Reader<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let read = self.ahead()?.read(into)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<S> Seek for Reader<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.listing.bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl<S> std::fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("file", &self.listing.digest())
            .field("bytes", &self.listing.bytes())
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::noise::noise;
    use crate::{Arrivals, Digest, Footprint, SupplyError};

    fn store() -> (TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let ample = Footprint {
            piece_bytes: 1 << 30,
            folder_bytes: 1 << 30,
        };
        let store = Store::open(folder.path().join("store"), ample).unwrap();
        (folder, Arc::new(store))
    }

    /// The bytes as pieces of these lengths, over and over.
    fn cut(bytes: &[u8], lengths: &[usize]) -> Arc<Listing> {
        let mut rest = bytes;
        let mut pieces = vec![];
        for length in lengths.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at(rest.len().min(*length));
            pieces.push(Piece::of(piece));
            rest = behind;
        }
        Arc::new(Listing::new(Digest::of(bytes), bytes.len() as u64, pieces).unwrap())
    }

    fn put(store: &Store, bytes: &[u8], listing: &Listing, index: usize) {
        let range = listing.ranges().nth(index).unwrap();
        let bytes = &bytes[range.start as usize..range.end as usize];
        let digest = listing.pieces()[index].digest;
        store.put(&digest, bytes, SystemTime::UNIX_EPOCH).unwrap();
    }

    fn damage(store: &Store, piece: &Piece) {
        let name = piece.digest.to_string();
        let path = store.folder().join("pieces").join(&name[..2]).join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }

    /// Brings nothing.
    struct Empty;

    impl Supply for Empty {
        fn bring(&self, piece: &Piece) -> Result<(), SupplyError> {
            Err(SupplyError::Failed {
                piece: piece.digest,
                why: "nobody has it".into(),
            })
        }
    }

    /// Says that it brought what it did not.
    struct Liar;

    impl Supply for Liar {
        fn bring(&self, _: &Piece) -> Result<(), SupplyError> {
            Ok(())
        }
    }

    #[test]
    fn a_read_is_not_served_from_what_is_damaged_or_not_there() {
        let (_folder, store) = store();
        let bytes = noise(1, 1_000);
        let listing = cut(&bytes, &[400]);
        put(&store, &bytes, &listing, 0);
        put(&store, &bytes, &listing, 1);
        let mut reader = Reader::new(store.clone(), listing.clone(), Empty);
        let mut read = [0; 400];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, bytes[..400]);
        damage(&store, &listing.pieces()[1]);
        for _ in 0..2 {
            let error = reader.read(&mut read).unwrap_err();
            assert!(error.to_string().contains("nobody has it"), "{error}");
        }
        let mut reader = Reader::new(store, listing, Liar);
        reader.seek(SeekFrom::Start(900)).unwrap();
        let error = reader.read(&mut read).unwrap_err();
        assert!(
            error.to_string().contains("was brought and is not there"),
            "{error}"
        );
    }

    #[test]
    fn a_piece_that_is_not_as_long_as_listed_is_not_read() {
        let (_folder, store) = store();
        let bytes = noise(1, 100);
        let listing = cut(&bytes, &[100]);
        put(&store, &bytes, &listing, 0);
        let short = Piece {
            bytes: 50,
            ..listing.pieces()[0]
        };
        let listing = Arc::new(Listing::new(listing.digest(), 50, vec![short]).unwrap());
        let error = Reader::new(store, listing, Empty)
            .read(&mut [0; 9])
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn first_reads_are_noted_with_their_time() {
        let (_folder, store) = store();
        let bytes = noise(2, 1_000);
        let listing = cut(&bytes, &[100]);
        for index in 0..10 {
            put(&store, &bytes, &listing, index);
        }
        let recorder = Recorder::new(listing.digest(), Duration::from_secs(2), 100);
        let recorder = Arc::new(Mutex::new(recorder));
        let clock = AtomicU64::new(0);
        let mut reader = Reader::new(store, listing.clone(), Empty)
            .noting(recorder.clone(), move || {
                Duration::from_secs(clock.fetch_add(1, Ordering::Relaxed))
            });
        for at in [950, 310, 320, 0, 100, 999] {
            reader.seek(SeekFrom::Start(at)).unwrap();
            reader.read_exact(&mut [0]).unwrap();
        }
        let recorder = recorder.lock().unwrap();
        let noted = recorder.recording().reads.iter();
        let noted: Vec<_> = noted.map(|it| (it.piece, it.after.as_secs())).collect();
        let piece = |index: usize| listing.pieces()[index].digest;
        assert_eq!(noted, [(piece(9), 0), (piece(3), 1), (piece(0), 2)]);
    }

    #[test]
    fn seeking_before_the_file_is_refused_and_behind_it_reads_nothing() {
        let (_folder, store) = store();
        let mut reader = Reader::new(store, cut(b"abc", &[2]), Empty);
        assert!(reader.seek(SeekFrom::End(-4)).is_err());
        assert!(reader.seek(SeekFrom::Current(-1)).is_err());
        assert_eq!(reader.seek(SeekFrom::End(7)).unwrap(), 10);
        assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn reading_gives_the_bytes_of_the_file_whatever_the_order_of_arrival(
            seed in any::<u64>(), len in 1_usize..4_000,
            lengths in prop::collection::vec(1_usize..700, 1..6),
            here in prop::collection::vec(any::<bool>(), 1..9),
            damaged in prop::collection::vec(any::<bool>(), 1..9),
            reads in prop::collection::vec((0_usize..4_400, 0_usize..900), 1..20),
            order in any::<u64>(),
        ) {
            let (_folder, store) = store();
            let bytes = noise(seed, len);
            let listing = cut(&bytes, &lengths);
            let mut pieces: Vec<(usize, Piece)> =
                listing.pieces().iter().copied().enumerate().collect();
            for (index, piece) in &pieces {
                if here[index % here.len()] {
                    put(&store, &bytes, &listing, *index);
                    if damaged[index % damaged.len()] {
                        damage(&store, piece);
                    }
                }
            }
            pieces.sort_by_key(|(index, _)| Digest::of(&(order ^ *index as u64).to_le_bytes()));
            let arrivals = Arrivals::new(pieces.iter().map(|(_, piece)| *piece));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while let Some(piece) = arrivals.next() {
                        let (index, _) = pieces.iter().find(|it| it.1 == piece).unwrap();
                        put(&store, &bytes, &listing, *index);
                        arrivals.arrived(&piece.digest);
                    }
                });
                let mut reader = Reader::new(store.clone(), listing.clone(), &arrivals);
                let mut model = Cursor::new(&bytes);
                let check = || -> Result<(), TestCaseError> {
                    for (at, len) in reads {
                        let to = SeekFrom::Start(at as u64);
                        prop_assert_eq!(reader.seek(to)?, model.seek(to)?);
                        let (mut read, mut expected) = (vec![], vec![]);
                        (&mut reader).take(len as u64).read_to_end(&mut read)?;
                        (&mut model).take(len as u64).read_to_end(&mut expected)?;
                        prop_assert_eq!(read, expected);
                    }
                    reader.rewind()?;
                    let mut whole = vec![];
                    reader.read_to_end(&mut whole)?;
                    prop_assert_eq!(&whole, &bytes);
                    Ok(())
                };
                let checked = check();
                arrivals.stop();
                checked
            })?;
        }
    }
}
