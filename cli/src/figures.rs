//! Numbers, sizes and times as people read them, the same as on the pages in a browser.

use std::time::Duration;

use odeon_client::inspect::Measured;

use crate::inspect::SECONDS_MAX;

/// 1,204
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 1 node, 2 nodes
pub(crate) fn plural(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", count(n)),
    }
}

/// 1.2k, 3.4M: three digits at most.
pub(crate) fn short(n: f64) -> String {
    match n.abs() {
        size if size >= 1e12 => format!("{}T", digits(n / 1e12)),
        size if size >= 1e9 => format!("{}G", digits(n / 1e9)),
        size if size >= 1e6 => format!("{}M", digits(n / 1e6)),
        size if size >= 1e4 => format!("{}k", digits(n / 1e3)),
        size if size >= 100.0 || n.fract() == 0.0 => match n < 0.0 {
            true => format!("-{}", count(size.round() as u64)),
            false => count(size.round() as u64),
        },
        _ => digits(n),
    }
}

/// Three digits that count.
fn digits(n: f64) -> String {
    match n.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => format!("{n:.0}"),
        size if size >= 9.995 => format!("{n:.1}"),
        size if size >= 0.0995 => format!("{n:.2}"),
        size if size >= 0.001 => format!("{n:.4}"),
        _ => format!("{n:.0e}"),
    }
}

/// Powers of 1024.
pub(crate) fn bytes(n: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut at, mut rest) = (0, n);
    while rest.abs() >= 1024.0 && at < units.len() - 1 {
        rest /= 1024.0;
        at += 1;
    }
    match at {
        0 => format!("{rest:.0} B"),
        _ => format!("{} {}", digits(rest), units[at]),
    }
}

pub(crate) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// A length of time in its two largest units.
pub(crate) fn span(ms: f64) -> String {
    match ms {
        ms if ms < 0.0 => format!("-{}", span(-ms)),
        0.0 => "0 s".to_owned(),
        ms if ms < 0.9995 => format!("{} \u{b5}s", digits(ms * 1e3)),
        ms if ms < 999.5 => format!("{} ms", digits(ms)),
        ms if ms < 9950.0 => format!("{:.1} s", ms / 1e3),
        ms => whole((ms / 1e3).round() as u64),
    }
}

/// A length of time in whole seconds, so that it changes once a second.
pub(crate) fn age(ms: f64) -> String {
    whole((ms.max(0.0) / 1e3) as u64)
}

