//! Systems as nodes of a cluster: who reaches them, whom they join, and who is admitted.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{System, SystemBuilder};
use crate::base::error::SystemError;
use crate::base::id::ProcessId;
use crate::net::admission::{Admission, AdmissionServer};
use crate::net::quic::{Listen, Quic};
use crate::net::security::{ClusterIdentity, NodeIdentity};

impl SystemBuilder {
    /// Makes this a node that others can join over QUIC, and that can join others. Port 0 takes any
    /// free one: see [`System::address`].
    pub fn listen(mut self, address: SocketAddr, identity: NodeIdentity) -> Self {
        self.listen = Some(Listen { address, identity });
        self
    }
}

impl System {
    /// Where other nodes reach this one; `None` without [`SystemBuilder::listen`].
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.quic.as_ref().map(|quic| quic.address())
    }

    /// Takes newcomers into the cluster from now on, over the port that nodes use: whoever the
    /// admission lets in gets a certificate of this authority. See [`crate::net::admission`].
    ///
    /// # Errors
    /// This system has no [`NodeIdentity`], or one of another cluster.
    pub fn admit(
        &self,
        cluster: ClusterIdentity,
        admission: impl Admission + 'static,
    ) -> Result<(), SystemError> {
        self.network()?
            .admit(Some(AdmissionServer::new(cluster, admission)))
    }

    /// Takes no newcomers any more.
    ///
    /// # Errors
    /// This system has no [`NodeIdentity`].
    pub fn admit_nobody(&self) -> Result<(), SystemError> {
        self.network()?.admit(None)
    }

    /// Links to no node any more that shows one of these certificates, which are named by their
    /// fingerprints ([`NodeIdentity::fingerprint`]). Links that there are stay.
    pub fn refuse_certificates(&self, fingerprints: BTreeSet<String>) {
        if let Some(quic) = &self.quic {
            quic.revoke(fingerprints);
        }
    }

    /// Links this node to another one, over QUIC with certificates checked on both sides. Both may
    /// join each other; there is one link between two nodes.
    ///
    /// # Errors
    /// This system has no [`NodeIdentity`], nobody answers, or a side refuses the other: another
    /// cluster's certificate, an expired one, another job or version.
    #[odeon_macros::boxed]
    pub async fn join(&self, address: SocketAddr) -> Result<ProcessId, SystemError> {
        Box::pin(self.network()?.join(&self.engine.as_owner(), address)).await
    }

    fn network(&self) -> Result<&Arc<Quic>, SystemError> {
        self.quic.as_ref().ok_or_else(|| {
            let why = "this system has no identity: give it one with SystemBuilder::listen";
            SystemError::Security(why.to_owned())
        })
    }
}
