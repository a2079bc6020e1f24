//! `odeon bench`: what the runtime costs here.

mod head;

use anyhow::Result;
use odeon_bench::Filter;

use crate::args::BenchArgs;
use crate::args::words::HEAD;
use crate::print;

pub(crate) use head::serve_if_hollow;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let (heads, groups): (Vec<_>, Vec<_>) = args.groups.iter().partition(|it| *it == HEAD);
    let mut rows = vec![];
    if !groups.is_empty() || heads.is_empty() {
        let filter = Filter {
            groups: groups.into_iter().cloned().collect(),
            rounds: args.rounds.into(),
        };
        rows = odeon_bench::run(&filter)?;
    }
    if !heads.is_empty() {
        rows.extend(head::measure()?);
    }
    let text = if args.json {
        odeon_bench::json_lines(&rows)
    } else {
        odeon_bench::table(&rows)
    };
    Ok(print::line(text.trim_end())?)
}
