//! Membership of a cluster: a certificate authority of its own, and a certificate for every node.
//!
//! [`ClusterIdentity::generate`] makes the authority, [`ClusterIdentity::issue`] a node's
//! certificate. Both sides of a link present one and check the other's: an unknown authority, a
//! certificate that has expired, none at all, or a node under another's name end the handshake. All
//! traffic is encrypted (TLS 1.3). Whoever holds the authority's key can make members, so it stays
//! where the cluster was made; a node needs only its own [`NodeIdentity`].
//!
//! A machine that has no identity yet gets one from the cluster's head for a token: see
//! [`crate::net::admission`] and [`join`].
//!
//! Nothing is revoked: a lost node key is answered by a new authority.

use std::fmt;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SignatureAlgorithm, date_time_ymd,
};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use crate::base::clock::Clock;
use crate::base::error::SystemError;
pub use crate::net::admission::join;

/// The name that every node's certificate is valid for; it says "a member", whatever its address.
pub(crate) const CLUSTER_NAME: &str = "member.odeon";

/// The protocol that both sides must agree on.
const PROTOCOL: &[u8] = b"odeon/1";

/// The protocol of a machine that is no node yet.
pub(crate) const JOIN_PROTOCOL: &[u8] = b"odeon-join/1";

/// Longest name of a node in bytes: what fits into a DNS name twice over, with room to spare.
const NODE_NAME_BYTES_MAX: usize = 100;

/// The time for which a certificate is valid unless told otherwise.
const VALID: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The largest difference between the clocks of nodes that is allowed for when a certificate is
/// new.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

const CA_CERTIFICATE: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const NODE_CERTIFICATE: &str = "node.pem";
const NODE_KEY: &str = "node.key";

/// The certificate authority of a cluster. Its key makes members: keep it safe.
pub struct ClusterIdentity {
    /// Random, so that two clusters never share a name.
    cluster: String,
    /// With the cluster's name in its first line.
    certificate_pem: String,
    key: KeyPair,
}

impl fmt::Debug for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterIdentity")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl ClusterIdentity {
    /// A new cluster.
    ///
    /// # Errors
    /// The key or certificate cannot be made.
    pub fn generate() -> Result<Self, SystemError> {
        let key = KeyPair::generate().map_err(failed("making the cluster's key"))?;
        let cluster = format!("{:016x}", rand::random::<u64>());
        let certificate = authority(&cluster)
            .self_signed(&key)
            .map_err(failed("making the cluster's certificate"))?;
        let certificate_pem = format!("cluster: {cluster}\n{}", certificate.pem());
        Ok(Self {
            cluster,
            certificate_pem,
            key,
        })
    }

    /// A certificate for the node of this name, valid for ten years.
    ///
    /// # Errors
    /// The name is empty or longer than 100 bytes.
    pub fn issue(&self, node: &str) -> Result<NodeIdentity, SystemError> {
        self.issue_for(node, VALID)
    }

    /// A certificate that is valid for so long.
    ///
    /// # Errors
    /// The name is empty or longer than 100 bytes.
    pub fn issue_for(&self, node: &str, valid: Duration) -> Result<NodeIdentity, SystemError> {
        self.issue_until(node, Clock::unix_time() + valid)
    }

    /// A certificate that is valid until this moment, in time since 1970.
    pub(crate) fn issue_until(
        &self,
        node: &str,
        until: Duration,
    ) -> Result<NodeIdentity, SystemError> {
        let key = KeyPair::generate().map_err(failed("making a node's key"))?;
        Ok(NodeIdentity {
            node: node.to_owned(),
            authority_pem: self.certificate_pem.clone(),
            certificate_pem: self.sign(node, until, &key)?,
            key_pem: key.serialize_pem(),
        })
    }

    /// A certificate, valid for ten years, for the node that has the key to this point on P-256.
    pub(crate) fn certify(&self, node: &str, public_key: &[u8]) -> Result<String, SystemError> {
        let key = PublicKey::new(public_key)?;
        self.sign(node, Clock::unix_time() + VALID, &key)
    }

    /// A node's certificate, with its name in the first line.
    fn sign(
        &self,
        node: &str,
        until: Duration,
        key: &impl PublicKeyData,
    ) -> Result<String, SystemError> {
        let names = vec![CLUSTER_NAME.to_owned(), dns_name_of(node)?];
        let mut params =
            CertificateParams::new(names).map_err(failed("making a node's certificate"))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, node);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        params.not_before = date_time_ymd(1970, 1, 1) + Clock::unix_time().min(until) - CLOCK_SKEW;
        params.not_after = date_time_ymd(1970, 1, 1) + until;
        let authority = authority(&self.cluster);
        let issuer = Issuer::from_params(&authority, &self.key);
        let certificate = params
            .signed_by(key, &issuer)
            .map_err(failed("signing a node's certificate"))?;
        Ok(format!("node: {node}\n{}", certificate.pem()))
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> Result<CertificateDer<'static>, SystemError> {
        certificate_of(&self.certificate_pem, Path::new(CA_CERTIFICATE))
    }

    pub(crate) fn authority_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Writes `ca.pem` and `ca.key` (readable by the owner only) into a folder.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), SystemError> {
        write_file(&folder.join(CA_CERTIFICATE), &self.certificate_pem, 0o644)?;
        write_file(&folder.join(CA_KEY), &self.key.serialize_pem(), 0o600)
    }

    /// Reads what [`ClusterIdentity::save`] wrote.
    ///
    /// # Errors
    /// The files cannot be read, are no certificate and key, or others may read the key.
    pub fn load(folder: &Path) -> Result<Self, SystemError> {
        let path = folder.join(CA_CERTIFICATE);
        let certificate_pem = read_file(&path)?;
        let cluster = labelled(&certificate_pem, "cluster", &path)?;
        let key = KeyPair::from_pem(&read_key(&folder.join(CA_KEY))?)
            .map_err(failed("reading the cluster's key"))?;
        let certificate = certificate_of(&certificate_pem, &path)?;
        let parsed = ParsedCertificate::try_from(&certificate).map_err(unreadable(&path))?;
        if !parsed
            .subject_public_key_info()
            .as_ref()
            .ends_with(key.public_key_raw())
        {
            let why = format!("{CA_KEY} does not belong to {}", path.display());
            return Err(SystemError::Security(why));
        }
        Ok(Self {
            cluster,
            certificate_pem,
            key,
        })
    }
}

