//! Names of actors, scoped by job. A node keeps them for its workers and tells other nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::actor::registry::Registered;
use crate::actor::service_row::{Asked, Hear, Serve};
use crate::base::error::NameError;
use crate::base::failure::ProcessExit;
use crate::base::id::{ActorId, ProcessId};
use crate::net::link::Link;
use crate::net::service::{Notice, Service};
use crate::net::wire::{Hello, NameRow, ServiceId};

/// The names of actors, and the actors that have them. News of ends and beginnings come over
/// different ways and so in any order: of two actors that are said to have one name the first known
/// has it, and the other when that is gone.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By job and name; the first of each has it.
    rows: HashMap<(String, String), Vec<NameRow>>,
    /// Told whenever somebody has a name who had none.
    news: watch::Sender<()>,
}

/// Names that a node keeps.
pub(crate) struct Naming;

/// A question to [`Naming`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NameRequest {
    /// Keep a name.
    Register(NameRow),
    /// Find who has it.
    Lookup { job: String, name: String },
    /// Take a name from the actor that has it.
    Release {
        job: String,
        name: String,
        id: ActorId,
    },
}

impl Service for Naming {
    const ID: ServiceId = ServiceId(2);
    const NAME: &'static str = "a name that is given or looked up";
    type Request = NameRequest;
    type Answer = Result<NameRow, NameError>;
}

impl Serve for Naming {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: NameRequest) {
        let outcome = match request {
            NameRequest::Register(row) => engine.register_here(row),
            NameRequest::Lookup { job, name } => engine.lookup_here(&job, &name),
            NameRequest::Release { job, name, id } => engine.release_name_here(&job, &name, id),
        };
        asked.answer(engine, &outcome);
    }
}

/// A notice about a name, by the node that keeps it or one that has heard of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NameNotice {
    /// A name was given.
    Named(NameRow),
    /// A name is free again.
    Unnamed {
        job: String,
        name: String,
        id: ActorId,
    },
}

impl Notice for NameNotice {
    const SERVICE: ServiceId = Naming::ID;
}

impl Hear for NameNotice {
    fn hear(self, engine: &Arc<Engine>, link: &Arc<Link>) {
        match self {
            Self::Named(row) => engine.learn_names(&[row], link.peer),
            Self::Unnamed { job, name, id } => engine.unlearn_name(&job, &name, id, link.peer),
        }
    }
}

/// An actor has no name any more; whoever has it now.
#[derive(Debug, PartialEq, Eq)]
struct Freed {
    row: NameRow,
    next: Option<NameRow>,
}

/// The names that an engine knows.
#[derive(Debug, Default)]
pub(crate) struct NameTable(Mutex<Names>);

impl Component for NameTable {
    fn greet(&self, hello: &mut Hello) {
        hello.names = self.0.lock().owners();
    }

    fn link_up(&self, engine: &Engine, link: &Link, hello: &Hello) {
        engine.learn_names(&hello.names, link.peer);
    }

    fn catch_up(&self, link: &Link, told: &mut Hello) -> bool {
        let key = |row: NameRow| ((row.job.clone(), row.name.clone(), row.id), row);
        let named: BTreeMap<_, _> = told.names.drain(..).map(key).collect();
        told.names = self.0.lock().owners();
        let names: BTreeMap<_, _> = told.names.iter().cloned().map(key).collect();
        if names == named {
            return false;
        }
        let gone = named.keys().filter(|row| !names.contains_key(*row));
        for (job, name, id) in gone.cloned() {
            link.push(&NameNotice::Unnamed { job, name, id }.frame(), false);
        }
        let new = names.iter().filter(|row| !named.contains_key(row.0));
        for (_, row) in new {
            link.push(&NameNotice::Named(row.clone()).frame(), false);
        }
        true
    }

    fn process_down(&self, engine: &Arc<Engine>, exit: &ProcessExit) {
        let home = exit.process;
        engine.free_names(|row| row.id.home == home, None);
    }

    fn actor_over(&self, engine: &Engine, id: ActorId) {
        engine.free_names(|row| row.id == id, Some(engine.process));
    }
}

impl NameTable {
    /// All rows, those who wait for a name behind who has it.
    pub(crate) fn all(&self) -> Vec<NameRow> {
        self.0.lock().rows.values().flatten().cloned().collect()
    }

    /// Goes on with the rows of the program before this one.
    pub(crate) fn inherit(&self, rows: &[NameRow]) {
        let mut names = self.0.lock();
        for row in rows {
            names.claim(row);
        }
    }

    /// All actors that have a name, with the name.
    pub(crate) fn of_actors(&self) -> Vec<(ActorId, String)> {
        let names = self.0.lock();
        let rows = names.rows.values().filter_map(|rows| rows.first());
        let mut named: Vec<_> = rows.map(|row| (row.id, row.name.clone())).collect();
        named.sort_unstable();
        named
    }

    /// Hears of it when somebody has a name who had none.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.lock().news.subscribe()
    }
}

