//! The gate for new nodes: it judges their tokens by the catalog.

use std::sync::Arc;

use futures::future::BoxFuture;
use odeon::admission::{Admission, Newcomer, Refusal};
use parking_lot::Mutex;

use crate::catalog::{Catalog, WriteError};
use crate::fact::{Fact, RefusalKind};
use crate::tables::NodeState;
use crate::unix::Unix;

/// Asks the catalog, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gatekeeper {
    pub(crate) catalog: Arc<Mutex<Option<Catalog>>>,
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