/// The parameters of the authority's certificate, which it also signs with.
fn authority(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("odeon cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// The public half of a node's key, as rcgen wants it.
struct PublicKey(Vec<u8>);

impl PublicKey {
    /// A point on P-256, not compressed (SEC 1, section 2.3.3). Whether it lies on the curve matters
    /// to whoever uses the certificate.
    fn new(point: &[u8]) -> Result<Self, SystemError> {
        if point.len() != 65 || point[0] != 4 {
            let why = "a node's public key is a point on P-256 of 65 bytes".to_owned();
            return Err(SystemError::Security(why));
        }
        Ok(Self(point.to_vec()))
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// The key of a node that has no certificate yet.
pub(crate) struct NodeKey(KeyPair);

impl NodeKey {
    pub(crate) fn generate() -> Result<Self, SystemError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
        key.map(Self).map_err(failed("making a node's key"))
    }

    pub(crate) fn public(&self) -> &[u8] {
        self.0.der_bytes()
    }

    /// The identity that a certificate for this key makes, if it is one.
    pub(crate) fn admitted(
        &self,
        node: &str,
        certificate_pem: String,
        authority_pem: String,
    ) -> Result<NodeIdentity, SystemError> {
        let identity = NodeIdentity {
            node: node.to_owned(),
            authority_pem,
            certificate_pem,
            key_pem: self.0.serialize_pem(),
        };
        check_node(&identity.certificate()?, node)?;
        // That fails with another key.
        identity.server_config(false)?;
        Ok(identity)
    }
}

/// The SHA-256 of a certificate, in hexadecimal digits.
pub(crate) fn fingerprint_of(certificate: &CertificateDer<'_>) -> String {
    let digest = Sha256::digest(certificate);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A node's membership in a cluster: its certificate and key, and the authority that it trusts.
#[derive(Clone)]
pub struct NodeIdentity {
    node: String,
    authority_pem: String,
    /// With the node's name in its first line.
    certificate_pem: String,
    key_pem: String,
}

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIdentity")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl NodeIdentity {
    /// The name that the certificate was issued for.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The SHA-256 of the node's certificate, in hexadecimal digits: see
    /// [`System::refuse_certificates`](crate::System::refuse_certificates).
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn fingerprint(&self) -> Result<String, SystemError> {
        Ok(fingerprint_of(&self.certificate()?))
    }

    /// The cluster's certificate, as PEM.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The node's certificate, as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The node's key, as PEM. Who has it can speak as the node.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Writes `ca.pem`, `node.pem` and `node.key` (readable by the owner only) into a folder.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), SystemError> {
        write_file(&folder.join(CA_CERTIFICATE), &self.authority_pem, 0o644)?;
        write_file(&folder.join(NODE_CERTIFICATE), &self.certificate_pem, 0o644)?;
        write_file(&folder.join(NODE_KEY), &self.key_pem, 0o600)
    }

    /// Reads what [`NodeIdentity::save`] wrote.
    ///
    /// # Errors
    /// The files cannot be read, are no certificates and key, the certificate is for another node
    /// than it says, or others may read the key.
    pub fn load(folder: &Path) -> Result<Self, SystemError> {
        let path = folder.join(NODE_CERTIFICATE);
        let certificate_pem = read_file(&path)?;
        let identity = Self {
            node: labelled(&certificate_pem, "node", &path)?,
            authority_pem: read_file(&folder.join(CA_CERTIFICATE))?,
            key_pem: read_key(&folder.join(NODE_KEY))?,
            certificate_pem,
        };
        check_node(
            &certificate_of(&identity.certificate_pem, &path)?,
            &identity.node,
        )?;
        identity.authority()?;
        identity.key()?;
        Ok(identity)
    }

    /// The authority's certificate.
    pub(crate) fn authority_der(&self) -> Result<CertificateDer<'static>, SystemError> {
        certificate_of(&self.authority_pem, Path::new(CA_CERTIFICATE))
    }

    /// The TLS side of a node that is joined: it wants a certificate from whoever comes. One that
    /// admits newcomers cannot know what somebody comes for before TLS is done, so it looks after
    /// that whether nodes have shown one.
    pub(crate) fn server_config(&self, admits: bool) -> Result<ServerConfig, SystemError> {
        let provider = provider();
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.authority()?),
            Arc::clone(&provider),
        );
        let verifier = if admits {
            verifier.allow_unauthenticated()
        } else {
            verifier
        }
        .build()
        .map_err(failed("trusting the cluster's certificate"))?;
        let mut chain = vec![self.certificate()?];
        if admits {
            // Newcomers know no more of it than its hash.
            chain.push(self.authority_der()?);
        }
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("choosing TLS 1.3"))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, self.key()?)
            .map_err(failed("using the node's certificate and key"))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        if admits {
            config.alpn_protocols.push(JOIN_PROTOCOL.to_vec());
        }
        // A resumed session would not look at the certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// The TLS side of a node that joins.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, SystemError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("choosing TLS 1.3"))?
            .with_root_certificates(self.authority()?)
            .with_client_auth_cert(vec![self.certificate()?], self.key()?)
            .map_err(failed("using the node's certificate and key"))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn authority(&self) -> Result<RootCertStore, SystemError> {
        let mut store = RootCertStore::empty();
        store
            .add(self.authority_der()?)
            .map_err(unreadable(Path::new(CA_CERTIFICATE)))?;
        Ok(store)
    }

    fn certificate(&self) -> Result<CertificateDer<'static>, SystemError> {
        certificate_of(&self.certificate_pem, Path::new(NODE_CERTIFICATE))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, SystemError> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(unreadable(Path::new(NODE_KEY)))
    }
}

