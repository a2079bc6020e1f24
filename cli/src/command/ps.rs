//! `odeon ps`: the actors of a run or of the cluster, and the processes of a run.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use odeon_client::inspect::{ActorRow, Envelope};
use odeon_client::{Asked, Inspector, Page, View};

use super::watched::Watched;
use super::{pages, processes};
use crate::args::PsArgs;
use crate::figures;
use crate::print;
use crate::top::signs;
use crate::waiter::Waiter;

/// Problems that are told beneath the actors.
const PROBLEMS: usize = 5;

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let watched = Watched::of(&args.look)?;
    if let Some(run) = watched.run() {
        if args.processes {
            return list_processes(run);
        }
        let plain = args.filter.is_empty() && args.sort.is_none() && !args.all && !args.json;
        if plain && pages::find(run)?.is_none() {
            print::say("this run serves no pages, so its processes are all that is seen of it");
            return list_processes(run);
        }
    }
    let inspector = watched.inspector()?;
    let runtime = Waiter::alone()?;
    let page = runtime.block_on(actors(&inspector, args));
    let page = page.map_err(|error| watched.why_not(error))?;
    if args.json {
        for row in &page.data {
            print::line(serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    if page.data.is_empty() {
        print::say(match args.filter.is_empty() {
            true => "no actors run".to_owned(),
            false => format!("no actor matches `{}`", args.filter),
        });
        return Ok(());
    }
    let cluster = runtime.block_on(inspector.page(&Asked::all(View::Cluster)));
    let pids = pids(cluster.ok());
    let roles = watched.run().map(|run| roles(run)).unwrap_or_default();
    table(&page, &pids, &roles)?;
    if page.shown < page.total {
        print::say(format!(
            "{} of {} actors are shown; --limit shows more",
            figures::count(page.shown),
            figures::count(page.total)
        ));
    }
    if args.filter.is_empty() {
        let now = runtime.block_on(inspector.page(&Asked::all(View::Now)));
        say_problems(now.ok());
    }
    Ok(())
}

/// Says what is wrong, data that are left out among it, to whoever looks at actors alone.
fn say_problems(now: Option<Envelope<Page>>) {
    let Some(Page::Now(now)) = now.map(|page| page.data) else {
        return;
    };
    for problem in now.problems.iter().take(PROBLEMS) {
        print::say(format!("{}: {}", problem.severity, problem.sentence));
    }
    let more = now.problems.len().saturating_sub(PROBLEMS);
    if more > 0 {
        let more = figures::plural(more as u64, "problem");
        print::say(format!("{more} more: `odeon top` shows all"));
    }
}

async fn actors(
    inspector: &Inspector,
    args: &PsArgs,
) -> Result<Envelope<Vec<ActorRow>>, odeon_client::ClientError> {
    let filter = match args.all {
        true => format!("{} system:any", args.filter),
        false => args.filter.clone(),
    };
    let asked = Asked {
        view: View::Actors,
        filter,
        sort: args.sort.clone().unwrap_or_default(),
        limit: Some(args.limit.get()),
    };
    let page = inspector.page(&asked).await?;
    Ok(page.map(|page| match page {
        Page::Actors(actors) => actors.rows,
        _ => vec![],
    }))
}

/// The processes of a run, as its driver has noted them.
fn list_processes(run: &Path) -> Result<()> {
    let rows: Vec<Vec<String>> = processes::read(run)?
        .into_iter()
        .map(|process| vec![process.role, process.actor, process.pid.to_string()])
        .collect();
    Ok(print::table(&["role", "actor", "pid"], &rows)?)
}

/// The operating system's numbers of processes, by their ids.
fn pids(cluster: Option<Envelope<Page>>) -> HashMap<String, u32> {
    let Some(Page::Cluster(cluster)) = cluster.map(|page| page.data) else {
        return HashMap::new();
    };
    let processes = cluster.nodes.into_iter().flat_map(|node| node.processes);
    processes
        .filter_map(|process| Some((process.id, process.pid?)))
        .collect()
}

/// The roles of a run's actors, by their ids.
pub(super) fn roles(run: &Path) -> HashMap<String, String> {
    let processes = processes::read(run).unwrap_or_default().into_iter();
    processes
        .map(|process| (process.actor, process.role))
        .collect()
}

fn table(
    page: &Envelope<Vec<ActorRow>>,
    pids: &HashMap<String, u32>,
    roles: &HashMap<String, String>,
) -> Result<()> {
    let head = [
        "name", "state", "type", "id", "node", "process", "mailbox", "rate", "doing", "for",
        "restarts", "pid",
    ];
    let expendable = ["process", "pid", "restarts", "id", "type", "node", "for"];
    let mut table = print::Table::new(head).expendable(&expendable);
    for row in &page.data {
        let (doing, since) = signs::doing(row);
        let name = row.name.as_ref().or_else(|| roles.get(&row.id));
        table.row([
            figures::plain(name.map_or("-", String::as_str)),
            signs::worded(&row.state),
            figures::plain(&row.r#type),
            row.id.clone(),
            figures::plain(&row.node),
            row.process.clone(),
            format!("{}/{}", row.mailbox.len, row.mailbox.max),
            format!("{}/s", figures::short(row.rate)),
            figures::plain(&doing),
            since.map_or_else(String::new, |since| figures::age(page.captured_at - since)),
            row.restarts.to_string(),
            pids.get(&row.process)
                .map_or_else(|| "-".to_owned(), ToString::to_string),
        ]);
    }
    Ok(table.print()?)
}
