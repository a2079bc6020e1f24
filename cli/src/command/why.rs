//! `odeon why`: where the processes of a run are, or what they wait for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon::ActorId;
use odeon::inspect::{NodeView, Why};
use serde::{Deserialize, Serialize};

use super::processes::{self, replace};
use crate::args::WhyArgs;
use crate::print;

/// Where a run writes down what its nodes have and who waits.
pub(crate) const FILE: &str = "placement.json";

/// What a run knows of its places.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Places {
    /// The actors by role; those that wait to be started have none yet.
    pub(crate) roles: BTreeMap<String, ActorId>,
    pub(crate) nodes: Vec<NodeView>,
}

impl Places {
    /// Writes it into the folder of the run.
    pub(crate) fn write(&self, run: &Path) -> Result<()> {
        replace(&run.join(FILE), &serde_json::to_string(self)?)
    }

    fn why(&self, actor: ActorId) -> Option<Why> {
        self.nodes.iter().find_map(|node| node.why(actor))
    }
}

/// One process of a run, and why it is where it is.
#[derive(Serialize)]
struct Told {
    role: String,
    actor: Option<String>,
    /// In words.
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Why>,
}

pub(crate) fn run(args: &WhyArgs) -> Result<()> {
    // Whether the run goes on; the file stays behind one that was killed.
    processes::read(&args.run)?;
    let path = args.run.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let places: Places = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let told = told(&places);
    let wanted: Vec<Told> = match &args.actor {
        None => told,
        Some(name) => {
            let known: Vec<String> = told.iter().map(|one| one.role.clone()).collect();
            let fits = |one: &Told| one.role == *name || one.actor.as_ref() == Some(name);
            let wanted: Vec<Told> = told.into_iter().filter(fits).collect();
            if wanted.is_empty() {
                bail!("no `{name}` in this run: it has {}", known.join(", "));
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
            print::line(format!("{}{actor}: {}", one.role, one.why))?;
        }
    }
    Ok(())
}

fn told(places: &Places) -> Vec<Told> {
    let roles = places.roles.iter().map(|(role, actor)| {
        let facts = places.why(*actor);
        Told {
            role: role.clone(),
            actor: Some(actor.to_string()),
            why: match &facts {
                Some(why) => why.to_string(),
                None => "it reserves nothing, so nothing has to be free for it".to_owned(),
            },
            facts,
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
        });
    roles.chain(starting).collect()
}
