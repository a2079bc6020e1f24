//! The life of environments on a node: which are whole, which tries use or may use them, which are being made, and what
//! is to go. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use odeon_artifacts::Digest;
use thiserror::Error;

use super::super::mounts::Try;
use crate::job::JobId;

/// Environments that nobody uses and that stay, so that the next start has them.
pub(super) const UNUSED_MAX: usize = 4;
/// Letters of a key that name its folder: paths to interpreters in scripts have a bound.
const NAME_LETTERS: usize = 16;

/// The environments of a node, by the names of their folders.
#[derive(Debug, Default)]
pub(super) struct Life {
    whole: BTreeMap<Digest, Whole>,
    users: BTreeMap<String, BTreeSet<Try>>,
    making: BTreeSet<String>,
    /// Tries that this node has begun with, and that are not over.
    admitted: BTreeSet<Try>,
}

/// The newest environment of a key.
#[derive(Debug)]
struct Whole {
    name: String,
    used: SystemTime,
}

/// A try that is over has no environment any more.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("try {attempt} of {job} is over")]
pub(crate) struct TryOver {
    job: JobId,
    attempt: u32,
}

/// The environment of a key, for a try that wants it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It uses this folder already, and goes on with it.
    Again(String),
    /// It uses this folder from now on, if that is still as it was noted.
    Noted(String),
    /// There is none.
    Nothing,
}

/// The name that the first folder of a key has, and its note.
pub(super) fn name_of(key: &Digest) -> String {
    key.to_string()[..NAME_LETTERS].to_owned()
}

impl Life {
    /// A note was found, of before.
    pub(super) fn found(&mut self, key: Digest, name: String, used: SystemTime) {
        self.whole.insert(key, Whole { name, used });
    }

    /// A user was found, of before, which goes on.
    pub(super) fn found_user(&mut self, name: &str, of: Try) {
        self.users.entry(name.to_owned()).or_default().insert(of);
        self.admitted.insert(of);
    }

    /// A try begins here.
    pub(super) fn admit(&mut self, of: Try) {
        self.admitted.insert(of);
    }

    /// A try is over: it begins to use nothing from now on.
    pub(super) fn dismiss(&mut self, of: Try) {
        self.admitted.remove(&of);
    }

    /// Checks that a try is not over.
    pub(super) fn check(&self, of: Try) -> Result<(), TryOver> {
        if self.admitted.contains(&of) {
            return Ok(());
        }
        let (job, attempt) = of;
        Err(TryOver { job, attempt })
    }

    /// The tries that may use something here, or do.
    pub(super) fn tries(&self) -> BTreeSet<Try> {
        let users = self.users.values().flatten();
        self.admitted.iter().chain(users).copied().collect()
    }

