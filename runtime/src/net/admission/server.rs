//! The head's side: hears a newcomer, asks whoever decides, and signs.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream};

use super::{
    ANSWER_BYTES_MAX, APPLICATION_BYTES_MAX, Admission, Admitted, Application, Gate, Newcomer,
    PATIENCE, Refusal, SecretHash, TOLD_BYTES_MAX,
};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::net::link::owner::LinkOwner;
use crate::net::security::{self, ClusterIdentity};
use crate::net::wire::{VERSION, codec};

/// Where newcomers are heard.
pub(crate) struct AdmissionServer {
    cluster: ClusterIdentity,
    admission: Box<dyn Admission>,
}

impl fmt::Debug for AdmissionServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionServer")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl AdmissionServer {
    pub(crate) fn new(cluster: ClusterIdentity, admission: impl Admission + 'static) -> Self {
        Self {
            cluster,
            admission: Box::new(admission),
        }
    }

    /// The authority that it signs for.
    pub(crate) const fn cluster(&self) -> &ClusterIdentity {
        &self.cluster
    }

    /// Hears one newcomer. Nothing that it says reaches the owner.
    pub(crate) async fn serve(
        &self,
        owner: &Arc<dyn LinkOwner>,
        gate: &Mutex<Gate>,
        connection: &Connection,
    ) -> Result<(), SystemError> {
        let from = connection.remote_address();
        let served = Clock::timeout(PATIENCE, async {
            let streams = connection.accept_bi().await;
            let (mut writer, mut reader) =
                streams.map_err(|error| SystemError::Refused(error.to_string()))?;
            let outcome = self.hear(owner, gate, &mut reader, from).await;
            answer(&mut writer, &outcome).await?;
            // The other side closes the connection when it has read all of it.
            let _ = connection.closed().await;
            outcome
                .map(|_admitted| ())
                .map_err(|refusal| SystemError::Refused(refusal.to_string()))
        });
        served.await.unwrap_or_else(|| {
            gate.lock().failed(from.ip(), Clock::now());
            let why = "it did not finish in time".to_owned();
            Err(SystemError::Refused(why))
        })
    }

    async fn hear(
        &self,
        owner: &Arc<dyn LinkOwner>,
        gate: &Mutex<Gate>,
        reader: &mut RecvStream,
        from: SocketAddr,
    ) -> Result<Admitted, Refusal> {
        if let Some(wait) = gate.lock().wait(from.ip(), Clock::now()) {
            return Err(Refusal::TooManyTries(wait));
        }
        let outcome = self.judge(owner, reader, from).await;
        if matches!(&outcome, Err(refusal) if !matches!(refusal, Refusal::Version(_))) {
            gate.lock().failed(from.ip(), Clock::now());
        }
        outcome
    }

    async fn judge(
        &self,
        owner: &Arc<dyn LinkOwner>,
        reader: &mut RecvStream,
        from: SocketAddr,
    ) -> Result<Admitted, Refusal> {
        let unreadable = || Refusal::Other("it sent what is no application".to_owned());
        let bytes = reader.read_to_end(APPLICATION_BYTES_MAX).await;
        let bytes = bytes.map_err(|_broken| unreadable())?;
        let (version, body) = bytes.split_first_chunk::<4>().ok_or_else(unreadable)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Refusal::Version(VERSION));
        }
        let application: Application = codec::decode(body).map_err(|_error| unreadable())?;
        let node = &application.node;
        security::check_name(node).map_err(Refusal::NameInvalid)?;
        let linked = owner.all_links().into_iter();
        let mut linked = linked.filter(|link| !link.is_worker && !link.is_closed());
        let newcomer = Newcomer {
            secret: SecretHash::of(&application.secret),
            node,
            is_taken: owner.node() == *node || linked.any(|link| link.node == *node),
            from,
        };
        drop(linked);
        // Before it is let in, since that may use its token up.
        let certificate = self.cluster.certify(node, &application.public_key);
        let certificate_pem = certificate.map_err(|error| Refusal::Other(error.to_string()))?;
        let told = self.admission.admit(newcomer).await?;
        if told.len() > TOLD_BYTES_MAX {
            let why = "the cluster has more to tell than fits".to_owned();
            return Err(Refusal::Other(why));
        }
        tracing::info!(node, %from, "a node was admitted");
        Ok(Admitted {
            certificate_pem,
            authority_pem: self.cluster.authority_pem().to_owned(),
            told,
        })
    }
}

/// The version comes first, so that every release can read that.
async fn answer(
    writer: &mut SendStream,
    outcome: &Result<Admitted, Refusal>,
) -> Result<(), SystemError> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    let body = codec::encode(outcome).map_err(|error| SystemError::Refused(error.to_string()))?;
    bytes.extend_from_slice(&body);
    debug_assert!(bytes.len() <= ANSWER_BYTES_MAX);
    let written = writer.write_all(&bytes).await;
    written.map_err(|error| SystemError::Refused(error.to_string()))?;
    // It is open still.
    let _ = writer.finish();
    Ok(())
}