/// Checks that a certificate, whose signature has been checked, was issued for a node of this name.
pub(crate) fn check_node(certificate: &CertificateDer<'_>, node: &str) -> Result<(), SystemError> {
    let wrong = || SystemError::Security(format!("the certificate is not one of node `{node}`"));
    let name = ServerName::try_from(dns_name_of(node)?).map_err(|_invalid| wrong())?;
    let parsed = ParsedCertificate::try_from(certificate).map_err(|_unreadable| wrong())?;
    rustls::client::verify_server_name(&parsed, &name).map_err(|_other| wrong())
}

/// Checks that a node can have this name; else says why not.
pub(crate) fn check_name(node: &str) -> Result<(), String> {
    if node.is_empty() || node.len() > NODE_NAME_BYTES_MAX || node.contains(['\n', '\r']) {
        return Err(format!(
            "a node's name is one line of 1 to {NODE_NAME_BYTES_MAX} bytes, `{node}` has {}",
            node.len()
        ));
    }
    Ok(())
}

/// A node's name inside a certificate: hexadecimal, since a DNS name knows neither case nor most
/// characters.
fn dns_name_of(node: &str) -> Result<String, SystemError> {
    check_name(node).map_err(SystemError::Security)?;
    let mut name = String::new();
    for label in node.as_bytes().chunks(30) {
        name.extend(label.iter().map(|byte| format!("{byte:02x}")));
        name.push('.');
    }
    Ok(name + "node.odeon")
}

