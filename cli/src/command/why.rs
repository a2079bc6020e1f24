//! `odeon why`: where the processes of a run or the actors of a job are and why, or what they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon::ActorId;
use odeon::inspect::Why;
use odeon_actors::rl::ranks::RanksPlan;
use odeon_client::inspect::{ActorRow, RunMesh, StartupStage, Subject};
use odeon_client::types::Node;
use odeon_client::{Asked, Inspector, Page, View};
use odeon_cluster::startup::{StartStage, Startup};
use odeon_mesh::Mesh;
use serde::Serialize;

use super::job::array::Named;
use super::job::versions;
use super::places::{FILE, Places};
use super::processes;
use super::stages;
use super::watched::Watched;
use super::{cluster, job};
use crate::args::WhyArgs;
use crate::figures;
use crate::print;
use crate::waiter::Waiter;

/// One process of a run or actor of a job, and why it is where it is.
#[derive(Serialize)]
struct Told {
    role: String,
    actor: Option<String>,
    /// In words.
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Why>,
    /// Set for a rank whose place is in a sentence about all: it is shown where it is asked for.
    #[serde(skip)]
    in_short: bool,
}

impl Told {
    /// A sentence about ranks that share a model.
    const fn of_ranks(role: String, why: String) -> Self {
        Self {
            role,
            actor: None,
            why,
            facts: None,
            in_short: false,
        }
    }
}

pub(crate) fn run(args: &WhyArgs) -> Result<()> {
    let told = match job_of(&args.run) {
        Some(job) => of_named(job, args)?,
        None => of_run(&args.run)?,
    };
    let wanted: Vec<Told> = match &args.actor {
        None if args.json => told,
        None => told.into_iter().filter(|one| !one.in_short).collect(),
        Some(name) => {
            let known: Vec<String> = told.iter().map(|one| one.role.clone()).collect();
            let fits = |one: &Told| one.role == *name || one.actor.as_ref() == Some(name);
            let wanted: Vec<Told> = told.into_iter().filter(fits).collect();
            if wanted.is_empty() {
                let place = job_of(&args.run).unwrap_or("this run");
                bail!("no `{name}` in {place}: it has {}", known.join(", "));
            }
            wanted
        }
    };
    for one in wanted {
        if args.json {
            print::line(serde_json::to_string(&one)?)?;
        } else {
            let actor = one
                .actor
                .map_or_else(String::new, |actor| format!(" ({actor})"));
            let (role, why) = (figures::plain(&one.role), figures::plain(&one.why));
            print::line(format!("{role}{actor}: {why}"))?;
        }
    }
    Ok(())
}

fn of_run(run: &Path) -> Result<Vec<Told>> {
    // Whether the run goes on; the file stays behind one that was killed.
    processes::read(run)?;
    let path = run.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let places: Places = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let mut told = told(&places);
    explain(run, &mut told);
    let told = with_stages(told, &places);
    Ok(told)
}

/// Puts the sentences about ranks that share a model before those about each process.
fn with_stages(mut told: Vec<Told>, places: &Places) -> Vec<Told> {
    let Some(mesh) = places.mesh.as_ref().and_then(|it| it.parse::<Mesh>().ok()) else {
        return told;
    };
    // By role, the nodes of its ranks.
    let mut roles: BTreeMap<&str, BTreeMap<usize, String>> = BTreeMap::new();
    for (name, actor) in &places.roles {
        let Some((role, rank)) = RanksPlan::rank_of(name) else {
            continue;
        };
        if let Some(Why::Placed { node, .. }) = places.why(*actor) {
            roles.entry(role).or_default().insert(rank, node);
        }
    }
    let mut all = vec![];
    for (role, nodes) in roles {
        let sentences = of_role(&mesh, role, &nodes);
        if sentences.is_empty() {
            continue;
        }
        all.extend(sentences);
        for one in &mut told {
            one.in_short |= RanksPlan::rank_of(&one.role).is_some_and(|(of, _)| of == role);
        }
    }
    all.extend(told);
    all
}

/// The sentences about the ranks of a role, by the nodes of those that are known.
fn of_role(mesh: &Mesh, role: &str, nodes: &BTreeMap<usize, String>) -> Vec<Told> {
    let nodes: Vec<String> = (0..mesh.len())
        .map(|rank| nodes.get(&rank).cloned().unwrap_or_default())
        .collect();
    let name = match role {
        "" => "ranks".to_owned(),
        role => format!("ranks of {role}"),
    };
    let told = stages::told(mesh, &nodes).into_iter();
    told.map(|why| Told::of_ranks(name.clone(), why)).collect()
}

