//! Measures the runtime: `odeon-bench [--json] [--rounds N] [GROUP..]`.

use anyhow::Context;

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn main() -> anyhow::Result<()> {
    odeon_bench::serve_if_child();
    let mut filter = odeon_bench::Filter::default();
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--rounds" => {
                let rounds = args.next().context("--rounds needs a number")?;
                filter.rounds = rounds.parse().context("--rounds needs a number")?;
            }
            group if odeon_bench::groups().any(|known| known == group) => {
                filter.groups.push(group.to_owned());
            }
            other => anyhow::bail!(
                "unknown argument `{other}`; groups: {}",
                odeon_bench::groups().collect::<Vec<_>>().join(", ")
            ),
        }
    }
    let rows = odeon_bench::run(&filter)?;
    if json {
        print!("{}", odeon_bench::json_lines(&rows));
    } else {
        print!("{}", odeon_bench::table(&rows));
    }
    Ok(())
}
