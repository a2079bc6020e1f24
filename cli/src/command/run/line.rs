//! The line that tells where a run is: as much as fits, what matters most first.

use std::time::Duration;

/// The parts that fit into so many columns. Behind the first that does not, none is shown.
pub(super) fn fit(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { BETWEEN };
        let long = [&line, between, part].map(|text| text.chars().count());
        if long.iter().sum::<usize>() > columns && !line.is_empty() {
            break;
        }
        line = line + between + part;
    }
    line
}

/// The time left, in words, when `done` steps took `passed` and so many remain; `None` when that
/// cannot be told.
pub(super) fn left(done: u64, remaining: u64, passed: Duration) -> Option<String> {
    if done == 0 || remaining == 0 {
        return None;
    }
    let seconds = passed.as_secs_f64() / done as f64 * remaining as f64;
    Some(match seconds {
        ..120.0 => format!("{seconds:.0} s left"),
        ..7200.0 => format!("{:.0} min left", seconds / 60.0),
        _ => format!("{:.0} h left", seconds / 3600.0),
    })
}

const BETWEEN: &str = "  ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_shows_whole_values_and_what_matters_most() {
        let parts = [
            "reinforced 120/200",
            "reward 0.873",
            "right 87 %",
            "stale 0.5",
            "19898 tok/s",
            "12 s left",
        ]
        .map(str::to_owned);
        for (columns, shown) in [(200, 6), (80, 6), (79, 6), (60, 4), (40, 2), (10, 1)] {
            let line = fit(&parts, columns);
            assert_eq!(line, parts[..shown].join("  "), "{columns}");
        }
    }

    #[test]
    fn the_time_that_is_left_follows_from_the_steps_done() {
        let left = |done, remaining, seconds| left(done, remaining, Duration::from_secs(seconds));
        assert_eq!(left(0, 10, 5), None);
        assert_eq!(left(10, 0, 5), None);
        assert_eq!(left(10, 20, 5).unwrap(), "10 s left");
        assert_eq!(left(1, 30, 10).unwrap(), "5 min left");
        assert_eq!(left(1, 1000, 36).unwrap(), "10 h left");
    }
}