/// Asks the pages of a run, if it has any, why those are where they are that hold no lease.
fn explain(run: &Path, told: &mut [Told]) {
    let Ok(runtime) = Waiter::alone() else {
        return;
    };
    let Ok(inspector) = Watched::Run(run.to_owned()).inspector() else {
        return;
    };
    for one in told.iter_mut().filter(|one| one.facts.is_none()) {
        let Some(actor) = &one.actor else { continue };
        let Ok(detail) = runtime.block_on(inspector.actor(actor)) else {
            continue;
        };
        if let Some(placement) = detail.data.placement {
            one.why = placement.sentence;
        }
    }
}

/// The number or the name of a job, where it is no folder.
fn job_of(run: &Path) -> Option<&str> {
    let is_one = !run.exists() && run.components().count() == 1;
    run.to_str().filter(|_| is_one)
}

/// Actors of a job that are asked about.
const ACTORS_MAX: usize = 200;

/// A job, or those of an array: each that is not over with why, or how it has ended.
fn of_named(word: &str, args: &WhyArgs) -> Result<Vec<Told>> {
    let (client, runtime) = job::cluster(args.cluster.dir.as_ref())?;
    let named = runtime
        .block_on(Named::find(&client, word))
        .with_context(|| {
            format!(
                "there is no job {word}, nor a folder of that name: `odeon jobs --all` lists jobs"
            )
        })?;
    let (task, jobs) = match named {
        Named::One(job) => return of_job(&job.id, args),
        Named::Array(task, jobs) => (task, jobs),
    };
    let mut told = vec![Told {
        role: task.name,
        actor: None,
        why: job::array::in_words(&jobs),
        facts: None,
        in_short: false,
    }];
    // Those that wait for the same are one.
    let mut reasons: Vec<(String, Vec<String>)> = vec![];
    for job in jobs {
        let why = match (job.why, job.node) {
            (Some(why), _) => format!("{}: {why}", job.state),
            (None, Some(node)) => format!("{} on {node}", job.state),
            (None, None) => job.state,
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(job.name),
            None => reasons.push((why, vec![job.name])),
        }
    }
    told.extend(reasons.into_iter().map(|(why, names)| Told {
        role: match names.as_slice() {
            [first, .., last] => format!("{first} to {last} ({})", names.len()),
            names => names.concat(),
        },
        actor: None,
        why,
        facts: None,
        in_short: false,
    }));
    Ok(told)
}

/// The job itself, then its actors.
fn of_job(job: &str, args: &WhyArgs) -> Result<Vec<Told>> {
    let inspector = Watched::Cluster(args.cluster.dir.clone()).inspector()?;
    let (client, runtime) = job::cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let Page::Jobs(page) = inspector.page(&Asked::all(View::Jobs)).await?.data else {
            return Ok(vec![]);
        };
        let known = page.jobs.into_iter().find(|it| it.id == job);
        let known = known.with_context(|| {
            format!(
                "there is no job {job}, nor a folder of that name: `odeon jobs --all` lists jobs"
            )
        })?;
        let reserves = known.state == "running" && !known.needs.is_empty();
        let mut told = vec![of_whole(known)];
        let row = client.job(job).await?;
        told.extend(versions::in_short(&row).map(|why| Told {
            role: "version".to_owned(),
            actor: None,
            why,
            facts: None,
            in_short: false,
        }));
        if reserves {
            let of = |node: &Node| row.reserved.iter().any(|it| it.node == node.name);
            for sentence in cluster::unlimited(&client.status().await?.nodes, of) {
                told[0].why += &format!("; {sentence}");
            }
        }
        told.extend(of_startup(inspector.job(job).await?.data.startup));
        let mesh = mesh_of(job, &inspector).await?;
        let asked = Asked {
            filter: format!("job:{job} -state:stopped -state:failed"),
            limit: Some(ACTORS_MAX),
            ..Asked::all(View::Actors)
        };
        let Page::Actors(page) = inspector.page(&asked).await?.data else {
            return Ok(told);
        };
        let rows = page.rows.into_iter();
        let own: Vec<_> = rows
            .filter(|row| is_of(row.job.as_deref().unwrap_or_default(), job))
            .collect();
        told.extend(problems_of(job, &own, &inspector).await?);
        let (sentences, in_short) = of_ranks(mesh.as_ref(), &own);
        told.extend(sentences);
        // Neither is anything said of the helpers in the processes of ranks whose places are told.
        let of_ranks = own.iter().filter(|row| in_short.contains(&row.id));
        let of_ranks: BTreeSet<String> = of_ranks.map(|row| row.process.clone()).collect();
        for row in own {
            // It may have ended meanwhile.
            let Ok(detail) = inspector.actor(&row.id).await else {
                continue;
            };
            let why = detail.data.placement.map(|placement| placement.sentence);
            told.push(Told {
                role: row.name.unwrap_or(row.r#type),
                in_short: of_ranks.contains(&row.process),
                actor: Some(row.id),
                why: why.unwrap_or_else(|| format!("on node {}", row.node)),
                facts: None,
            });
        }
        Ok(told)
    })
}

