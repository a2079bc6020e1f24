//! Handshakes that must fail, and say why; two sides that dial at the same time.

use std::time::Duration;

use quinn::Connection;
use rustls::pki_types::pem::PemObject;

use super::*;
use crate::net::security::ClusterIdentity;
use crate::node::program::WorkerMode;
use crate::system::System;

const PATIENCE: Duration = Duration::from_secs(20);

fn here() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn node(identity: NodeIdentity) -> System {
    let builder = System::builder().workers(WorkerMode::InProcess);
    builder.listen(here(), identity).start().await.unwrap()
}

/// The refusals that both sides give when `joiner` joins `joined`.
async fn refusal(joiner: NodeIdentity, joined: NodeIdentity) -> String {
    let (a, b) = (node(joiner).await, node(joined).await);
    let join = a.join(b.address().unwrap());
    let error = Clock::timeout(PATIENCE, join)
        .await
        .expect("an answer in time")
        .unwrap_err();
    assert!(
        matches!(error, SystemError::Security(_) | SystemError::Refused(_)),
        "{error:?}"
    );
    a.shutdown().await;
    b.shutdown().await;
    error.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clusters_node_is_refused() {
    let (ours, theirs) = (
        ClusterIdentity::generate().unwrap(),
        ClusterIdentity::generate().unwrap(),
    );
    let why = refusal(ours.issue("a").unwrap(), theirs.issue("b").unwrap()).await;
    assert!(why.contains("another cluster"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_is_refused_on_either_side() {
    let cluster = ClusterIdentity::generate().unwrap();
    let expired = |name| {
        let hour = Duration::from_secs(3600);
        cluster
            .issue_until(name, Clock::unix_time() - hour)
            .unwrap()
    };
    let why = refusal(expired("a"), cluster.issue("b").unwrap()).await;
    assert!(
        why.contains("refused our certificate") && why.contains("expired"),
        "{why}"
    );
    let why = refusal(cluster.issue("a").unwrap(), expired("b")).await;
    assert!(
        why.contains("was refused") && why.contains("expired"),
        "{why}"
    );
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cannot_speak_under_anothers_name() {
    let cluster = ClusterIdentity::generate().unwrap();
    let b = node(cluster.issue("b").unwrap()).await;
    // The engine says that it is `a`, and the certificate that it is `mallory`.
    let a = System::builder()
        .workers(WorkerMode::InProcess)
        .node("a")
        .start()
        .await
        .unwrap();
    let quic = Quic::bind(
        here(),
        cluster.issue("mallory").unwrap(),
        &Limits::default(),
    )
    .unwrap();
    let near = a.engine().as_owner();
    let join = quic.join(&near, b.address().unwrap());
    let error = Clock::timeout(PATIENCE, join)
        .await
        .expect("an answer in time")
        .unwrap_err();
    assert!(error.to_string().contains("not one of node `a`"), "{error}");
    a.shutdown().await;
    quic.close().await;
    b.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_belongs_to_the_node_it_names() {
    let cluster = ClusterIdentity::generate().unwrap();
    let builder = System::builder()
        .node("a")
        .listen(here(), cluster.issue("b").unwrap());
    let error = builder.start().await.unwrap_err().to_string();
    assert!(error.contains("issued to node `b`, this is `a`"), "{error}");
    let alone = System::builder()
        .workers(WorkerMode::InProcess)
        .start()
        .await
        .unwrap();
    let error = alone
        .join("127.0.0.1:9".parse().unwrap())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("SystemBuilder::listen"), "{error}");
    alone.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_the_address_is_an_error_in_time() {
    let cluster = ClusterIdentity::generate().unwrap();
    // A socket that never answers.
    let silent = std::net::UdpSocket::bind(here()).unwrap();
    let limits = Limits {
        link_idle_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let builder = System::builder()
        .workers(WorkerMode::InProcess)
        .limits(limits);
    let a = builder
        .listen(here(), cluster.issue("a").unwrap())
        .start()
        .await
        .unwrap();
    let join = a.join(silent.local_addr().unwrap());
    let error = Clock::timeout(PATIENCE, join)
        .await
        .expect("an answer in time")
        .unwrap_err();
    assert!(matches!(error, SystemError::Io { .. }), "{error:?}");
    a.shutdown().await;
}

/// A client of another make: trusts the node, but is none.
async fn stranger(cluster: &ClusterIdentity, to: SocketAddr) -> (Endpoint, Connection) {
    let folder = std::env::temp_dir().join(format!("odeon-{:016x}", rand::random::<u64>()));
    std::fs::create_dir(&folder).unwrap();
    cluster.save(&folder).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap())
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"odeon/1".to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let endpoint = Endpoint::client(here()).unwrap();
    let connection = endpoint
        .connect_with(config, to, CLUSTER_NAME)
        .unwrap()
        .await
        .unwrap();
    (endpoint, connection)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_is_refused() {
    let cluster = ClusterIdentity::generate().unwrap();
    let b = node(cluster.issue("b").unwrap()).await;
    let (endpoint, connection) = stranger(&cluster, b.address().unwrap()).await;
    let reason = Clock::timeout(PATIENCE, connection.closed())
        .await
        .expect("a refusal in time");
    let why = explain(b.address().unwrap(), &reason).to_string();
    assert!(
        why.contains("refused our certificate: there was none"),
        "{why}"
    );
    endpoint.close(0u32.into(), b"");
    b.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sides_that_dial_at_once_get_one_link() {
    let cluster = ClusterIdentity::generate().unwrap();
    for _ in 0..5 {
        let a = node(cluster.issue("a").unwrap()).await;
        let b = node(cluster.issue("b").unwrap()).await;
        let (to_a, to_b) = (a.address().unwrap(), b.address().unwrap());
        // Enough for a decision about one to meet another that is not carried out.
        let dials = (0..4).map(|_| async { tokio::join!(a.join(to_b), b.join(to_a)) });
        let all = futures::future::join_all(dials);
        for (to_b, to_a) in Clock::timeout(PATIENCE, all).await.unwrap() {
            assert_eq!(to_b.unwrap(), b.engine().process);
            assert_eq!(to_a.unwrap(), a.engine().process);
        }
        assert_eq!((a.engine().links.len(), b.engine().links.len()), (1, 1));
        // A later join finds the link and leaves it alone.
        let link = Arc::clone(&a.engine().links.get(&b.engine().process).unwrap());
        assert!(a.join(to_b).await.is_ok() && b.join(to_a).await.is_ok());
        assert!(!link.is_closed());
        a.shutdown().await;
        b.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_does_not_join_itself() {
    let cluster = ClusterIdentity::generate().unwrap();
    let a = node(cluster.issue("a").unwrap()).await;
    let error = a.join(a.address().unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("this system itself"), "{error}");
    a.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_that_ends_gives_its_port_back() {
    let cluster = ClusterIdentity::generate().unwrap();
    let (a, b) = (
        node(cluster.issue("a").unwrap()).await,
        node(cluster.issue("b").unwrap()).await,
    );
    a.join(b.address().unwrap()).await.unwrap();
    // The side that was joined may be a moment behind.
    Clock::timeout(PATIENCE, linked(&b.engine().as_owner(), a.engine().process))
        .await
        .unwrap()
        .unwrap();
    let link = Arc::clone(&b.engine().links.get(&a.engine().process).unwrap());
    let address = a.address().unwrap();
    a.shutdown().await;
    Clock::timeout(PATIENCE, link.closed())
        .await
        .expect("the other side hears of it");
    assert!(link.why().contains("leaving"), "{}", link.why());
    // The socket is closed by its driver, which runs once more after the last handle is gone.
    let bound = async {
        while std::net::UdpSocket::bind(address).is_err() {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    Clock::timeout(PATIENCE, bound)
        .await
        .expect("the port is free");
    b.shutdown().await;
}
