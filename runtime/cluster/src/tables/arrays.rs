//! Jobs that are several, and jobs that come after others: the rows of an array, and what the end of one
//! job means for those that wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::Tables;
use crate::fact::{ArrayAct, Refusal, RefusalKind};
use crate::job::array::{After, ArraySpec, ArrayTask};
use crate::job::{Event, Job, JobId, JobSpec, Outcome};

impl Tables {
    /// The jobs that a word stands for: that of a number; else those of the newest job or array of a name,
    /// in the order of their numbers.
    #[must_use]
    pub fn jobs_named(&self, word: &str) -> Vec<&Job> {
        if let Ok(id) = word.parse() {
            return self.jobs.get(&id).into_iter().collect();
        }
        let newest = self.jobs.values().rev().find_map(|job| {
            let array = job.array.as_ref().filter(|array| array.name == word);
            (job.spec.name == word || array.is_some()).then_some((job, array))
        });
        match newest {
            None => vec![],
            Some((job, None)) => vec![job],
            Some((_, Some(array))) => self.jobs_of(array).collect(),
        }
    }

    /// The jobs of an array that are known.
    fn jobs_of(&self, array: &ArrayTask) -> impl Iterator<Item = &Job> + use<'_> {
        self.jobs.range(array.jobs()).map(|(_, job)| job)
    }

    /// Adds a job, or one for each index of its array. The number of the first.
    pub(super) fn add_jobs(&mut self, mut spec: JobSpec, by: String) -> Result<JobId, Refusal> {
        let first = JobId(self.last_job + 1);
        let awaits = self.awaited(&spec.after)?;
        self.take_name(&spec, first)?;
        let Some(array) = spec.array.take() else {
            self.note(
                first.to_string(),
                format!("`{}` submitted by {by}", spec.name),
            );
            self.add_job(spec, by, awaits, None);
            return Ok(first);
        };
        let task = |index| ArrayTask {
            name: spec.name.clone(),
            first,
            // Checked when the array was read.
            count: array.count() as u32,
            index,
            at_once: array.at_once(),
        };
        let tasks: Vec<ArrayTask> = array.indices().iter().map(|index| task(*index)).collect();
        let last = tasks[0].jobs().end().0;
        let what = format!(
            "`{}` submitted by {by}: an array of {} jobs, to j{last}",
            spec.name,
            array.count()
        );
        self.note(first.to_string(), what);
        for task in tasks {
            let mut each = spec.clone();
            each.name = ArraySpec::name_of(&task.name, task.index);
            let values = [task.index.to_string(), task.count.to_string()];
            let names = ArraySpec::VARIABLES.map(str::to_owned);
            each.env.extend(names.into_iter().zip(values));
            self.add_job(each, by.clone(), awaits.clone(), Some(task));
        }
        Ok(first)
    }

    fn add_job(&mut self, spec: JobSpec, by: String, awaits: Vec<After>, array: Option<ArrayTask>) {
        self.last_job += 1;
        let id = JobId(self.last_job);
        let mut job = Job::new(id, spec, by, self.now);
        if !awaits.is_empty() {
            self.later.insert(id);
        }
        job.await_all(awaits);
        job.array = array;
        self.jobs.insert(id, job);
    }

    /// Those of these that have not succeeded yet.
    pub(super) fn awaited(&self, after: &[After]) -> Result<Vec<After>, Refusal> {
        let mut awaited = vec![];
        for it in after {
            if it.last.0 > self.last_job || it.last < it.first {
                let why = format!("there is no job {it} to come after: see `odeon jobs --all`");
                return Err(Refusal::new(RefusalKind::Unknown, why));
            }
            let mut known = self.jobs.range(it.jobs()).peekable();
            if known.peek().is_none() {
                let why =
                    format!("{it} is over for long, and not known any more: leave out --after");
                return Err(Refusal::new(RefusalKind::Unknown, why));
            }
            let failed = known.find_map(|(_, job)| {
                job.outcome()
                    .filter(|it| **it != Outcome::Succeeded)
                    .map(|it| (job.id, it))
            });
            if let Some((id, outcome)) = failed {
                let why = format!(
                    "what comes after {it} would never begin: {}; run that again first (odeon retry {id})",
                    outcome.told_of(id)
                );
                return Err(Refusal::new(RefusalKind::Conflict, why));
            }
            if !self.is_met(it) {
                awaited.push(it.clone());
            }
        }
        Ok(awaited)
    }

    /// Returns true where all of these are over. Had one not succeeded, who comes after them would be over,
    /// too.
    fn is_met(&self, after: &After) -> bool {
        let mut jobs = self.jobs.range(after.jobs());
        jobs.all(|(_, job)| job.is_over())
    }

    /// A job has ended: those that come after it may begin, or never will. What comes after another job has a
    /// greater number, so one look at those behind finds all that fall with it.
    pub(super) fn tell_later_jobs(&mut self, ended: JobId) {
        let Some(outcome) = self.jobs.get(&ended).and_then(Job::outcome) else {
            return;
        };
        let behind = self.later.range(JobId(ended.0 + 1)..);
        let behind = behind.filter_map(|id| self.jobs.get(id));
        let waiting: Vec<&Job> = behind.filter(|job| !job.is_over()).collect();
        if waiting.is_empty() {
            self.later.remove(&ended);
            return;
        }
        if *outcome == Outcome::Succeeded {
            let mut met: BTreeMap<After, bool> = BTreeMap::new();
            let mut freed = vec![];
            for job in waiting {
                let own = job.awaits.iter().filter(|it| it.jobs().contains(&ended));
                let mut any = false;
                for it in own {
                    any |= *met.entry(it.clone()).or_insert_with(|| self.is_met(it));
                }
                if any {
                    freed.push(job.id);
                }
            }
            for id in freed {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.await_rest(|it| met.get(it) == Some(&true));
                    if job.awaits.is_empty() {
                        self.later.remove(&id);
                    }
                }
            }
            return;
        }
        let cause = match outcome {
            Outcome::Unmet { cause, .. } => cause.clone(),
            other => other.told_of(ended),
        };
        let mut fallen = BTreeSet::from([ended]);
        for job in waiting {
            if job
                .awaits
                .iter()
                .any(|it| fallen.range(it.jobs()).next().is_some())
            {
                fallen.insert(job.id);
            }
        }
        let now = self.now;
        self.later.remove(&ended);
        for id in fallen.iter().filter(|id| **id != ended) {
            let Some(job) = self.jobs.get_mut(id) else {
                continue;
            };
            let after = job
                .awaits
                .iter()
                .find_map(|it| fallen.range(it.jobs()).next());
            job.end_unmet(after.copied().unwrap_or(ended), cause.clone(), now);
            self.later.remove(id);
            let what = job.outcome().map(Outcome::to_string).unwrap_or_default();
            self.note(id.to_string(), what);
            self.forget_ended(*id);
        }
    }

    /// A job that is over is to be run again. It waits again for those that it never saw succeed.
    pub(super) fn run_again(&mut self, id: JobId, by: String) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(&id).filter(|job| job.is_over()) else {
            return self.happened(id, Event::Retry { by });
        };
        let spec = job.spec.clone();
        let awaits = self.await_again(id)?;
        self.take_name(&spec, id)?;
        self.happened(id, Event::Retry { by })?;
        if let Some(job) = self.jobs.get_mut(&id) {
            if !awaits.is_empty() {
                self.later.insert(id);
            }
            job.await_all(awaits);
        }
        Ok(())
    }

    fn await_again(&self, id: JobId) -> Result<Vec<After>, Refusal> {
        let awaits = self.jobs.get(&id).map(|job| job.awaits.clone());
        self.awaited(&awaits.unwrap_or_default())
    }

    /// Does something with the jobs of an array to which it can be done.
    pub(super) fn array_act(
        &mut self,
        first: JobId,
        act: ArrayAct,
        by: &str,
    ) -> Result<(), Refusal> {
        // The first itself may be forgotten by now.
        let known = self.jobs.range(first..).next();
        let array = known.and_then(|(_, job)| job.array.clone());
        let Some(array) = array.filter(|array| array.jobs().contains(&first)) else {
            let why = format!("{first} is of no array: name an array, or a job of it");
            return Err(Refusal::new(RefusalKind::Unknown, why));
        };
        let fits = self.jobs_of(&array).filter(|job| act.is_for(job));
        let fits: Vec<JobId> = fits.map(|job| job.id).collect();
        if fits.is_empty() {
            let why = format!(
                "none of the {} jobs of `{}` {}",
                array.count,
                array.name,
                act.lacks()
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        // Whatever is refused is, before anything has changed.
        for id in fits.iter().filter(|_| act == ArrayAct::Retry) {
            self.await_again(*id)?;
        }
        for id in fits {
            let by = by.to_owned();
            match act {
                ArrayAct::Retry => self.run_again(id, by)?,
                ArrayAct::Cancel | ArrayAct::Stop | ArrayAct::Kill => {
                    let in_order = act != ArrayAct::Kill;
                    self.happened(id, Event::Stop { by, in_order })?;
                }
            }
        }
        Ok(())
    }
}
