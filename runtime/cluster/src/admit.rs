//! Taking new nodes in: join tokens are rows of the catalog, so that they outlive the daemon that
//! made them, and are used up once over all voters.

pub(crate) mod gate;

use std::time::Duration;

use odeon::admission::JoinToken;
use odeon::{ClusterIdentity, SystemError};
use thiserror::Error;

use crate::catalog::WriteError;
use crate::daemon::Daemon;
use crate::fact::Fact;
use crate::unix::Unix;

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
