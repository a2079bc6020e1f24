//! `odeon bench`: what the runtime costs here.

use anyhow::Result;
use odeon_bench::Filter;

use crate::args::BenchArgs;
use crate::print;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let filter = Filter {
        groups: args.groups.clone(),
        rounds: args.rounds.into(),
    };
    let rows = odeon_bench::run(&filter)?;
    let text = if args.json {
        odeon_bench::json_lines(&rows)
    } else {
        odeon_bench::table(&rows)
    };
    Ok(print::line(text.trim_end())?)
}