/// How long the job took to start, and which stage took how long where.
fn of_startup(stages: Vec<StartupStage>) -> Option<Told> {
    let mut startup = Startup::default();
    for it in stages {
        let stage = StartStage::named(&it.stage);
        for (node, ms) in it.nodes {
            startup.tell(&node, stage.map(|stage| (stage, ms as u64)));
        }
    }
    (!startup.is_empty()).then(|| Told {
        role: "start".to_owned(),
        actor: None,
        why: startup.to_string(),
        facts: None,
        in_short: false,
    })
}

/// What is wrong at the moment with these actors of a job and their processes, and with its driver, in which there may be
/// none of them.
async fn problems_of(job: &str, rows: &[ActorRow], inspector: &Inspector) -> Result<Vec<Told>> {
    let Page::Now(now) = inspector.page(&Asked::all(View::Now)).await?.data else {
        return Ok(vec![]);
    };
    let is_own = |subject: &Subject| {
        let id = &subject.id;
        let is_of_it = subject.name.split(' ').any(|word| is_of(word, job));
        is_of_it || rows.iter().any(|row| row.id == *id || row.process == *id)
    };
    let own = now
        .problems
        .into_iter()
        .filter(|problem| problem.subjects.iter().any(is_own));
    let told = own.map(|problem| Told {
        role: "problem".to_owned(),
        actor: None,
        why: problem.sentence,
        facts: None,
        in_short: false,
    });
    Ok(told.collect())
}

/// Returns true of what belongs to a job by the word that it is tagged with: a part of the number of a job is in that
/// of another.
fn is_of(tag: &str, job: &str) -> bool {
    tag.split(['/', '.']).any(|part| part == job)
}

/// The ranks of a job's model, where it has some.
async fn mesh_of(job: &str, inspector: &Inspector) -> Result<Option<RunMesh>> {
    let Page::Runs(page) = inspector.page(&Asked::all(View::Runs)).await?.data else {
        return Ok(None);
    };
    let own = page.runs.into_iter().filter(|run| is_of(&run.id, job));
    Ok(own.filter_map(|run| run.mesh).next_back())
}

/// The sentences about the places of a job's ranks, and the actors that these tell of. Ranks of pretraining are those
/// that tell of themselves. Several roles of reinforcement share their models in one way, in which those of the trainer
/// tell of themselves: the ranks of each role are known by their names.
fn of_ranks(seen: Option<&RunMesh>, actors: &[ActorRow]) -> (Vec<Told>, BTreeSet<String>) {
    let nothing = (vec![], BTreeSet::new());
    let Some(seen) = seen else {
        return nothing;
    };
    let dims = seen.dims.iter();
    let dims = dims.map(|dim| (dim.name.as_str(), dim.size as usize));
    let Ok(mesh) = Mesh::new(dims) else {
        return nothing;
    };
    // By role and rank, the node and the actor.
    let mut roles: BTreeMap<&str, BTreeMap<usize, (String, String)>> = BTreeMap::new();
    for row in actors {
        let named = row.name.as_deref().and_then(RanksPlan::rank_of);
        if let Some((role, rank)) = named.filter(|(role, _)| !role.is_empty()) {
            let place = (row.node.clone(), row.id.clone());
            roles.entry(role).or_default().insert(rank, place);
        }
    }
    if roles.is_empty() {
        let is_there = |state: &str| state == "running" || state == "starting";
        let ranks = seen.ranks.iter().filter(|rank| is_there(&rank.state));
        let places = ranks.filter_map(|rank| {
            let actor = rank.actor.as_ref()?.id.clone();
            Some((rank.rank as usize, (rank.node.clone(), actor)))
        });
        roles.insert("", places.collect());
    }
    let (mut told, mut in_short) = nothing;
    for (role, places) in roles {
        let nodes = places.iter().map(|(rank, (node, _))| (*rank, node.clone()));
        let sentences = of_role(&mesh, role, &nodes.collect());
        if !sentences.is_empty() {
            told.extend(sentences);
            in_short.extend(places.into_values().map(|(_, actor)| actor));
        }
    }
    (told, in_short)
}