impl Names {
    /// The actor that has a name.
    fn owner(&self, job: &str, name: &str) -> Option<&NameRow> {
        let key = (job.to_owned(), name.to_owned());
        self.rows.get(&key)?.first()
    }

    /// All who have one.
    fn owners(&self) -> Vec<NameRow> {
        let rows = self.rows.values();
        rows.filter_map(|rows| rows.first().cloned()).collect()
    }

    /// Somebody is said to have a name. Returns true if the name was free, so that it is theirs
    /// now.
    fn claim(&mut self, row: &NameRow) -> bool {
        let key = (row.job.clone(), row.name.clone());
        let rows = self.rows.entry(key).or_default();
        if rows.iter().any(|known| known.id == row.id) {
            return false;
        }
        rows.push(row.clone());
        let has_it = rows.len() == 1;
        if has_it {
            self.news.send_replace(());
        }
        has_it
    }

    /// These are gone. Returns who had a name, and who has it now.
    fn free(&mut self, gone: impl Fn(&NameRow) -> bool) -> Vec<Freed> {
        let mut freed = vec![];
        self.rows.retain(|_, rows| {
            let owner = rows[0].clone();
            rows.retain(|row| !gone(row));
            if rows.first() != Some(&owner) {
                let next = rows.first().cloned();
                freed.push(Freed { row: owner, next });
            }
            !rows.is_empty()
        });
        if freed.iter().any(|freed| freed.next.is_some()) {
            self.news.send_replace(());
        }
        freed
    }
}

impl Engine {
    fn name_table(&self) -> &Mutex<Names> {
        &self.component::<NameTable>().0
    }

    /// Gives an actor a name in this job.
    pub(crate) async fn register_name<A: Registered>(
        &self,
        name: &str,
        id: ActorId,
    ) -> Result<(), NameError> {
        let messages = A::MESSAGES.iter();
        let row = NameRow {
            job: self.job.clone(),
            name: name.to_owned(),
            id,
            actor: A::NAME.to_owned(),
            messages: messages
                .map(|(name, method)| ((*name).to_owned(), *method))
                .collect(),
        };
        self.give_name(row).await
    }

    /// Gives an actor a name.
    pub(crate) async fn give_name(&self, row: NameRow) -> Result<(), NameError> {
        let register = NameRequest::Register(row);
        self.ask_for_name(&register).await.map(drop)
    }

    /// Has an actor give up its name in this job.
    pub(crate) async fn release_name(&self, name: &str, id: ActorId) -> Result<(), NameError> {
        let release = NameRequest::Release {
            job: self.job.clone(),
            name: name.to_owned(),
            id,
        };
        self.ask_for_name(&release).await.map(drop)
    }

    /// Finds an actor by its name in this job.
    pub(crate) async fn lookup_name<A: Registered>(
        &self,
        name: &str,
    ) -> Result<ActorId, NameError> {
        let row = self.find_name(&self.job, name).await?;
        check::<A>(&row)?;
        Ok(row.id)
    }

    /// Finds the actor that has a name.
    pub(crate) async fn find_name(&self, job: &str, name: &str) -> Result<NameRow, NameError> {
        let lookup = NameRequest::Lookup {
            job: job.to_owned(),
            name: name.to_owned(),
        };
        self.ask_for_name(&lookup).await
    }

    /// Asks the node, which may be this process.
    async fn ask_for_name(&self, request: &NameRequest) -> Result<NameRow, NameError> {
        let (node, patience) = (self.domain(), Some(self.limits.ask_timeout));
        let answer = self.request::<Naming>(node, request, patience).await;
        answer.unwrap_or_else(|| Err(NameError::Unreachable(format!("process {node}"))))
    }

    pub(crate) fn register_here(&self, row: NameRow) -> Result<NameRow, NameError> {
        let mut names = self.name_table().lock();
        let owner = names.owner(&row.job, &row.name);
        if let Some(owner) = owner.filter(|owner| owner.id != row.id) {
            return Err(NameError::Taken {
                name: row.name,
                owner: owner.id,
            });
        }
        names.claim(&row);
        drop(names);
        self.tell_neighbours(&NameNotice::Named(row.clone()).frame(), self.process);
        Ok(row)
    }

    pub(crate) fn lookup_here(&self, job: &str, name: &str) -> Result<NameRow, NameError> {
        let names = self.name_table().lock();
        let owner = names.owner(job, name).cloned();
        owner.ok_or_else(|| NameError::NotFound(name.to_owned()))
    }

    fn release_name_here(&self, job: &str, name: &str, id: ActorId) -> Result<NameRow, NameError> {
        let row = self.lookup_here(job, name)?;
        if row.id != id {
            return Err(NameError::NotFound(name.to_owned()));
        }
        let gone = |row: &NameRow| row.id == id && row.job == job && row.name == name;
        self.free_names(gone, Some(self.process));
        Ok(row)
    }

