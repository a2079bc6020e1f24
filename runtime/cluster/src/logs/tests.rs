//! Logs: their bounds, their numbers, and what a crash leaves of them.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const JOB: JobId = JobId(1);

fn line(text: impl Into<String>) -> LogLine {
    LogLine {
        at: Unix(1),
        node: "a".to_owned(),
        process: "driver".to_owned(),
        stream: Stream::Out,
        text: text.into(),
    }
}

fn numbered(numbers: std::ops::Range<u64>) -> Vec<LogLine> {
    numbers.map(|number| line(number.to_string())).collect()
}

/// Few lines a segment, few segments a job.
fn limits(segment_lines: u64, segments: usize) -> LogLimits {
    LogLimits {
        segment_bytes: segment_lines * bytes_of(&line("0")),
        segments,
        jobs: 3,
    }
}

fn bytes_of(line: &LogLine) -> u64 {
    serde_json::to_string(line).unwrap().len() as u64 + 1
}

const ALL: usize = usize::MAX;

fn texts(page: &LogPage) -> Vec<&str> {
    page.lines.iter().map(|line| line.text.as_str()).collect()
}

/// The lines say their own numbers.
fn check(page: &LogPage) {
    for (number, text) in (page.first..).zip(texts(page)) {
        assert_eq!(text, number.to_string());
    }
}

#[test]
fn lines_are_numbered_over_segments_and_starts() {
    let folder = tempfile::tempdir().unwrap();
    for begin in (0..30).step_by(3) {
        let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
        assert_eq!(logs.end(JOB).unwrap(), begin);
        logs.append(JOB, &numbered(begin..begin + 2)).unwrap();
        logs.append(JOB, &numbered(begin + 2..begin + 3)).unwrap();
        assert_eq!(logs.end(JOB).unwrap(), begin + 3);
        // From everywhere on, also where nothing is yet.
        for from in 0..begin + 5 {
            let page = logs.read(JOB, from, ALL).unwrap();
            assert_eq!(page.first, from);
            assert_eq!(page.lines.len() as u64, (begin + 3).saturating_sub(from));
            check(&page);
        }
    }
}

#[test]
fn a_page_has_so_many_bytes_or_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(0..10)).unwrap();
    let one = bytes_of(&line("0")) as usize;
    for (bytes_max, lines) in [
        (0, 1),
        (one, 1),
        (3 * one, 3),
        (3 * one + 1, 3),
        (7 * one, 7),
    ] {
        let page = logs.read(JOB, 2, bytes_max).unwrap();
        assert_eq!(page.lines.len(), lines, "{bytes_max}");
        check(&page);
    }
    let nothing = LogPage {
        first: 7,
        lines: vec![],
    };
    assert_eq!(logs.read(JobId(9), 7, ALL).unwrap(), nothing);
    assert_eq!(logs.end(JobId(9)).unwrap(), 0);
}

#[test]
fn the_oldest_lines_go_and_the_reader_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let limits = limits(5, 3);
    let logs = Logs::open(folder.path(), limits).unwrap();
    for number in 0..200 {
        logs.append(JOB, &numbered(number..number + 1)).unwrap();
        let page = logs.read(JOB, 0, ALL).unwrap();
        check(&page);
        let end = page.first + page.lines.len() as u64;
        assert_eq!(end, number + 1);
        // At least all segments but the one that is begun.
        assert!(page.lines.len() >= (2 * 3).min(number as usize + 1));
        let sizes = fs::read_dir(folder.path().join("j1")).unwrap();
        let sizes: Vec<u64> = sizes
            .map(|it| it.unwrap().metadata().unwrap().len())
            .collect();
        assert!(sizes.len() <= limits.segments);
        let most = limits.segment_bytes + bytes_of(&line("000"));
        assert!(sizes.iter().all(|bytes| *bytes <= most), "{sizes:?}");
    }
}

#[test]
fn limits_of_nothing_keep_the_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(0, 0)).unwrap();
    logs.append(JOB, &numbered(0..5)).unwrap();
    let page = logs.read(JOB, 0, ALL).unwrap();
    assert_eq!((page.first, texts(&page)), (4, vec!["4"]));
}