fn of_whole(job: odeon_client::inspect::Job) -> Told {
    let mut why = match (&job.refusal, &job.exit, &job.node) {
        (Some(refusal), ..) => format!("{}: {}", job.state, refusal.sentence),
        (None, Some(exit), _) => format!("{}: {}", job.state, exit.sentence),
        (None, None, Some(node)) if job.needs.is_empty() => {
            format!("{}, with its main on {node}", job.state)
        }
        (None, None, Some(node)) => {
            format!("{}, with its main on {node}; {}", job.state, job.needs)
        }
        (None, None, None) => job.state.clone(),
    };
    let rows = job.refusal.into_iter().flat_map(|it| it.rows);
    let rows: Vec<_> = rows.filter(|row| !row.fits).collect();
    // The sentence may have said the same of each node.
    let is_told = rows.iter().any(|row| names(&why, &row.node));
    for row in rows.iter().filter(|_| !is_told) {
        why += &format!("; {}: {}", row.node, row.why);
    }
    Told {
        role: format!("{} {}", job.id, job.name),
        actor: None,
        why,
        facts: None,
        in_short: false,
    }
}

/// Returns true where a sentence has this word.
fn names(sentence: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    sentence
        .split(|c| !is_part(c))
        .any(|it| it.trim_end_matches('.') == word)
}

fn told(places: &Places) -> Vec<Told> {
    let roles = places.roles.iter().map(|(role, actor)| {
        let facts = places.why(*actor);
        Told {
            role: role.clone(),
            actor: Some(actor.to_string()),
            why: match &facts {
                Some(why) => why.to_string(),
                None => "it has reserved nothing".to_owned(),
            },
            facts,
            in_short: false,
        }
    });
    let known: Vec<ActorId> = places.roles.values().copied().collect();
    let waiting = places.nodes.iter().flat_map(|node| &node.waiting);
    let starting = waiting
        .filter(|waiting| !waiting.actors.iter().any(|actor| known.contains(actor)))
        .map(|waiting| Told {
            role: waiting.holder.clone(),
            actor: waiting.actors.first().map(ToString::to_string),
            why: waiting.to_string(),
            facts: Some(Why::Waits(waiting.clone())),
            in_short: false,
        });
    roles.chain(starting).collect()
}

#[cfg(test)]
mod tests {
    use odeon_client::inspect::{Job, NodeRefusal, Refusal};

    use super::*;

    /// A job that waits, with a word about each of its nodes.
    fn queued(sentence: &str) -> Job {
        let row = |node: &str| NodeRefusal {
            node: node.to_owned(),
            asked: "2 cpu".to_owned(),
            free: "room for none".to_owned(),
            why: "it has 0 of 2 cpu free".to_owned(),
            fits: false,
        };
        let job = serde_json::json!({
            "id": "j1", "name": "it", "namespace": "", "state": "queued", "since": 0.0, "submitted": 0.0,
            "by": "", "priority": 0, "program": "", "arguments": [], "attempt": 1, "attempts": 1,
            "node": null, "actors": 0, "needs": "", "phases": [], "refusal": null, "exit": null,
        });
        let mut job: Job = serde_json::from_value(job).unwrap();
        job.refusal = Some(Refusal {
            sentence: sentence.to_owned(),
            rows: vec![row("n1"), row("n-2")],
        });
        job
    }

    #[test]
    fn a_job_that_waits_names_each_node_once() {
        for (sentence, expected) in [
            (
                "it waits for room",
                "queued: it waits for room; n1: it has 0 of 2 cpu free; n-2: it has 0 of 2 cpu free",
            ),
            (
                "no place: n1 has 0 of 2 cpu free; n-2 has 0 of 2 cpu free",
                "queued: no place: n1 has 0 of 2 cpu free; n-2 has 0 of 2 cpu free",
            ),
            (
                "no place: n12 is down",
                "queued: no place: n12 is down; n1: it has 0 of 2 cpu free; n-2: it has 0 of 2 cpu free",
            ),
        ] {
            assert_eq!(of_whole(queued(sentence)).why, expected);
        }
    }
}
