//! Newcomers over QUIC: those that are let in, each refusal, and strangers that want more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quinn::{Connection, Endpoint};

use super::*;
use crate::base::clock::Clock;
use crate::base::limits::Limits;
use crate::net::quic;
use crate::net::security::{CLUSTER_NAME, ClusterIdentity, JOIN_PROTOCOL};
use crate::net::wire::{Frame, VERSION, codec};
use crate::node::program::WorkerMode;
use crate::system::System;

/// Nothing in these tests takes longer, unless it hangs.
const LONG: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

fn here() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A head that admits whoever has a token of the book.
async fn head(cluster: &Arc<ClusterIdentity>, admission: impl Admission + 'static) -> System {
    let folder = std::env::temp_dir().join(format!("odeon-{:016x}", rand::random::<u64>()));
    std::fs::create_dir(&folder).unwrap();
    cluster.save(&folder).unwrap();
    let authority = ClusterIdentity::load(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let system = System::builder()
        .workers(WorkerMode::InProcess)
        .listen(here(), cluster.issue("head").unwrap())
        .start()
        .await
        .unwrap();
    system.admit(authority, admission).unwrap();
    system
}

struct Scene {
    cluster: Arc<ClusterIdentity>,
    tokens: Tokens,
    head: System,
    address: SocketAddr,
}

impl Scene {
    async fn new() -> Self {
        let cluster = Arc::new(ClusterIdentity::generate().unwrap());
        let tokens = Tokens::new();
        let head = head(&cluster, tokens.clone()).await;
        let address = head.address().unwrap();
        Self {
            cluster,
            tokens,
            head,
            address,
        }
    }

    fn token(&self, valid: Duration, uses: u32) -> JoinToken {
        self.tokens.issue(&self.cluster, valid, uses).unwrap()
    }

    /// Joins; gives what the newcomer is told, or why it is not let in.
    async fn join(&self, token: &JoinToken, node: &str) -> Result<Vec<u8>, JoinError> {
        let joined = Clock::timeout(LONG, join(self.address, token, node)).await;
        joined.expect("an answer in time").map(|(_, told)| told)
    }
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_with_a_token_becomes_a_node() {
    let scene = Scene::new().await;
    scene.tokens.tell(vec![7; TOLD_BYTES_MAX]);
    // As it is copied from a terminal.
    let token = scene.token(MINUTE, 1).to_string().parse().unwrap();
    let (identity, told) = join(scene.address, &token, "Rack 1/ä").await.unwrap();
    assert_eq!((identity.node(), told.len()), ("Rack 1/ä", TOLD_BYTES_MAX));
    let node = System::builder()
        .workers(WorkerMode::InProcess)
        .listen(here(), identity)
        .start()
        .await
        .unwrap();
    // Both ways, and with a node whose certificate was made at the head.
    let peer = node.join(scene.address).await.unwrap();
    assert_eq!(peer, scene.head.engine().process);
    let old = System::builder()
        .workers(WorkerMode::InProcess)
        .listen(here(), scene.cluster.issue("old").unwrap())
        .start()
        .await
        .unwrap();
    old.join(node.address().unwrap()).await.unwrap();
    for system in [node, old, scene.head] {
        system.shutdown().await;
    }
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_says_what_to_do() {
    let scene = Scene::new().await;
    let unknown = JoinToken::generate(&scene.cluster).unwrap();
    let error = scene.join(&unknown, "a").await.unwrap_err();
    assert!(matches!(error, JoinError::WrongToken), "{error:?}");

    let expired = scene.token(Duration::ZERO, 1);
    let error = scene.join(&expired, "a").await.unwrap_err();
    assert!(matches!(error, JoinError::Expired), "{error:?}");

    let once = scene.token(MINUTE, 1);
    let error = scene.join(&once, "head").await.unwrap_err();
    assert!(
        matches!(&error, JoinError::NameTaken { node } if node == "head"),
        "{error:?}"
    );
    let linked = System::builder()
        .workers(WorkerMode::InProcess)
        .listen(here(), scene.cluster.issue("linked").unwrap())
        .start()
        .await
        .unwrap();
    linked.join(scene.address).await.unwrap();
    let seen = async {
        while scene.head.admin().links().is_empty() {
            Clock::sleep(Duration::from_millis(2)).await;
        }
    };
    Clock::timeout(LONG, seen)
        .await
        .expect("the head has a link");
    let error = scene.join(&once, "linked").await.unwrap_err();
    assert!(matches!(error, JoinError::NameTaken { .. }), "{error:?}");
    // None of these has used it up.
    scene.join(&once, "a").await.unwrap();
    let error = scene.join(&once, "b").await.unwrap_err();
    assert!(matches!(error, JoinError::UsedUp), "{error:?}");

    for name in ["", "a\nb", &"n".repeat(101)] {
        let error = scene.join(&unknown, name).await.unwrap_err();
        assert!(matches!(error, JoinError::NameInvalid { .. }), "{error:?}");
    }

    let theirs = ClusterIdentity::generate().unwrap();
    let foreign = JoinToken::generate(&theirs).unwrap();
    let error = scene.join(&foreign, "a").await.unwrap_err();
    assert!(matches!(error, JoinError::OtherCluster { .. }), "{error:?}");

    // A node that admits nobody.
    let address = linked.address().unwrap();
    let error = join(address, &once, "a").await.unwrap_err();
    assert!(matches!(error, JoinError::NotAdmitting { .. }), "{error:?}");
    for system in [linked, scene.head] {
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_the_address_is_said_in_time() {
    // A socket that never answers.
    let silent = std::net::UdpSocket::bind(here()).unwrap();
    let cluster = ClusterIdentity::generate().unwrap();
    let token = JoinToken::generate(&cluster).unwrap();
    let joined = join(silent.local_addr().unwrap(), &token, "a");
    let error = Clock::timeout(LONG, joined).await.unwrap().unwrap_err();
    assert!(matches!(error, JoinError::NoAnswer { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_for_one_lets_one_in_however_many_come_at_once() {
    let scene = Scene::new().await;
    let token = scene.token(MINUTE, 1);
    let names = ["a", "b", "c", "d"];
    let joined = futures::future::join_all(names.map(|name| scene.join(&token, name))).await;
    let (joined, refused): (Vec<_>, Vec<_>) = joined.into_iter().partition(Result::is_ok);
    assert_eq!(joined.len(), 1);
    for error in refused {
        assert!(matches!(error, Err(JoinError::UsedUp)), "{error:?}");
    }
    scene.head.shutdown().await;
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_fails_too_often_has_to_wait() {
    let scene = Scene::new().await;
    let (good, guess) = (
        scene.token(MINUTE, 9),
        JoinToken::generate(&scene.cluster).unwrap(),
    );
    let mut tries = 0;
    let wait = loop {
        match scene.join(&guess, "a").await.unwrap_err() {
            JoinError::WrongToken => tries += 1,
            JoinError::TooManyTries { wait } => break wait,
            error => panic!("{error:?}"),
        }
        assert!(tries <= 10, "one may guess for ever");
    };
    assert!(tries == 10 && wait <= MINUTE, "{tries} tries, {wait:?}");
    // The right one does not help now.
    let error = scene.join(&good, "a").await.unwrap_err();
    assert!(matches!(error, JoinError::TooManyTries { .. }), "{error:?}");
    // Nodes come in as ever.
    let node = System::builder()
        .workers(WorkerMode::InProcess)
        .listen(here(), scene.cluster.issue("node").unwrap())
        .start()
        .await
        .unwrap();
    node.join(scene.address).await.unwrap();
    for system in [node, scene.head] {
        system.shutdown().await;
    }
}

/// An admission that decides for itself: takes its time, or has too much to say.
struct Slow(AtomicUsize);

impl Admission for Slow {
    fn admit<'a>(&'a self, newcomer: Newcomer<'a>) -> BoxFuture<'a, Result<Vec<u8>, Refusal>> {
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::Relaxed);
            Clock::sleep(Duration::from_millis(20)).await;
            match newcomer.node {
                "long" => Ok(vec![0; TOLD_BYTES_MAX + 1]),
                node => Err(Refusal::Other(format!("{node} may not"))),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admission_may_have_reasons_of_its_own() {
    let cluster = Arc::new(ClusterIdentity::generate().unwrap());
    let head = head(&cluster, Slow(AtomicUsize::new(0))).await;
    let token = JoinToken::generate(&cluster).unwrap();
    for (node, why) in [("a", "a may not"), ("long", "more to tell than fits")] {
        let error = join(head.address().unwrap(), &token, node)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, JoinError::Refused(said) if said.contains(why)),
            "{error:?}"
        );
    }
    head.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_another_cluster_is_no_admission() {
    let (ours, theirs) = (
        ClusterIdentity::generate().unwrap(),
        ClusterIdentity::generate().unwrap(),
    );
    let builder = System::builder().listen(here(), ours.issue("a").unwrap());
    let system = builder.start().await.unwrap();
    let error = system.admit(theirs, Tokens::new()).unwrap_err().to_string();
    assert!(error.contains("another cluster"), "{error}");
    system.shutdown().await;
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_admitting_takes_nobody_and_keeps_its_links() {
    let scene = Scene::new().await;
    let token = scene.token(MINUTE, 2);
    let (first, _) = join(scene.address, &token, "first").await.unwrap();
    let first = System::builder().listen(here(), first).start();
    let first = first.await.unwrap();
    first.join(scene.address).await.unwrap();
    scene.head.admit_nobody().unwrap();
    let error = join(scene.address, &token, "second").await.unwrap_err();
    assert!(matches!(error, JoinError::NotAdmitting { .. }), "{error:?}");
    assert_eq!(scene.head.admin().links().len(), 1);
    let authority = Arc::try_unwrap(scene.cluster).unwrap();
    scene.head.admit(authority, scene.tokens).unwrap();
    join(scene.address, &token, "second").await.unwrap();
    first.shutdown().await;
    scene.head.shutdown().await;
}

// ---- strangers ----

/// A client of another make, without a certificate, that trusts the cluster of a token.
async fn stranger(scene: &Scene, protocol: &[u8]) -> (Endpoint, Result<Connection, String>) {
    let token = JoinToken::generate(&scene.cluster).unwrap();
    let endpoint = quic::newcomer(scene.address).unwrap();
    let config = newcomer::config_speaking(&token, scene.address, protocol).unwrap();
    let connecting = endpoint.connect_with(config, scene.address, CLUSTER_NAME);
    let connected = connecting.unwrap().await.map_err(|error| error.to_string());
    (endpoint, connected)
}

/// Says something over a new stream; what comes back, and why the connection ends.
async fn say(connection: &Connection, bytes: &[u8]) -> (Vec<u8>, String) {
    let (mut writer, mut reader) = match connection.open_bi().await {
        Ok(streams) => streams,
        Err(error) => return (vec![], error.to_string()),
    };
    let talk = async {
        // It may be closed at once.
        let _ = writer.write_all(bytes).await;
        let _ = writer.finish();
        let answer = reader.read_to_end(1 << 20).await.unwrap_or_default();
        if !answer.is_empty() {
            connection.close(0u32.into(), b"");
        }
        (answer, connection.closed().await.to_string())
    };
    Clock::timeout(LONG, talk).await.expect("an end in time")
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_shows_a_certificate_also_where_newcomers_come() {
    let scene = Scene::new().await;
    let hello = scene.head.engine().hello();
    let mut bytes = bytes::BytesMut::new();
    Frame::Hello(hello).encode(&mut bytes);
    let (endpoint, connected) = stranger(&scene, b"odeon/1").await;
    let (answer, why) = say(&connected.unwrap(), &bytes).await;
    assert!(answer.is_empty() && why.contains("no certificate"), "{why}");
    endpoint.close(0u32.into(), b"");
    assert!(scene.head.admin().links().is_empty());
    scene.head.shutdown().await;
}

/// SEMANTICS 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_reaches_no_engine_over_the_protocol_of_newcomers() {
    let scene = Scene::new().await;
    let mut hello = bytes::BytesMut::new();
    Frame::Hello(scene.head.engine().hello()).encode(&mut hello);
    let version = VERSION.to_le_bytes();
    let garbage = [&version[..], &[0xff; 64]].concat();
    let long = vec![0; APPLICATION_BYTES_MAX + 1];
    for said in [&hello[..], &garbage, &version, &[], &long] {
        let (endpoint, connected) = stranger(&scene, JOIN_PROTOCOL).await;
        let (answer, _) = say(&connected.unwrap(), said).await;
        let (theirs, body) = answer.split_first_chunk::<4>().expect("an answer");
        assert_eq!(u32::from_le_bytes(*theirs), VERSION);
        let refused: Result<Admitted, Refusal> = codec::decode(body).unwrap();
        assert!(
            matches!(refused, Err(Refusal::Other(_) | Refusal::Version(_))),
            "{refused:?}"
        );
        endpoint.close(0u32.into(), b"");
    }
    assert!(scene.head.admin().links().is_empty());
    // Another version learns of it, whatever it sends besides.
    let (endpoint, connected) = stranger(&scene, JOIN_PROTOCOL).await;
    let (answer, _) = say(&connected.unwrap(), &99u32.to_le_bytes()).await;
    let refused: Result<Admitted, Refusal> = codec::decode(&answer[4..]).unwrap();
    assert!(
        matches!(refused, Err(Refusal::Version(VERSION))),
        "{refused:?}"
    );
    endpoint.close(0u32.into(), b"");
    let (_, refused) = stranger(&scene, b"odeon-join/99").await;
    assert!(refused.is_err(), "it speaks another protocol");
    scene.head.shutdown().await;
}

#[test]
fn a_newcomer_keeps_its_secret_out_of_debug_output() {
    let application = Application {
        secret: vec![77; 16],
        node: "a".to_owned(),
        public_key: vec![],
    };
    assert!(!format!("{application:?}").contains("77"));
    // What a certificate is made for has to be a key.
    let cluster = ClusterIdentity::generate().unwrap();
    assert!(cluster.certify("a", &[4; 64]).is_err() && cluster.certify("a", &[]).is_err());
    assert!(Limits::default().worker_start_timeout >= PATIENCE);
}
