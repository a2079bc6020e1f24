//! Logs: their bounds, and what a crash leaves of them.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use proptest::prelude::*;

use super::*;
use crate::unix::Unix;

const JOB: JobId = JobId(1);
const SOURCE: LineSource = LineSource {
    attempt: 1,
    sender: 7,
};

fn line(number: u64) -> LogLine {
    LogLine {
        attempt: SOURCE.attempt,
        sender: SOURCE.sender,
        number,
        at: Unix(1_000_000 + number),
        node: "a".to_owned(),
        process: "driver".to_owned(),
        stream: Stream::Out,
        text: number.to_string(),
        changes: false,
    }
}

fn numbered(numbers: std::ops::Range<u64>) -> Vec<LogLine> {
    numbers.map(line).collect()
}

/// Few lines a segment, few segments a job.
fn limits(segment_lines: u64, segments: usize) -> LogLimits {
    LogLimits {
        segment_bytes: segment_lines * bytes_of(&line(0)),
        segments,
        jobs: 3,
    }
}

fn bytes_of(line: &LogLine) -> u64 {
    serde_json::to_string(line).unwrap().len() as u64 + 1
}

const ALL: usize = usize::MAX;

fn from(next: u64) -> Cursor {
    [(SOURCE, next)].into_iter().collect()
}

fn numbers(page: &Page) -> Vec<u64> {
    page.lines.iter().map(|line| line.number).collect()
}

fn all(logs: &Logs, job: JobId) -> Vec<u64> {
    numbers(&logs.read(job, &Cursor::default(), ALL).unwrap())
}

fn end(logs: &Logs, job: JobId) -> u64 {
    logs.end(job).unwrap().next_of(SOURCE).unwrap()
}

/// The segments of the job, oldest first.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("j1")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|it| it.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn lines_are_read_from_anywhere_over_segments_and_starts() {
    let folder = tempfile::tempdir().unwrap();
    for begin in (0..30).step_by(3) {
        let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
        assert_eq!(end(&logs, JOB), begin);
        logs.append(JOB, &numbered(begin..begin + 2)).unwrap();
        logs.append(JOB, &numbered(begin + 2..begin + 3)).unwrap();
        assert_eq!(end(&logs, JOB), begin + 3);
        // From everywhere on, also where nothing is yet.
        for next in 0..begin + 5 {
            let page = logs.read(JOB, &from(next), ALL).unwrap();
            assert_eq!(numbers(&page), (next..begin + 3).collect::<Vec<_>>());
            assert_eq!((page.more, page.gone.len()), (false, 0));
        }
    }
}

#[test]
fn what_is_sent_again_is_kept_once() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
        logs.append(JOB, &numbered(0..6)).unwrap();
        logs.append(JOB, &numbered(3..9)).unwrap();
        assert_eq!(all(&logs, JOB), (0..9).collect::<Vec<_>>());
    }
    // A voter that was away goes on behind what it has missed.
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(11..13)).unwrap();
    assert_eq!(
        numbers(&logs.read(JOB, &from(8), ALL).unwrap()),
        [8, 11, 12]
    );
}

#[test]
fn a_page_has_so_many_bytes_or_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(0..10)).unwrap();
    let one = bytes_of(&line(0)) as usize;
    for (bytes_max, lines) in [
        (0, 1),
        (one, 1),
        (3 * one, 3),
        (3 * one + 1, 3),
        (7 * one, 7),
    ] {
        let page = logs.read(JOB, &from(2), bytes_max).unwrap();
        assert_eq!(
            numbers(&page),
            (2..2 + lines).collect::<Vec<_>>(),
            "{bytes_max}"
        );
        assert!(page.more);
    }
    assert_eq!(logs.read(JobId(9), &from(7), ALL).unwrap(), Page::default());
    assert_eq!(logs.end(JobId(9)).unwrap(), Cursor::default());
}

/// A node that was cut off sends what it has kept meanwhile.
#[test]
fn lines_that_came_late_are_read_in_the_order_of_their_times() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(0..20)).unwrap();
    let late = |number| LogLine {
        sender: 8,
        ..line(number)
    };
    let lines: Vec<LogLine> = (0..20).map(late).collect();
    logs.append(JOB, &lines).unwrap();
    let mut cursor = Cursor::default();
    let mut read = vec![];
    loop {
        let merged = merge(&cursor, vec![logs.read(JOB, &cursor, 700).unwrap()]);
        read.extend(merged.lines.iter().map(|read| read.line.place()));
        cursor = merged.next;
        if !merged.more {
            break;
        }
    }
    assert!(read.is_sorted());
    assert_eq!(read.len(), 40);
}