    /// Names that another node keeps. A name that is taken here stays with its owner, and one of a
    /// process that cannot be reached is none: who tells of it has not heard of its end.
    pub(crate) fn learn_names(&self, rows: &[NameRow], from: ProcessId) {
        for row in rows {
            if self.way_to(row.id.home).is_none() {
                continue;
            }
            let is_new = self.name_table().lock().claim(row);
            if is_new {
                self.tell_neighbours(&NameNotice::Named(row.clone()).frame(), from);
            }
        }
    }

    pub(crate) fn unlearn_name(&self, job: &str, name: &str, id: ActorId, from: ProcessId) {
        // Only the neighbour on the way to an actor's home can know; a node that was away for a while
        // takes everybody else for gone.
        if self.way_to(id.home).is_some_and(|way| way != from) {
            return;
        }
        let gone = |row: &NameRow| row.id == id && row.job == job && row.name == name;
        self.free_names(gone, Some(from));
    }

    /// Frees names. The neighbours but this one are told, if anybody is.
    fn free_names(&self, gone: impl Fn(&NameRow) -> bool, told_by: Option<ProcessId>) {
        let freed = self.name_table().lock().free(gone);
        for Freed { row, next } in freed {
            let NameRow { job, name, id, .. } = row;
            if let Some(from) = told_by {
                let unnamed = NameNotice::Unnamed { job, name, id };
                self.tell_neighbours(&unnamed.frame(), from);
            }
            if let Some(next) = next {
                self.tell_neighbours(&NameNotice::Named(next).frame(), self.process);
            }
        }
    }
}

/// Checks that the holder of a name is an actor of this type that takes all of its messages, as
/// they are built here.
pub(crate) fn check<A: Registered>(row: &NameRow) -> Result<(), NameError> {
    if row.actor != A::NAME {
        return Err(NameError::WrongType {
            name: row.name.clone(),
            found: row.actor.clone(),
            wanted: A::NAME.to_owned(),
        });
    }
    check_messages(row, A::MESSAGES)
}

/// Checks that the holder of a name takes these messages.
pub(crate) fn check_messages(row: &NameRow, wanted: &[(&str, u64)]) -> Result<(), NameError> {
    let differs = |(name, id): &(&str, u64)| {
        let there = row.messages.iter().filter(|known| known.0 == *name);
        let ids: Vec<u64> = there.map(|known| known.1).collect();
        match ids.as_slice() {
            [] => Some(format!("`{name}` is not known there")),
            ids if ids.contains(id) => None,
            _ => Some(format!("`{name}` has other fields or another reply there")),
        }
    };
    let differences: Vec<String> = wanted.iter().filter_map(differs).collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(NameError::Protocol {
        name: row.name.clone(),
        actor: row.actor.clone(),
        differences: differences.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, home: u64) -> NameRow {
        NameRow {
            job: "job".to_owned(),
            name: name.to_owned(),
            id: ActorId {
                home: ProcessId(home),
                serial: 1,
            },
            actor: "actor".to_owned(),
            messages: vec![],
        }
    }

    /// SEMANTICS 16.
    #[test]
    fn who_comes_back_before_its_end_is_known_has_its_name_after_it() {
        let mut names = Names::default();
        assert!(names.claim(&row("a", 1)));
        assert!(!names.claim(&row("a", 1)));
        // It was started again, and its old life is not known to be over.
        assert!(!names.claim(&row("a", 2)));
        assert_eq!(names.owner("job", "a"), Some(&row("a", 1)));
        let freed = Freed {
            row: row("a", 1),
            next: Some(row("a", 2)),
        };
        let first = |row: &NameRow| row.id.home == ProcessId(1);
        assert_eq!(names.free(first), [freed]);
        assert_eq!(names.owners(), [row("a", 2)]);
        assert_eq!(names.free(first), []);
        // One that waits for a name goes in silence.
        names.claim(&row("a", 3));
        assert_eq!(names.free(|row| row.id.home == ProcessId(3)), []);
        let freed = Freed {
            row: row("a", 2),
            next: None,
        };
        assert_eq!(names.free(|_| true), [freed]);
        assert_eq!(names.owner("job", "a"), None);
        assert!(names.claim(&row("a", 1)));
    }

    /// SEMANTICS 64.
    #[test]
    fn a_binding_names_every_message_that_differs() {
        let known = [("Add", 1), ("Get", 2), ("Reset", 3)];
        let row = NameRow {
            name: "counter".to_owned(),
            actor: "demo.Counter".to_owned(),
            messages: known.map(|(name, id)| (name.to_owned(), id)).to_vec(),
            ..row("counter", 1)
        };
        assert_eq!(check_messages(&row, &[("Add", 1), ("Get", 2)]), Ok(()));
        let differs = check_messages(&row, &[("Add", 7), ("Get", 2), ("Undo", 9)]);
        let why = differs.unwrap_err().to_string();
        assert_eq!(
            why,
            "`counter` is a demo.Counter of another build: `Add` has other fields or another reply \
             there, `Undo` is not known there; build both programs from the same messages"
        );
    }
}
