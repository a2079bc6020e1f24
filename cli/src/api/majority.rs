//! The majority of the voters, as each answer tells of it; without one no change is taken in.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use odeon::{Clock, Timestamp};
use odeon_client::{MAJORITY_HEADER, Majority};
use parking_lot::Mutex;

use super::Api;
use super::problem::No;

/// The header that says so.
pub(super) const HEADER: HeaderName = HeaderName::from_static(MAJORITY_HEADER);
/// The time that nobody may lead until that is no election any more.
const ELECTION_PATIENCE: Duration = Duration::from_secs(4);

/// Since when nobody leads the voters, as far as this node has looked.
#[derive(Debug, Default)]
pub(super) struct Leaderless {
    since: Mutex<Option<Timestamp>>,
}

impl Leaderless {
    fn look(&self, leads: bool, now: Timestamp) -> Majority {
        let mut since = self.since.lock();
        if leads {
            *since = None;
            return Majority::Works;
        }
        let since = *since.get_or_insert(now);
        match now.since(since) < ELECTION_PATIENCE {
            true => Majority::Unsettled,
            false => Majority::Missing,
        }
    }
}

impl Api {
    /// The majority of the voters, or its absence. Somebody looks each second, so that it is known
    /// since when they have none.
    pub(crate) fn majority(&self) -> Majority {
        let catalog = self.daemon.catalog();
        // Who does not vote hears it from the voter that answers.
        let leads = !catalog.is_voter() || catalog.leader().is_some();
        self.leaderless.look(leads, Clock::now())
    }
}

/// Refuses a change at once that no majority would take, and says in every answer whether there is one.
pub(super) async fn tell(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    // What becomes of a node's program is the node's own business.
    let writes = ![Method::GET, Method::HEAD].contains(request.method())
        && !request.uri().path().ends_with("/upgrade");
    let mut response = match writes && api.majority() == Majority::Missing {
        true => {
            let voters = api.daemon.catalog().voters().join(" ");
            let why = format!(
                "no majority of the voters ({voters}) works together: nothing is accepted until there is one"
            );
            No::unavailable(why).into_response()
        }
        false => next.run(request).await,
    };
    if let Some(word) = api.majority().word() {
        let word = HeaderValue::from_static(word);
        response.headers_mut().insert(HEADER, word);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_is_no_loss_of_the_majority_until_it_takes_too_long() {
        let leaderless = Leaderless::default();
        let begun = Clock::now();
        let later = |ms| begun.after(Duration::from_millis(ms));
        for (leads, ms, expect) in [
            (true, 0, Majority::Works),
            (false, 10, Majority::Unsettled),
            (false, 3_900, Majority::Unsettled),
            (false, 4_010, Majority::Missing),
            (true, 4_020, Majority::Works),
            (false, 9_000, Majority::Unsettled),
        ] {
            assert_eq!(leaderless.look(leads, later(ms)), expect, "at {ms} ms");
        }
    }
}