/// The one provider of cryptography, also for whoever asks for the process's default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // Another thread may be first; ours is used explicitly either way.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn failed<E: fmt::Display>(doing: &'static str) -> impl Fn(E) -> SystemError {
    move |error| SystemError::Security(format!("{doing}: {error}"))
}

fn unreadable<E: fmt::Display>(path: &Path) -> impl Fn(E) -> SystemError {
    move |error| SystemError::Security(format!("{} cannot be used: {error}", path.display()))
}

fn certificate_of(pem: &str, path: &Path) -> Result<CertificateDer<'static>, SystemError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unreadable(path))
}

/// The value of the line `label: value` that a file begins with.
fn labelled(text: &str, label: &str, path: &Path) -> Result<String, SystemError> {
    text.lines()
        .next()
        .and_then(|line| line.strip_prefix(label)?.strip_prefix(": "))
        .map(ToOwned::to_owned)
        .ok_or_else(|| unreadable(path)(format!("its first line is not `{label}: ...`")))
}

fn io(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> SystemError {
    let doing = format!("{doing} {}", path.display());
    move |source| SystemError::Io { doing, source }
}

/// Writes a whole file, which is never seen half written or with wider permissions.
fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), SystemError> {
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|source| {
        // The draft may not even exist.
        let _ = fs::remove_file(&draft);
        io("writing", path)(source)
    })
}

fn read_file(path: &Path) -> Result<String, SystemError> {
    fs::read_to_string(path).map_err(io("reading", path))
}

fn read_key(path: &Path) -> Result<String, SystemError> {
    let mode = fs::metadata(path)
        .map_err(io("reading", path))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        return Err(SystemError::Security(format!(
            "others can read {} (mode {:03o}): run chmod 600 on it",
            path.display(),
            mode & 0o777
        )));
    }
    read_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive_the_disk() {
        let folder = std::env::temp_dir().join(format!("odeon-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        let cluster = ClusterIdentity::generate().unwrap();
        cluster.save(&folder).unwrap();
        let again = ClusterIdentity::load(&folder).unwrap();
        let node = again.issue("Rack 1/ä").unwrap();
        node.save(&folder).unwrap();
        let loaded = NodeIdentity::load(&folder).unwrap();
        assert_eq!(loaded.node(), "Rack 1/ä");
        assert!(loaded.server_config(true).is_ok() && loaded.client_config().is_ok());
        for key in [CA_KEY, NODE_KEY] {
            let path = folder.join(key);
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let error = NodeIdentity::load(&folder).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        assert!(
            ClusterIdentity::load(&folder)
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn another_clusters_key_is_no_key() {
        let folder = std::env::temp_dir().join(format!("odeon-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        ClusterIdentity::generate().unwrap().save(&folder).unwrap();
        let text = fs::read_to_string(folder.join(CA_CERTIFICATE)).unwrap();
        ClusterIdentity::generate().unwrap().save(&folder).unwrap();
        fs::write(folder.join(CA_CERTIFICATE), text).unwrap();
        let error = ClusterIdentity::load(&folder).unwrap_err().to_string();
        assert!(error.contains("does not belong to"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_certificate_names_one_node() {
        let cluster = ClusterIdentity::generate().unwrap();
        let long = "n".repeat(NODE_NAME_BYTES_MAX);
        for name in ["a", "A", "trainer-07.rack", "ü", &long] {
            let certificate = cluster.issue(name).unwrap().certificate().unwrap();
            assert!(check_node(&certificate, name).is_ok(), "{name}");
            for other in ["b", "aa", &long[1..]] {
                assert!(
                    check_node(&certificate, other).is_err(),
                    "{name} is not {other}"
                );
            }
        }
        assert!(cluster.issue("").is_err() && cluster.issue("a\nb").is_err());
        assert!(cluster.issue(&"n".repeat(NODE_NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn keys_stay_out_of_debug_output() {
        let cluster = ClusterIdentity::generate().unwrap();
        let node = cluster.issue("a").unwrap();
        let text = format!("{cluster:?} {node:?}");
        assert!(!text.contains("PRIVATE") && text.len() < 200, "{text}");
    }
}
