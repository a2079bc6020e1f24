//! Taking new nodes in: join tokens are rows of the catalog, so that they outlive the daemon that
//! made them, and are used up once over all voters.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use odeon::admission::{Admission, JoinToken, Newcomer, Refusal};
use odeon::{ClusterIdentity, SystemError};
use parking_lot::Mutex;
use thiserror::Error;

use crate::catalog::{Catalog, WriteError};
use crate::daemon::Daemon;
use crate::fact::{Fact, RefusalKind};
use crate::tables::NodeState;
use crate::unix::Unix;

/// Asks the catalog, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gatekeeper {
    pub(crate) catalog: Arc<Mutex<Option<Catalog>>>,
}

/// Why there is no token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// This node cannot make members.
    #[error("this node cannot admit others: ask at the one that began the cluster ({0})")]
    NotHere(SystemError),
    /// The catalog does not take it.
    #[error(transparent)]
    Catalog(#[from] WriteError),
}

impl Daemon {
    /// Makes a token with which so many nodes may join for a while.
    ///
    /// # Errors
    /// This node does not have the authority's key, or the catalog cannot be written.
    #[odeon::boxed]
    pub async fn make_token(
        &self,
        uses: u32,
        valid: Duration,
        by: String,
    ) -> Result<(String, Unix), TokenError> {
        let cluster = ClusterIdentity::load(self.folder().path()).map_err(TokenError::NotHere)?;
        let token = JoinToken::generate(&cluster).map_err(TokenError::NotHere)?;
        let until = Unix::now().after(valid);
        let fact = Fact::TokenMade {
            id: token.secret_hash().to_string(),
            uses,
            until,
            by,
        };
        self.catalog().write_for(fact).await?;
        Ok((token.to_string(), until))
    }
}

impl Gatekeeper {
    async fn judge(&self, id: String, node: &str, taken: bool) -> Result<Vec<u8>, Refusal> {
        let other = |why: String| Refusal::Other(why);
        let catalog = self.catalog.lock().clone();
        let catalog = catalog.ok_or_else(|| other("the node is starting or leaving".to_owned()))?;
        let known = catalog.read(|tables| {
            let token = tables.tokens.get(&id).ok_or(Refusal::WrongToken)?;
            if token.until <= Unix::now() {
                return Err(Refusal::Expired);
            }
            if token.left == 0 {
                return Err(Refusal::UsedUp);
            }
            let row = tables.nodes.get(node);
            if taken || row.is_some_and(|row| row.state == NodeState::Up) {
                return Err(Refusal::NameTaken);
            }
            Ok(())
        });
        known.unwrap_or_else(|| Err(other("this node does not vote".to_owned())))?;
        let node = node.to_owned();
        match catalog.write_for(Fact::TokenUsed { id, node }).await {
            Ok(_) => Ok(vec![]),
            // Somebody was faster.
            Err(WriteError::Refused(refusal)) => Err(match refusal.kind {
                RefusalKind::Unknown => Refusal::WrongToken,
                _ => other(refusal.why),
            }),
            Err(error) => Err(other(error.to_string())),
        }
    }
}

impl Admission for Gatekeeper {
    fn admit<'a>(&'a self, newcomer: Newcomer<'a>) -> BoxFuture<'a, Result<Vec<u8>, Refusal>> {
        let id = newcomer.secret.to_string();
        Box::pin(self.judge(id, newcomer.node, newcomer.is_taken))
    }
}
