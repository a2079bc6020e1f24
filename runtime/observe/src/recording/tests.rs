//! Tests that what comes out is what went in, and that what is broken says how.

use std::io::{self, Write};
use std::sync::Arc;

use odeon::ProcessId;
use odeon::inspect::{MachineView, Metric, NodeSight};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// A file in memory, with room for so many bytes.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<(Vec<u8>, Option<usize>)>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (written, most) = &mut *self.0.lock();
        if most.is_some_and(|most| written.len() + bytes.len() > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        written.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sight(name: &str, at: u64) -> NodeSight {
    NodeSight {
        node: name.to_owned(),
        process: ProcessId(7),
        at: Timestamp(at),
        unix_nanos: at,
        processes: vec![],
        silent: vec![],
        blocked: vec![],
        links: vec![],
        hardware: None,
        machine: MachineView {
            cores: 2,
            cpu: Some(f64::NAN),
            memory: 1 << 40,
            memory_used: at,
            metrics: vec![(Metric::Load, 0.5)],
        },
        flows: vec![],
        names: Some(vec![]),
    }
}

fn any_frame() -> impl Strategy<Value = Frame<'static>> {
    let date = || (0..1_000_000_u64).prop_map(Date);
    let text = || "[a-z\u{e9}\"]{0,40}".prop_map(Cow::<'static, str>::Owned);
    prop_oneof![
        (text(), any::<u64>(), date(), any::<Option<i64>>()).prop_map(|(name, at, date, clock)| {
            let clock = clock.map(|ahead| (ahead, Duration::from_nanos(at)));
            let mut sight = sight(&name, at);
            // Nothing equals itself that is no number.
            sight.machine.cpu = None;
            Frame::Look {
                sight: Cow::Owned(sight),
                at: Timestamp(at),
                date,
                clock,
            }
        }),
        (text(), date(), any::<bool>()).prop_map(|(name, date, lost)| Frame::NodeGone {
            name,
            date,
            lost
        }),
        (text(), date()).prop_map(|(name, date)| Frame::Forgotten { name, date }),
        date().prop_map(|date| Frame::Tick { date }),
        (text(), text(), date()).prop_map(|(job, why, date)| Frame::JobsWaiting {
            date,
            jobs: Cow::Owned(vec![WaitingJob {
                job: job.into_owned(),
                since: date,
                why: why.into_owned()
            }]),
        }),
        (text(), text(), date()).prop_map(|(about, json, date)| Frame::Note { date, about, json }),
    ]
}

fn recorded(frames: &[Frame<'static>]) -> Vec<u8> {
    let paper = Paper::default();
    let mut recorder = Recorder::new(Box::new(paper.clone()), "it", Date(5)).unwrap();
    frames.iter().for_each(|frame| recorder.add(frame));
    let bytes = recorder.finish().unwrap();
    let written = paper.0.lock().0.clone();
    assert_eq!(written.len() as u64, bytes);
    written
}

fn read(bytes: &[u8]) -> Result<(Vec<Frame<'static>>, End), RecordingError> {
    let recording = Recording::of(bytes.into())?;
    let frames: Result<Vec<_>, _> = recording.frames().collect();
    Ok((frames?, recording.end()))
}

fn ticks(count: u64) -> Vec<Frame<'static>> {
    let frame = |date| match date % 3 {
        0 => Frame::Tick { date: Date(date) },
        _ => Frame::Look {
            sight: Cow::Owned(sight("n1", date)),
            at: Timestamp(date),
            date: Date(date),
            clock: None,
        },
    };
    (1..=count).map(frame).collect()
}

/// What was told is the beginning of what was recorded: by its words, since it holds a number that is none.
fn expect_beginning(told: &[Frame<'_>], frames: &[Frame<'_>]) {
    assert_eq!(format!("{told:?}"), format!("{:?}", &frames[..told.len()]));
}

proptest! {
    #[test]
    fn what_comes_out_is_what_went_in(frames in prop::collection::vec(any_frame(), 1..40)) {
        let bytes = recorded(&frames);
        let recording = Recording::of(bytes.clone().into()).unwrap();
        prop_assert_eq!(recording.from(), frames.iter().map(Frame::date).min().unwrap());
        prop_assert_eq!(recording.to(), frames.iter().map(Frame::date).max().unwrap());
        let (told, end) = read(&bytes).unwrap();
        prop_assert_eq!(told, frames);
        prop_assert_eq!(end, End::InOrder);
    }

    /// Wherever it is cut, what is told is the beginning of what was recorded, and more of it the later.
    #[test]
    fn one_that_is_cut_replays_up_to_the_cut(count in 3..60_u64, share in 0.0..1.0) {
        let frames = ticks(count);
        let bytes = recorded(&frames);
        let cut = (bytes.len() as f64 * share) as usize;
        match read(&bytes[..cut]) {
            Ok((told, end)) => {
                prop_assert_eq!(end, End::Cut);
                prop_assert!(!told.is_empty() && told.len() <= frames.len());
                expect_beginning(&told, &frames);
            }
            Err(RecordingError::Foreign) => prop_assert!(cut < MAGIC.len()),
            Err(RecordingError::Head) => prop_assert!(cut < 80),
            Err(RecordingError::Empty) => prop_assert!(cut < bytes.len()),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// SEMANTICS 73. No bit can be another without being noticed; what is told is what was recorded before
    /// it, and nothing that is read panics.
    #[test]
    fn a_flipped_bit_is_noticed(count in 3..40_u64, at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let frames = ticks(count);
        let mut bytes = recorded(&frames);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok((told, end)) = read(&bytes) {
            prop_assert_ne!(end, End::InOrder);
            prop_assert!(told.len() <= frames.len());
            expect_beginning(&told, &frames);
        }
    }

    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut named = MAGIC.to_vec();
        named.extend(&bytes);
        prop_assert!(read(&bytes).is_err());
        prop_assert!(read(&named).is_err());
    }
}

/// SEMANTICS 73.
#[test]
fn one_of_a_newer_release_says_so() {
    let mut bytes = recorded(&ticks(3));
    bytes[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = read(&bytes).unwrap_err();
    assert!(error.to_string().contains("a newer one"), "{error}");
    bytes[8..10].copy_from_slice(&0_u16.to_le_bytes());
    assert!(
        matches!(read(&bytes), Err(RecordingError::Head)),
        "no release has written it"
    );
}

#[test]
fn a_number_that_is_none_is_recorded() {
    let (told, _) = read(&recorded(&ticks(1))).unwrap();
    let [Frame::Look { sight, .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(sight.machine.cpu.unwrap().is_nan());
}

/// SEMANTICS 73.
#[test]
fn a_full_disk_ends_it_and_what_was_written_replays() {
    let paper = Paper::default();
    let mut recorder = Recorder::new(Box::new(paper.clone()), "it", Date(5)).unwrap();
    paper.0.lock().1 = Some(1_500);
    ticks(300).iter().for_each(|frame| recorder.add(frame));
    let error = recorder.finish().unwrap_err();
    assert!(matches!(&error, RecordingError::Io(it) if it.kind() == io::ErrorKind::StorageFull));
    let (told, end) = read(&paper.0.lock().0).unwrap();
    assert_eq!(end, End::Cut);
    assert!(told.len() > 3 && told.len() < 300, "{}", told.len());
    expect_beginning(&told, &ticks(300));
}

/// SEMANTICS 73.
#[test]
fn a_recording_is_no_larger_than_its_bound() {
    let paper = Paper::default();
    let recorder = Recorder::new(Box::new(paper.clone()), "it", Date(5)).unwrap();
    let mut recorder = recorder.at_most(2_000);
    ticks(300).iter().for_each(|frame| recorder.add(frame));
    assert!(matches!(
        recorder.finish().unwrap_err(),
        RecordingError::Full
    ));
    let written = paper.0.lock().0.clone();
    assert!(written.len() <= 2_000);
    let (frames, end) = read(&written).unwrap();
    assert!(frames.len() > 3);
    expect_beginning(&frames, &ticks(300));
    assert_eq!(end, End::Full, "it is told from one that was cut");
}
