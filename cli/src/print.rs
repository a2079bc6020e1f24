//! What people see: data on standard output, talk on standard error.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command prints"
)]

use std::fmt::Display;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Talk of the runtime goes to standard error; `ODEON_LOG` chooses how much.
pub(crate) fn start_log() {
    let filter = EnvFilter::try_from_env("ODEON_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}

/// A line of data.
pub(crate) fn line(text: impl Display) {
    println!("{text}");
}

/// A line of talk.
pub(crate) fn say(text: impl Display) {
    eprintln!("{text}");
}

/// Why the command failed, on one line, causes included.
pub(crate) fn error(error: &anyhow::Error) {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Many errors name their cause themselves.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    eprintln!("error: {text}");
}

/// Rows under headings, columns aligned: the first to the left, the others to the right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = headings
        .iter()
        .map(|heading| heading.chars().count())
        .collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: &[String]| {
        let mut text = String::new();
        for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if index == 0 {
                text += &format!("{cell:<width$}");
            } else {
                text += &format!("  {cell:>width$}");
            }
        }
        println!("{}", text.trim_end());
    };
    print(&headings.iter().map(ToString::to_string).collect::<Vec<_>>());
    for row in rows {
        print(row);
    }
}
