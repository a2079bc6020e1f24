//! Room for groups that had places before and lost them: they are placed again and again until there is some.
//!
//! Gangs of programs wait here, and so do ranks that share a model.

use std::time::Duration;

use odeon::group::GroupSpawnError;
use odeon::{Actor, Clock, FailureKind, Group, Needs, SpawnError, Timestamp};

/// The wait of a group for room. Nobody's restarts are counted meanwhile.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct WaitForRoom {
    needs: Needs,
    until: Option<Timestamp>,
    outlasts_processes: bool,
}

impl WaitForRoom {
    /// A wait for as long as it takes, by members that need so much each.
    pub(crate) const fn new(needs: Needs) -> Self {
        Self {
            needs,
            until: None,
            outlasts_processes: false,
        }
    }

    /// Ends the wait at a moment: what is refused then is the answer.
    pub(crate) const fn until(mut self, end: Timestamp) -> Self {
        self.until = Some(end);
        self
    }

    /// Goes on where a process is lost that a member was to begin in. For members that run nothing of a user's while
    /// they are placed: others would crash in the same way for ever.
    pub(crate) const fn outlast_processes(mut self) -> Self {
        self.outlasts_processes = true;
        self
    }

    /// Spawns the group when there is room for it. Each try gets the needs that it is to be made with, and those who
    /// look on hear why there is no room: soon, when the reason changes, and each minute.
    ///
    /// # Errors
    /// Its members have found room and have not started, or the wait is over.
    pub(crate) async fn place<A, F>(
        self,
        mut spawn: impl FnMut(Needs) -> F,
        mut tell: impl FnMut(&str),
    ) -> Result<Group<A>, GroupSpawnError>
    where
        A: Actor,
        F: Future<Output = Result<Group<A>, GroupSpawnError>>,
    {
        let mut told: Option<(Timestamp, String)> = None;
        // Who asks again stands behind others: at first it is to be known soon that there is no room.
        let mut needs = self.needs.clone().wait_for_room(FIRST_WORD);
        loop {
            let is_last = |until: Timestamp| until.left(Clock::now()).is_zero();
            let is_last = self.until.is_some_and(is_last);
            let error = match spawn(needs).await {
                Err(error) if !is_last && self.goes_on(&error.error) => error,
                spawned => return spawned,
            };
            let (now, why) = (Clock::now(), error.error.to_string());
            let is_news = told.as_ref().is_none_or(|(at, known)| {
                *known != why && now.since(*at) >= FIRST_WORD || now.since(*at) >= NEWS
            });
            if is_news {
                tell(&why);
                told = Some((now, why));
            }
            Clock::sleep(PAUSE).await;
            needs = self.needs.clone();
        }
    }

    fn goes_on(&self, error: &SpawnError) -> bool {
        lacks_room(error) || self.outlasts_processes && lost_a_process(error)
    }
}

/// Returns true where others have what it takes, or a node that had it is gone.
pub(crate) fn lacks_room(error: &SpawnError) -> bool {
    match error {
        SpawnError::NotPlaced(_) => true,
        SpawnError::Failed(failure) => {
            let kind = failure.root_cause().kind;
            matches!(kind, FailureKind::NotPlaced | FailureKind::NodeLost)
        }
        _ => false,
    }
}

/// Returns true where a process is lost in which a member was to begin.
pub(crate) fn lost_a_process(error: &SpawnError) -> bool {
    match error {
        SpawnError::Failed(failure) => failure.root_cause().kind == FailureKind::ProcessLost,
        _ => false,
    }
}

/// The time after which those who look on hear that members wait.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// The time after which they hear it again.
const NEWS: Duration = Duration::from_secs(60);
/// From one try to the next.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::ready;

    use odeon::Failure;

    use super::*;
    use crate::exec::Exec;

    /// Tries of a group that is refused in these ways, the last of them for ever: their number, what was told, and the
    /// end.
    async fn tried(wait: WaitForRoom, refusals: &[SpawnError]) -> (usize, Vec<String>, String) {
        let rank = odeon_mesh::mesh! { rank: 1 }.rank(0).unwrap();
        let mut tries = 0;
        let mut told = vec![];
        let spawn = |_: Needs| {
            tries += 1;
            let error = refusals[(tries - 1).min(refusals.len() - 1)].clone();
            let rank = rank.clone();
            ready(Err::<Group<Exec>, _>(GroupSpawnError { rank, error }))
        };
        let ended = wait.place(spawn, |why| told.push(why.to_owned())).await;
        (tries, told, ended.unwrap_err().to_string())
    }

    fn no_place() -> SpawnError {
        SpawnError::NotPlaced("no place".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_says_why_soon_and_not_each_time() {
        let ill = SpawnError::Failed(Failure::error("it is ill"));
        let refusals = [no_place(), no_place(), no_place(), ill];
        let (tries, told, end) = tried(WaitForRoom::new(Needs::new()), &refusals).await;
        assert!(end.contains("it is ill"), "{end}");
        assert_eq!((tries, told.len()), (4, 1), "{told:?}");
        assert!(told[0].contains("no place"), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_has_an_end_answers_what_is_refused_then() {
        let wait = WaitForRoom::new(Needs::new()).until(Clock::now());
        let (tries, told, end) = tried(wait, &[no_place()]).await;
        assert_eq!((tries, told.len()), (1, 0));
        assert!(end.contains("no place"), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_lost_ends_the_wait_of_whoever_runs_in_it() {
        let lost = SpawnError::Failed(Failure::new(FailureKind::ProcessLost, "killed"));
        let ill = SpawnError::Failed(Failure::error("it is ill"));
        let refusals = [lost, ill];
        let wait = || WaitForRoom::new(Needs::new());
        assert_eq!(tried(wait(), &refusals).await.0, 1);
        assert_eq!(tried(wait().outlast_processes(), &refusals).await.0, 2);
    }
}
