//! The newcomer's side: trusts nobody but the cluster of its token, and keeps its key to itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::{ANSWER_BYTES_MAX, Admitted, Application, JoinError, JoinToken, PATIENCE, Refusal};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::net::quic;
use crate::net::security::{self, CLUSTER_NAME, JOIN_PROTOCOL, NodeIdentity, NodeKey};
use crate::net::wire::{VERSION, codec};

/// Becomes the node of this name in the cluster whose head listens at `address`: gives its identity
/// and what the head had to tell. The key of the identity is made here and sent nowhere.
///
/// # Errors
/// See [`JoinError`]: each says what to do.
#[odeon_macros::boxed]
pub async fn join(
    address: SocketAddr,
    token: &JoinToken,
    node: &str,
) -> Result<(NodeIdentity, Vec<u8>), JoinError> {
    security::check_name(node).map_err(|why| JoinError::NameInvalid {
        node: node.to_owned(),
        why,
    })?;
    let key = NodeKey::generate()?;
    let application = Application {
        secret: token.secret().to_vec(),
        node: node.to_owned(),
        public_key: key.public().to_vec(),
    };
    let endpoint = quic::newcomer(address)?;
    let applied = async {
        let connection = connect(&endpoint, address, token).await?;
        let applied = Clock::timeout(PATIENCE, apply(&connection, &application)).await;
        applied
            .unwrap_or_else(|| Err("it did not answer in time".to_owned()))
            .map_err(|why| JoinError::Broken { address, why })
    };
    let applied = applied.await;
    endpoint.close(0u32.into(), b"");
    // What is on its way says that the connection is over.
    let _ = Clock::timeout(PATIENCE / 10, endpoint.wait_idle()).await;
    match applied? {
        Ok(admitted) => {
            let identity = key.admitted(node, admitted.certificate_pem, admitted.authority_pem)?;
            if !token.names(&identity.authority_der()?) {
                return Err(JoinError::OtherCluster { address });
            }
            Ok((identity, admitted.told))
        }
        Err(refusal) => Err(refused(refusal, node)),
    }
}

fn refused(refusal: Refusal, node: &str) -> JoinError {
    let node = node.to_owned();
    match refusal {
        Refusal::WrongToken => JoinError::WrongToken,
        Refusal::Expired => JoinError::Expired,
        Refusal::UsedUp => JoinError::UsedUp,
        Refusal::NameTaken => JoinError::NameTaken { node },
        Refusal::NameInvalid(why) => JoinError::NameInvalid { node, why },
        Refusal::TooManyTries(wait) => JoinError::TooManyTries { wait },
        Refusal::Version(theirs) => JoinError::Version {
            theirs,
            ours: VERSION,
        },
        Refusal::Other(why) => JoinError::Refused(why),
    }
}

/// Finds the head of the token's cluster at this address.
async fn connect(
    endpoint: &Endpoint,
    address: SocketAddr,
    token: &JoinToken,
) -> Result<Connection, JoinError> {
    let broken = |why: String| JoinError::Broken { address, why };
    let trust = Arc::new(Trust::new(token));
    let config = client_config(Arc::clone(&trust), address, JOIN_PROTOCOL)?;
    let connecting = endpoint
        .connect_with(config, address, CLUSTER_NAME)
        .map_err(|error| broken(error.to_string()))?;
    match Clock::timeout(PATIENCE, connecting).await {
        Some(Ok(connection)) => Ok(connection),
        Some(Err(_)) if trust.met_others.load(Ordering::Relaxed) => {
            Err(JoinError::OtherCluster { address })
        }
        // No protocol in common (RFC 8446, section 6.2).
        Some(Err(ConnectionError::ConnectionClosed(close)))
            if u64::from(close.error_code) == 0x178 =>
        {
            Err(JoinError::NotAdmitting { address })
        }
        Some(Err(ConnectionError::TimedOut)) | None => Err(JoinError::NoAnswer { address }),
        Some(Err(error)) => Err(broken(error.to_string())),
    }
}

/// Sends the application and reads the answer; else why that did not work.
async fn apply(
    connection: &Connection,
    application: &Application,
) -> Result<Result<Admitted, Refusal>, String> {
    let (mut writer, mut reader) = connection.open_bi().await.map_err(text)?;
    let body = codec::encode(application).map_err(text)?;
    for part in [&VERSION.to_le_bytes()[..], &body] {
        writer.write_all(part).await.map_err(text)?;
    }
    // It is open still.
    let _ = writer.finish();
    let bytes = reader.read_to_end(ANSWER_BYTES_MAX).await.map_err(text)?;
    let unreadable = || "its answer cannot be read".to_owned();
    let (theirs, body) = bytes.split_first_chunk::<4>().ok_or_else(unreadable)?;
    let theirs = u32::from_le_bytes(*theirs);
    if theirs != VERSION {
        return Ok(Err(Refusal::Version(theirs)));
    }
    codec::decode(body).map_err(|_error| unreadable())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The settings of a client that speaks this protocol, as one of another make may.
#[cfg(test)]
pub(super) fn config_speaking(
    token: &JoinToken,
    address: SocketAddr,
    protocol: &[u8],
) -> Result<quinn::ClientConfig, SystemError> {
    client_config(Arc::new(Trust::new(token)), address, protocol)
}

fn client_config(
    trust: Arc<Trust>,
    address: SocketAddr,
    protocol: &[u8],
) -> Result<quinn::ClientConfig, SystemError> {
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&trust.provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(security::failed("choosing TLS 1.3"))?
        .dangerous()
        .with_custom_certificate_verifier(trust)
        .with_no_client_auth();
    tls.alpn_protocols = vec![protocol.to_vec()];
    tls.resumption = Resumption::disabled();
    let tls = QuicClientConfig::try_from(tls).map_err(security::failed("choosing ciphers"))?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(quic::newcomer_transport(address, PATIENCE)));
    Ok(config)
}

/// Trusts the one authority whose hash the token names.
#[derive(Debug)]
struct Trust {
    token: JoinToken,
    provider: Arc<CryptoProvider>,
    /// The other side belongs to another cluster.
    met_others: AtomicBool,
}

impl Trust {
    fn new(token: &JoinToken) -> Self {
        Self {
            token: token.clone(),
            provider: security::provider(),
            met_others: AtomicBool::new(false),
        }
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let named = others.iter().find(|other| self.token.names(other));
        let Some(authority) = named else {
            self.met_others.store(true, Ordering::Relaxed);
            return Err(CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(leaf, &[], name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // QUIC knows TLS 1.3 alone.
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