/// The machine fails while a line is written: at every byte of it.
#[test]
fn a_line_that_was_half_written_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let last = line("half written, with \u{e4}\u{2192}");
    let logs = Logs::open(folder.path(), LogLimits::default()).unwrap();
    logs.append(JOB, &numbered(0..3)).unwrap();
    logs.append(JOB, std::slice::from_ref(&last)).unwrap();
    drop(logs);
    let path = path_of(&folder.path().join("j1"), 0);
    let whole = fs::read(&path).unwrap();
    let begin = whole.len() - bytes_of(&last) as usize;
    for cut in begin..=whole.len() {
        let lines = if cut == whole.len() { 4 } else { 3 };
        fs::write(&path, &whole[..cut]).unwrap();
        // Who reads before anybody writes sees the same.
        let logs = Logs::open(folder.path(), LogLimits::default()).unwrap();
        let page = logs.read(JOB, 0, ALL).unwrap();
        assert_eq!(page.lines.len(), lines, "cut at {cut}");
        logs.append(JOB, &[line("next")]).unwrap();
        let page = logs.read(JOB, 2, ALL).unwrap();
        assert_eq!(page.lines.len(), lines - 1, "cut at {cut}");
        assert_eq!(page.lines[lines - 2].text, "next");
        assert_eq!(logs.end(JOB).unwrap(), lines as u64 + 1);
    }
}

#[test]
fn a_damaged_line_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::open(folder.path(), limits(4, 100)).unwrap();
    logs.append(JOB, &numbered(0..10)).unwrap();
    let path = path_of(&folder.path().join("j1"), 4);
    let mut bytes = fs::read(&path).unwrap();
    let second = bytes_of(&line("4")) as usize;
    bytes[second..second + 10].fill(0);
    fs::write(&path, &bytes).unwrap();
    let page = logs.read(JOB, 0, ALL).unwrap();
    let damaged = texts(&page)[5];
    assert!(damaged.starts_with("this line is damaged"), "{damaged}");
    assert_eq!(texts(&page)[6], "6");
    assert_eq!(page.lines.len(), 10);
    // The end of a segment that is not the last is gone: numbers stay true.
    fs::write(&path, &bytes[..second + 10]).unwrap();
    let page = logs.read(JOB, 0, ALL).unwrap();
    assert_eq!((page.first, page.lines.len()), (0, 5));
    check(&page);
    let page = logs.read(JOB, 5, ALL).unwrap();
    assert_eq!((page.first, page.lines.len()), (8, 2));
    check(&page);
}

fn kept(logs: &Logs) -> Vec<u64> {
    let has_lines = |job: &u64| !logs.read(JobId(*job), 0, ALL).unwrap().lines.is_empty();
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
    assert_eq!(logs.end(JobId(2)).unwrap(), 0);
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
        assert_eq!(logs.end(JobId(job)).unwrap(), 2);
        assert!(logs.open.lock().journals.len() <= OPEN_MAX);
        check(&logs.read(JobId(job), 0, ALL).unwrap());
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
                while next < LINES {
                    let page = reader.read(JobId(job), next, 2000).unwrap();
                    assert_eq!(page.first, next);
                    check(&page);
                    next += page.lines.len() as u64;
                    std::thread::yield_now();
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Appends of any size, starts in between, a crash now and then: what is read is the end of what
    /// was written, in one piece.
    #[test]
    fn what_is_read_is_the_end_of_what_was_written(
        steps in proptest::collection::vec((0u64..12, 0u8..4), 1..40),
        segment_lines in 1u64..6,
        segments in 1usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let limits = limits(segment_lines, segments);
        let mut logs = Logs::open(folder.path(), limits).unwrap();
        let mut next = 0;
        for (count, then) in steps {
            logs.append(JOB, &numbered(next..next + count)).unwrap();
            next += count;
            if then == 0 {
                logs = Logs::open(folder.path(), limits).unwrap();
            } else if then == 1 {
                let folder = folder.path().join("j1");
                let last = super::segments(&folder).unwrap().pop().unwrap();
                let mut file = OpenOptions::new().append(true).open(path_of(&folder, last)).unwrap();
                file.write_all(b"{\"at\":1").unwrap();
                logs = Logs::open(folder.parent().unwrap(), limits).unwrap();
            }
            let page = logs.read(JOB, 0, ALL).unwrap();
            check(&page);
            prop_assert_eq!(page.first + page.lines.len() as u64, next);
            prop_assert_eq!(logs.end(JOB).unwrap(), next);
            prop_assert!(page.lines.len() as u64 >= next.min(1));
        }
    }
}
