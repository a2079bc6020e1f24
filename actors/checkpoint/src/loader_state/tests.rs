//! Tests of dealing readers anew.

use proptest::prelude::*;

use super::*;

/// A job with readers, as a loader has them: reads ahead into buffers, and trains on what is there.
struct Loader {
    readers: Vec<ReaderState>,
    trained: Vec<(String, u64)>,
}

impl Loader {
    fn new(sources: &[u64], readers: usize) -> Self {
        let streams = sources.iter().enumerate();
        let streams = streams.map(|(at, end)| Stream::new(format!("s{at}"), 0, Some(*end)));
        let whole = ReaderState {
            streams: streams.collect(),
            buffer: vec![],
        };
        Self {
            readers: reshard(vec![whole], readers),
            trained: vec![],
        }
    }

    /// Each reader reads so many, and trains on so many, as far as there are any.
    fn run(&mut self, read: usize, train: usize) {
        for reader in &mut self.readers {
            for turn in 0..read {
                let streams = reader.streams.len().max(1);
                let Some(stream) = reader.streams.get_mut(turn % streams) else {
                    continue;
                };
                if let Some(index) = stream.take() {
                    reader.buffer.push(Sample {
                        source: stream.source.clone(),
                        index,
                        bytes: Bytes::from(index.to_le_bytes().to_vec()),
                    });
                }
            }
            let ready = train.min(reader.buffer.len());
            self.trained.extend(
                reader
                    .buffer
                    .drain(..ready)
                    .map(|sample| (sample.source, sample.index)),
            );
        }
    }

    /// Encodes, decodes and reshards the readers' states, as a checkpoint does.
    fn restart(&mut self, readers: usize) {
        let states = self
            .readers
            .iter()
            .map(|state| ReaderState::decode(&state.encode()).unwrap());
        self.readers = reshard(states.collect(), readers);
    }
}

proptest! {
    /// SEMANTICS 97: over restarts with more and fewer readers, every sample is trained on once.
    #[test]
    fn no_sample_is_dropped_or_repeated(
        sources in prop::collection::vec(0_u64..60, 1..5),
        first in 1_usize..5,
        lives in prop::collection::vec((1_usize..9, 0_usize..12, 0_usize..9), 0..6),
    ) {
        let mut loader = Loader::new(&sources, first);
        for (readers, read, train) in lives {
            loader.run(read, train);
            let before: Vec<usize> = loader.readers.iter().map(|reader| reader.buffer.len()).collect();
            loader.restart(readers);
            let after: Vec<usize> = loader.readers.iter().map(|reader| reader.buffer.len()).collect();
            prop_assert_eq!(before.iter().sum::<usize>(), after.iter().sum::<usize>());
            if before.len() != readers {
                prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1);
            }
        }
        while loader.readers.iter().any(|reader| {
            let open = |stream: &Stream| stream.end.is_some_and(|end| stream.next < end);
            !reader.buffer.is_empty() || reader.streams.iter().any(open)
        }) {
            loader.run(100, 100);
        }
        loader.trained.sort();
        let all = sources.iter().enumerate();
        let mut all: Vec<(String, u64)> = all
            .flat_map(|(at, end)| (0..*end).map(move |index| (format!("s{at}"), index)))
            .collect();
        all.sort();
        prop_assert_eq!(loader.trained, all);
    }

    #[test]
    fn as_many_readers_have_what_they_had(readers in 1_usize..6, read in 0_usize..9) {
        let mut loader = Loader::new(&[50, 20], readers);
        loader.run(read, 2);
        let before = loader.readers.clone();
        loader.restart(readers);
        prop_assert_eq!(before, loader.readers);
    }

    #[test]
    fn what_is_cut_off_is_no_state(cut in 0_usize..100) {
        let mut loader = Loader::new(&[50], 1);
        loader.run(5, 0);
        let file = loader.readers[0].encode();
        let cut = cut.min(file.len() - 1);
        prop_assert!(ReaderState::decode(&file[..cut]).is_err());
        prop_assert_eq!(&ReaderState::decode(&file).unwrap(), &loader.readers[0]);
    }
}

#[test]
fn more_readers_than_streams_split_them() {
    let mut loader = Loader::new(&[100], 4);
    let nexts: Vec<u64> = loader
        .readers
        .iter()
        .map(|reader| reader.streams[0].next)
        .collect();
    assert_eq!(nexts, [0, 1, 2, 3]);
    loader.restart(2);
    let streams: Vec<usize> = loader
        .readers
        .iter()
        .map(|reader| reader.streams.len())
        .collect();
    assert_eq!(streams, [2, 2]);
}