#[test]
fn the_oldest_lines_go_and_the_reader_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let limits = limits(5, 3);
    let mut logs = Logs::open(folder.path(), limits).unwrap();
    for number in 0..200 {
        logs.append(JOB, &numbered(number..number + 1)).unwrap();
        if number % 7 == 0 {
            logs = Logs::open(folder.path(), limits).unwrap();
        }
        let page = logs.read(JOB, &Cursor::default(), ALL).unwrap();
        let first = page.lines[0].number;
        assert_eq!(numbers(&page), (first..=number).collect::<Vec<_>>());
        let gone = page.gone.iter().map(|(source, below)| (*source, *below));
        assert_eq!(
            gone.collect::<Vec<_>>(),
            [(SOURCE, first)][..usize::from(first > 0)]
        );
        // At least all segments but the one that is begun.
        assert!(page.lines.len() >= (2 * 3).min(number as usize + 1));
        let sizes = segments(folder.path());
        assert!(sizes.len() <= limits.segments);
        let head = 80;
        let most = limits.segment_bytes + bytes_of(&line(1000)) + head;
        for path in sizes {
            let bytes = path.metadata().unwrap().len();
            assert!(bytes <= most, "{bytes} of {most}");
        }
    }
}

#[test]
fn limits_of_nothing_keep_the_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(0, 0)).unwrap();
    logs.append(JOB, &numbered(0..5)).unwrap();
    let page = logs.read(JOB, &Cursor::default(), ALL).unwrap();
    assert_eq!((numbers(&page), page.gone), (vec![4], vec![(SOURCE, 4)]));
}

/// The machine fails while a line is written, or the head of a segment: at every byte of it.
#[test]
fn a_line_that_was_half_written_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let limits = limits(2, 100);
    let logs = Logs::open(folder.path(), limits).unwrap();
    logs.append(JOB, &numbered(0..4)).unwrap();
    drop(logs);
    let last = segments(folder.path()).pop().unwrap();
    let whole = fs::read(&last).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&last, &whole[..cut]).unwrap();
        let kept = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        let before = 4 - (whole.iter().filter(|byte| **byte == b'\n').count() - 1);
        let lines = before + kept.saturating_sub(1);
        let logs = Logs::open(folder.path(), limits).unwrap();
        // Who reads before anybody writes sees the same.
        assert_eq!(all(&logs, JOB).len(), lines, "cut at {cut}");
        logs.append(JOB, &[line(9)]).unwrap();
        assert_eq!(all(&logs, JOB).last(), Some(&9), "cut at {cut}");
        assert_eq!(all(&logs, JOB).len(), lines + 1, "cut at {cut}");
        for path in segments(folder.path()) {
            if path > last {
                fs::remove_file(path).unwrap();
            }
        }
    }
}

#[test]
fn damage_costs_what_is_damaged_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(0..20)).unwrap();
    drop(logs);
    let second = segments(folder.path())[1].clone();
    let whole = fs::read(&second).unwrap();
    // A line, then the head.
    for (at, lost) in [(150, 1), (3, 0)] {
        let mut bytes = whole.clone();
        bytes[at..at + 10].fill(0);
        fs::write(&second, &bytes).unwrap();
        let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
        for next in 0..20 {
            let page = logs.read(JOB, &from(next), ALL).unwrap();
            let missing = 20 - next as usize - page.lines.len();
            assert!(missing <= lost, "{missing} from {next}");
        }
        logs.append(JOB, &numbered(0..25)).unwrap();
        assert_eq!(all(&logs, JOB).len(), 25 - lost);
        fs::write(&second, &whole).unwrap();
        for path in &segments(folder.path())[5..] {
            fs::remove_file(path).unwrap();
        }
        let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
        assert!(all(&logs, JOB).len() >= 20);
    }
}

fn kept(logs: &Logs) -> Vec<u64> {
    let has_lines = |job: &u64| !all(logs, JobId(*job)).is_empty();
    (0..200).filter(has_lines).collect()
}

#[test]
fn the_log_that_was_written_to_least_recently_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    fs::create_dir(folder.path().join("17")).unwrap();
    let logs = Logs::open(folder.path(), limits(4, 2)).unwrap();
    for job in 1..=5 {
        logs.append(JobId(job), &numbered(0..1)).unwrap();
        // The oldest job runs on.
        logs.append(JOB, &numbered(job..job + 1)).unwrap();
    }
    assert_eq!(kept(&logs), [1, 4, 5]);
    assert_eq!(end(&logs, JobId(2)), 0);
    // After a start nothing is known but the jobs' numbers.
    drop(logs);
    let logs = Logs::open(folder.path(), limits(4, 2)).unwrap();
    logs.append(JobId(4), &numbered(1..2)).unwrap();
    logs.append(JobId(6), &numbered(0..1)).unwrap();
    assert_eq!(kept(&logs), [4, 5, 6]);
    // What is not ours stays.
    assert!(folder.path().join("lost+found").exists() && folder.path().join("17").exists());
}

#[test]
fn files_that_are_open_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let limits = LogLimits {
        jobs: 1000,
        ..limits(4, 2)
    };
    let logs = Logs::open(folder.path(), limits).unwrap();
    for round in 0..2 {
        for job in 0..2 * OPEN_MAX as u64 {
            logs.append(JobId(job), &numbered(round..round + 1))
                .unwrap();
            assert!(logs.open.lock().journals.len() <= OPEN_MAX);
        }
    }
    for job in 0..2 * OPEN_MAX as u64 {
        assert_eq!(end(&logs, JobId(job)), 2);
        assert!(logs.open.lock().journals.len() <= OPEN_MAX);
        assert_eq!(all(&logs, JobId(job)), [0, 1]);
    }
}