    /// A try wants an environment.
    pub(super) fn enter(
        &mut self,
        key: &Digest,
        of: Try,
        now: SystemTime,
    ) -> Result<Entered, TryOver> {
        self.check(of)?;
        let first = name_of(key);
        let is_of_key = |name: &str| {
            let rest = name.strip_prefix(&first);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let mut used = self.users.iter().filter(|(name, _)| is_of_key(name));
        if let Some((name, _)) = used.find(|(_, users)| users.contains(&of)) {
            return Ok(Entered::Again(name.clone()));
        }
        let Some(whole) = self.whole.get_mut(key) else {
            return Ok(Entered::Nothing);
        };
        whole.used = now;
        let name = whole.name.clone();
        self.users.entry(name.clone()).or_default().insert(of);
        Ok(Entered::Noted(name))
    }

    /// A folder is not as it was noted: it is nobody's who comes, and not that of the try that saw it.
    pub(super) fn changed(&mut self, key: &Digest, name: &str, of: Try) {
        if self.whole.get(key).is_some_and(|whole| whole.name == name) {
            self.whole.remove(key);
        }
        self.part(name, of);
    }

    /// An environment is made anew, in a folder that is free.
    pub(super) fn begin(&mut self, key: &Digest, is_free: impl Fn(&str) -> bool) -> String {
        let first = name_of(key);
        let later = (2_u64..).map(|n| format!("{first}-{n}"));
        let mut names = std::iter::once(first.clone()).chain(later);
        let free = names.find(|name| !self.is_known(name) && is_free(name));
        let name = free.expect("there is no end of numbers");
        self.making.insert(name.clone());
        name
    }

    /// A folder that was made is the environment of a key, and a try uses it, unless that is over.
    pub(super) fn finish(
        &mut self,
        key: &Digest,
        name: &str,
        of: Try,
        now: SystemTime,
    ) -> Result<(), TryOver> {
        self.making.remove(name);
        self.found(*key, name.to_owned(), now);
        self.check(of)?;
        self.users.entry(name.to_owned()).or_default().insert(of);
        Ok(())
    }

    /// A folder is not made after all.
    pub(super) fn give_up(&mut self, name: &str) {
        self.making.remove(name);
    }

    /// A try is over. The folders that it used.
    pub(super) fn leave(&mut self, of: Try) -> Vec<String> {
        self.dismiss(of);
        let used = self.users.iter().filter(|(_, users)| users.contains(&of));
        let used: Vec<String> = used.map(|(name, _)| name.clone()).collect();
        for name in &used {
            self.part(name, of);
        }
        used
    }

    fn part(&mut self, name: &str, of: Try) {
        if let Some(users) = self.users.get_mut(name) {
            users.remove(&of);
            if users.is_empty() {
                self.users.remove(name);
            }
        }
    }

    /// Forgets the environments that nobody has used for longest, but for some.
    pub(super) fn expire(&mut self) {
        let unused = self.whole.iter();
        let unused = unused.filter(|(_, whole)| !self.users.contains_key(&whole.name));
        let mut unused: Vec<_> = unused.map(|(key, whole)| (whole.used, *key)).collect();
        unused.sort_unstable();
        let over = unused.len().saturating_sub(UNUSED_MAX);
        for (_, key) in unused.into_iter().take(over) {
            self.whole.remove(&key);
        }
    }

    fn is_known(&self, name: &str) -> bool {
        self.users.contains_key(name)
            || self.making.contains(name)
            || self.whole.values().any(|whole| whole.name == name)
    }

    /// Returns true for what stays of the entries of the folder: notes, folders, and what lies beside them.
    pub(super) fn stays(&self, entry: &str) -> bool {
        match entry.split_once('.') {
            None => self.is_known(entry),
            Some((name, "json")) => self.whole.keys().any(|key| name_of(key) == name),
            Some((name, "users")) => self.users.contains_key(name),
            Some((name, "part")) => self.making.contains(name),
            Some((name, "log")) => self.is_known(name),
            Some(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(s: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(s)
    }

    const ONE: Try = (JobId(1), 1);
    const TWO: Try = (JobId(2), 1);

    fn made(life: &mut Life, key: &Digest, of: Try, s: u64) -> String {
        life.admit(of);
        let name = life.begin(key, |_| true);
        life.finish(key, &name, of, at(s)).unwrap();
        name
    }

    /// SEMANTICS 191.
    #[test]
    fn one_that_has_changed_stays_for_its_users_and_the_next_try_has_another_folder() {
        let (mut life, key) = (Life::default(), Digest::of(b"1"));
        let first = made(&mut life, &key, ONE, 1);
        life.admit(TWO);
        let entered = life.enter(&key, TWO, at(2)).unwrap();
        assert_eq!(entered, Entered::Noted(first.clone()));
        life.changed(&key, &first, TWO);
        assert_eq!(life.enter(&key, TWO, at(2)).unwrap(), Entered::Nothing);
        let second = made(&mut life, &key, TWO, 3);
        assert_ne!(second, first);
        // Each goes on with its own.
        let again = |life: &mut Life, of| life.enter(&key, of, at(4)).unwrap();
        assert_eq!(again(&mut life, ONE), Entered::Again(first.clone()));
        assert_eq!(again(&mut life, TWO), Entered::Again(second.clone()));
        assert!(life.stays(&first) && life.stays(&format!("{first}.users")));
        assert_eq!(life.leave(ONE), std::slice::from_ref(&first));
        assert!(!life.stays(&first) && life.stays(&second));
        // The name of the note is that of the key, whatever folder it names.
        assert!(life.stays(&format!("{}.json", name_of(&key))));
    }

    /// SEMANTICS 191.
    #[test]
    fn a_try_that_is_over_begins_to_use_nothing() {
        let (mut life, key) = (Life::default(), Digest::of(b"1"));
        assert!(life.enter(&key, ONE, at(1)).is_err());
        life.admit(ONE);
        let name = life.begin(&key, |_| true);
        assert!(life.leave(ONE).is_empty());
        // What it has made is whole, and nobody's.
        assert!(life.finish(&key, &name, ONE, at(1)).is_err());
        assert!(life.stays(&name) && !life.stays(&format!("{name}.users")));
        life.admit(TWO);
        let entered = life.enter(&key, TWO, at(1)).unwrap();
        assert_eq!(entered, Entered::Noted(name));
        assert_eq!(life.tries(), [TWO].into());
    }

    #[test]
    fn those_that_nobody_has_used_for_longest_go() {
        let mut life = Life::default();
        let keys: Vec<Digest> = (0..7_u8).map(|n| Digest::of(&[n])).collect();
        let names: Vec<String> = keys
            .iter()
            .zip(1..)
            .map(|(key, n)| made(&mut life, key, (JobId(n), 1), n))
            .collect();
        life.expire();
        assert!(names.iter().all(|name| life.stays(name)), "all are used");
        for n in 1..=6 {
            life.leave((JobId(n), 1));
        }
        life.expire();
        let stay: Vec<bool> = names.iter().map(|name| life.stays(name)).collect();
        assert_eq!(stay, [false, false, true, true, true, true, true]);
    }

    /// SEMANTICS 192.
    #[test]
    fn what_is_half_stays_only_while_somebody_makes_it() {
        let (mut life, key) = (Life::default(), Digest::of(b"1"));
        let name = life.begin(&key, |_| true);
        let beside = |suffix: &str| format!("{name}{suffix}");
        for suffix in ["", ".part", ".log"] {
            assert!(life.stays(&beside(suffix)), "{suffix}");
        }
        assert_ne!(life.begin(&key, |_| true), name, "it is another's");
        life.give_up(&name);
        for suffix in ["", ".part", ".log", ".users", ".json", ".json-part"] {
            assert!(!life.stays(&beside(suffix)), "{suffix}");
        }
        assert_ne!(life.begin(&key, |it| it != name), name, "it is not free");
    }
}
