//! Names of actors, scoped by job. A node keeps them for its workers and tells other nodes.

use std::collections::hash_map::Entry;

use super::Engine;
use crate::error::NameError;
use crate::id::{ActorId, ProcessId};
use crate::wire::{Answer, Fact, NameRow, Request};

impl Engine {
    /// Gives an actor a name in this job.
    pub(crate) async fn register_name(
        &self,
        name: &str,
        id: ActorId,
        actor: &str,
    ) -> Result<(), NameError> {
        let row = NameRow {
            job: self.job.clone(),
            name: name.to_owned(),
            id,
            actor: actor.to_owned(),
        };
        self.ask_for_name(
            || self.register_here(row.clone()),
            Request::Register(row.clone()),
        )
        .await
        .map(|_row| ())
    }

    /// Finds an actor by its name in this job.
    pub(crate) async fn lookup_name(&self, name: &str, actor: &str) -> Result<ActorId, NameError> {
        let (job, wanted) = (self.job.clone(), name.to_owned());
        let lookup = Request::Lookup { job, name: wanted };
        let row = self
            .ask_for_name(|| self.lookup_here(&self.job, name), lookup)
            .await?;
        if row.actor == actor {
            Ok(row.id)
        } else {
            Err(NameError::WrongType {
                name: row.name,
                found: row.actor,
                wanted: actor.to_owned(),
            })
        }
    }

    async fn ask_for_name(
        &self,
        here: impl FnOnce() -> Result<NameRow, NameError>,
        request: Request,
    ) -> Result<NameRow, NameError> {
        let Some(node) = self.uplink.get() else {
            return here();
        };
        match self
            .request(*node, request, Some(self.limits.ask_timeout))
            .await
        {
            Some(Answer::Name(outcome)) => outcome,
            _ => Err(NameError::Unreachable(format!("process {node}"))),
        }
    }

    pub(super) fn register_here(&self, row: NameRow) -> Result<NameRow, NameError> {
        let key = (row.job.clone(), row.name.clone());
        let mut names = self.names.lock();
        if let Some(owner) = names.get(&key).filter(|owner| owner.id != row.id) {
            return Err(NameError::Taken {
                name: row.name,
                owner: owner.id,
            });
        }
        names.insert(key, row.clone());
        drop(names);
        self.tell_neighbours(&Fact::Named(row.clone()), self.process);
        Ok(row)
    }

    pub(super) fn lookup_here(&self, job: &str, name: &str) -> Result<NameRow, NameError> {
        let key = (job.to_owned(), name.to_owned());
        self.names
            .lock()
            .get(&key)
            .cloned()
            .ok_or_else(|| NameError::NotFound(name.to_owned()))
    }

    /// Names that another node keeps. A name that is taken here stays with its owner.
    pub(super) fn learn_names(&self, rows: &[NameRow], from: ProcessId) {
        for row in rows {
            let key = (row.job.clone(), row.name.clone());
            let new = match self.names.lock().entry(key) {
                Entry::Occupied(_) => false,
                Entry::Vacant(free) => {
                    free.insert(row.clone());
                    true
                }
            };
            if new {
                self.tell_neighbours(&Fact::Named(row.clone()), from);
            }
        }
    }

    pub(super) fn unlearn_name(&self, job: String, name: String, id: ActorId, from: ProcessId) {
        let key = (job, name);
        let known = {
            let mut names = self.names.lock();
            names.get(&key).is_some_and(|row| row.id == id) && names.remove(&key).is_some()
        };
        if known {
            let (job, name) = key;
            self.tell_neighbours(&Fact::Unnamed { job, name, id }, from);
        }
    }

    /// An actor is gone for good.
    pub(super) fn free_names_of(&self, id: ActorId) {
        self.free_names(|row| row.id == id);
    }

    /// A process and all actors it was home of are gone.
    pub(super) fn forget_names_of(&self, home: ProcessId) {
        self.free_names(|row| row.id.home == home);
    }

    fn free_names(&self, gone: impl Fn(&NameRow) -> bool) {
        let mut freed = vec![];
        self.names.lock().retain(|_, row| {
            let free = gone(row);
            if free {
                freed.push(row.clone());
            }
            !free
        });
        for NameRow { job, name, id, .. } in freed {
            self.tell_neighbours(&Fact::Unnamed { job, name, id }, self.process);
        }
    }
}