fn whole(s: u64) -> String {
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} m {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} m", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// 12:04:11, in universal time.
pub(crate) fn clock(at_ms: f64) -> String {
    let s = (at_ms.max(0.0) / 1e3) as u64;
    format!("{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// A number with the unit that it was told with.
pub(crate) fn value(n: f64, unit: &str) -> String {
    match unit {
        "bytes" | "B" => bytes(n),
        "bytes/s" | "B/s" => format!("{}/s", bytes(n)),
        "ms" => span(n),
        "us" => span(n / 1e3),
        "s" => span(n * 1e3),
        "share" => percent(n),
        "Hz" => format!("{:.0} MHz", n / 1e6),
        unit if unit.starts_with('/') => format!("{}{unit}", short(n)),
        unit => format!("{} {unit}", short(n)).trim_end().to_owned(),
    }
}

/// The text of a measured value; `-` stands for one that was not measured.
pub(crate) fn measured(of: &Measured, show: impl Fn(f64) -> String) -> String {
    of.value().map_or_else(|| "-".to_owned(), show)
}

/// The error of clocks in words: how far they may be apart.
pub(crate) fn clock_error(us: Option<f64>) -> String {
    us.map_or_else(
        || "unknown".to_owned(),
        |us| format!("\u{b1}{}", span(us / 1e3)),
    )
}

/// A curve in one line: so many places, each as high as its largest number.
pub(crate) fn spark(points: &[f64], width: usize) -> String {
    const LEVELS: [char; 8] = [
        '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
        '\u{2588}',
    ];
    let finite: Vec<f64> = points.iter().copied().filter(|it| it.is_finite()).collect();
    let width = width.min(finite.len());
    let (low, high) = finite.iter().fold((f64::MAX, f64::MIN), |(low, high), it| {
        (low.min(*it), high.max(*it))
    });
    let place = |at: usize| {
        let (from, to) = (at * finite.len() / width, (at + 1) * finite.len() / width);
        let most = finite[from..to].iter().copied().fold(f64::MIN, f64::max);
        let level = match high > low {
            true => (most - low) / (high - low) * 7.0,
            false => 0.0,
        };
        LEVELS[(level.round() as usize).min(7)]
    };
    (0..width).map(place).collect()
}

/// Text of others' choosing: what would steer a terminal is replaced.
pub(crate) fn plain(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

/// A time as people write it: 90s, 10m, 2h, 1d.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: write 90s, 10m, 2h or 1d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

/// Columns by which actors are sorted: numbers, and words.
const NUMBERS: [&str; 9] = [
    "rate", "mailbox", "busy", "waiting", "restarts", "handled", "failed", "age", "since",
];
const WORDS: [&str; 6] = ["state", "name", "type", "node", "job", "id"];

/// For how many seconds somebody records.
pub(crate) fn recorded_for(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= SECONDS_MAX);
    seconds.ok_or_else(|| format!("more than 0 and at most {SECONDS_MAX} seconds are recorded"))
}

/// A column by which people sort, as the API takes it: there, `-` stands for the largest first.
pub(crate) fn order(text: &str) -> Result<String, String> {
    let (turned, column) = match text.strip_prefix('-') {
        Some(column) => (true, column),
        None => (false, text),
    };
    let is_number = NUMBERS.contains(&column);
    if !is_number && !WORDS.contains(&column) {
        return Err(format!(
            "there is no column `{column}`: columns are {}, {}",
            NUMBERS.join(", "),
            WORDS.join(", ")
        ));
    }
    Ok(match is_number != turned {
        true => format!("-{column}"),
        false => column.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_times_have_two_units() {
        for (n, expect) in [
            (0, "0"),
            (999, "999"),
            (1_204, "1,204"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(n), expect);
        }
        for (n, expect) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (12.0, "12"),
            (12.34, "12.3"),
            (1_234.0, "1,234"),
            (12_345.0, "12.3k"),
            (3_400_000.0, "3.40M"),
            (-1_500.0, "-1,500"),
        ] {
            assert_eq!(short(n), expect);
        }
        for (ms, expect) in [
            (0.0, "0 s"),
            (0.012, "12.0 \u{b5}s"),
            (3.5, "3.50 ms"),
            (1_500.0, "1.5 s"),
            (61_000.0, "1 m 01 s"),
            (3_700_000.0, "1 h 01 m"),
            (90_000_000.0, "1 d 1 h"),
        ] {
            assert_eq!(span(ms), expect);
        }
        assert_eq!(
            (age(999.0), age(-5.0)),
            ("0 s".to_owned(), "0 s".to_owned())
        );
        assert_eq!(bytes(1_536.0), "1.50 KiB");
        assert_eq!(clock(1_000.0 * 45_296.0), "12:34:56");
    }

    #[test]
    fn a_curve_keeps_its_peaks_and_no_points_are_no_curve() {
        assert_eq!(spark(&[0.0, 0.0, 7.0, 0.0], 2), "\u{2581}\u{2588}");
        assert_eq!(spark(&[1.0, 1.0], 8), "\u{2581}\u{2581}");
        assert_eq!(spark(&[], 8), "");
        assert_eq!(spark(&[f64::NAN], 8), "");
        assert_eq!(spark(&[1.0], 0), "");
    }

    #[test]
    fn what_steers_a_terminal_is_not_printed() {
        assert_eq!(plain("a\u{1b}[31m\nb"), "a\u{fffd}[31m b");
    }

    #[test]
    fn times_and_columns_are_read_or_refused_in_words() {
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "10", "m", "10\u{b5}", "-1s"] {
            assert!(time(wrong).unwrap_err().contains("is no time"), "{wrong}");
        }
        assert_eq!(order("rate").as_deref(), Ok("-rate"));
        assert_eq!(order("-rate").as_deref(), Ok("rate"));
        assert_eq!(order("name").as_deref(), Ok("name"));
        assert!(
            order("speed")
                .unwrap_err()
                .contains("there is no column `speed`")
        );
    }
}