#[test]
fn a_reader_follows_a_writer_and_misses_nothing() {
    const LINES: u64 = 2000;
    let folder = tempfile::tempdir().unwrap();
    let logs = Arc::new(Logs::open(folder.path(), limits(50, 1000)).unwrap());
    std::thread::scope(|scope| {
        for job in 1..=2 {
            let writer = Arc::clone(&logs);
            scope.spawn(move || {
                for number in (0..LINES).step_by(4) {
                    writer
                        .append(JobId(job), &numbered(number..number + 4))
                        .unwrap();
                }
            });
            let reader = Arc::clone(&logs);
            scope.spawn(move || {
                let mut next = 0;
                let begun = Clock::now();
                while next < LINES {
                    let waited = Clock::now().since(begun);
                    assert!(waited < Duration::from_secs(60), "no line {next}");
                    let page = reader.read(JobId(job), &from(next), 2000).unwrap();
                    let read = numbers(&page);
                    assert_eq!(read, (next..next + read.len() as u64).collect::<Vec<_>>());
                    next += read.len() as u64;
                    std::thread::yield_now();
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Appends of any size, starts in between, a crash now and then: what is read is the end of what
    /// was written, in one piece, and what has gone is told.
    #[test]
    fn what_is_read_is_the_end_of_what_was_written(
        steps in proptest::collection::vec((0u64..12, 0u8..4), 1..40),
        segment_lines in 1u64..6,
        segment_count in 1usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let limits = limits(segment_lines, segment_count);
        let mut logs = Logs::open(folder.path(), limits).unwrap();
        let mut next = 0;
        for (count, then) in steps {
            logs.append(JOB, &numbered(next..next + count)).unwrap();
            next += count;
            if then == 0 {
                logs = Logs::open(folder.path(), limits).unwrap();
            } else if then == 1 {
                let last = segments(folder.path()).pop().unwrap();
                let mut file = OpenOptions::new().append(true).open(last).unwrap();
                file.write_all(b"{\"at\":1").unwrap();
                logs = Logs::open(folder.path(), limits).unwrap();
            }
            let page = logs.read(JOB, &Cursor::default(), ALL).unwrap();
            let first = next - page.lines.len() as u64;
            prop_assert_eq!(numbers(&page), (first..next).collect::<Vec<_>>());
            let gone = page.gone.first().map_or(0, |(_, below)| *below);
            prop_assert_eq!(gone, first);
            prop_assert_eq!(end(&logs, JOB), next);
            prop_assert!(page.lines.len() as u64 >= next.min(1));
        }
    }

    /// Whatever the order in which lines come, and whenever the voter was started again.
    #[test]
    fn from_each_begin_all_lines_are_read_that_are_later_than_it_says(
        times in proptest::collection::vec((0u64..40, any::<bool>()), 1..60),
        segment_lines in 1u64..6,
        segment_count in 1usize..9,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let limits = limits(segment_lines, segment_count);
        let mut logs = Logs::open(folder.path(), limits).unwrap();
        for (number, (at, start)) in times.into_iter().enumerate() {
            let at = Unix(1_000_000 + at);
            logs.append(JOB, &[LogLine { at, ..line(number as u64) }]).unwrap();
            if start {
                logs = Logs::open(folder.path(), limits).unwrap();
            }
        }
        let later = |cursor: &Cursor, than: Unix| {
            let read = logs.read(JOB, cursor, ALL).unwrap().lines.into_iter();
            read.filter(|line| line.at > than).collect::<Vec<_>>()
        };
        for Begin { cursor, after } in logs.begins(JOB).unwrap() {
            prop_assert_eq!(later(&cursor, after), later(&Cursor::default(), after));
        }
    }
}

/// So it needs no room on the disk, and what is there is read when there is none.
#[test]
fn to_read_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join(JOB.to_string());
    fs::create_dir(&place).unwrap();
    // A head that found no room, or was written in part.
    let segment = place.join(format!("{:016x}.log", 0));
    fs::write(&segment, "").unwrap();
    let logs = Logs::open(folder.path(), limits(4, 8)).unwrap();
    assert_eq!(all(&logs, JOB), [0; 0]);
    assert_eq!(end(&logs, JOB), 0);
    assert_eq!(fs::metadata(&segment).unwrap().len(), 0);
    logs.append(JOB, &numbered(0..6)).unwrap();
    drop(logs);
    // The same of a segment behind others.
    let next = place.join(format!("{:016x}.log", 9));
    fs::write(&next, "{\"ends\":").unwrap();
    let logs = Logs::open(folder.path(), limits(4, 8)).unwrap();
    assert_eq!(all(&logs, JOB), (0..6).collect::<Vec<_>>());
    assert_eq!(fs::metadata(&next).unwrap().len(), 0);
    logs.append(JOB, &numbered(4..9)).unwrap();
    drop(logs);
    let logs = Logs::open(folder.path(), limits(4, 8)).unwrap();
    assert_eq!(all(&logs, JOB), (0..9).collect::<Vec<_>>());
}
