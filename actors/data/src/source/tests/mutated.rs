//! Files that were damaged in any way never make a reader panic, hang or take much memory.
//!
//! `ODEON_MUTATIONS` says how many files are made of each format; a few hundred where it says nothing.

use super::*;

/// One of the ways in which files are damaged.
fn mutated(state: &mut u64, whole: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=order::below(state, 3) {
        if bytes.is_empty() {
            break;
        }
        let at = order::below(state, bytes.len() as u64) as usize;
        let length = order::below(state, 64) as usize;
        match order::below(state, 7) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << order::below(state, 8),
            2 => bytes[at] = order::next(state) as u8,
            3 => drop(bytes.drain(at..bytes.len().min(at + length))),
            4 => {
                let from = order::below(state, other.len() as u64) as usize;
                let piece = &other[from..other.len().min(from + length)];
                bytes.splice(at..at, piece.iter().copied());
            }
            5 => {
                let end = bytes.len().min(at + length);
                let piece = bytes[at..end].to_vec();
                bytes.extend(piece);
            }
            // As lengths are written: of the largest numbers there are.
            _ => {
                let end = bytes.len().min(at + [1, 2, 4, 8][length % 4]);
                bytes[at..end].fill([0x00, 0x7f, 0xff][length % 3]);
            }
        }
    }
    bytes
}

fn count() -> u64 {
    let set = std::env::var("ODEON_MUTATIONS").ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(200)
}

#[test]
fn mutated_files_of_each_format_are_read_or_refused() {
    let mut all = each_format();
    all.extend(conversations::each_format());
    let place = conversations::place("tools");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for (nth, (name, format, whole)) in all.iter().enumerate() {
        let mut state = 11 + nth as u64;
        let other = &all[(nth + 1) % all.len()].2;
        for round in 0..count() {
            let bytes = mutated(&mut state, whole, other);
            let path = place.write(&format!("{round}/a.{name}"), &bytes);
            let spec = SourceSpec {
                bad_part: 1.0,
                block_bytes: 300,
                ..SourceSpec::new("test", &path, format.clone())
            };
            let error = runtime.block_on(async {
                let source = Source::open(SourceNumber(0), &spec, &place.opening).await?;
                for cell in 0..source.cells() {
                    source.cell(0, cell).await?;
                }
                Ok::<(), SourceError>(())
            });
            if let Err(error) = error {
                let error = error.to_string();
                assert!(error.contains(&path), "{name} {round}: {error}");
                assert!(!error.contains("gave up"), "{name} {round}: {error}");
            }
            fs::remove_dir_all(place.path(&round.to_string())).unwrap();
            for folder in ["index", "plain"] {
                let _ = fs::remove_dir_all(place.cache.path().join(folder));
            }
        }
    }
    assert!(peak_bytes() < 1 << 30, "{} bytes", peak_bytes());
}

/// The most memory that the process has had at a time.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    kilobytes.map_or(0, |number| number.trim().parse::<u64>().unwrap_or(0) << 10)
}
