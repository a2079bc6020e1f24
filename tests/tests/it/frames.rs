//! A peer that does not speak the protocol, or stops doing so, loses its link and nothing else.

use std::time::Duration;

use odeon::{
    Actor, AskError, Clock, Context, Failure, Handler, Limits, Message, ProcessId, Ref, Shape,
    System, SystemError, WorkerMode, codec,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Ping;
impl Shape for Ping {
    const SHAPE: u64 = odeon::shape::name("Ping");
}
impl Message for Ping {
    const NAME: &'static str = "Ping";
    type Reply = u32;
}

struct Ponger;
impl Actor for Ponger {
    const NAME: &'static str = "test.Ponger";
    type Args = ();
    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
impl Handler<Ping> for Ponger {
    async fn handle(&mut self, _: Ping, _: &mut Context<Self>) -> u32 {
        7
    }
}
odeon::register!(Ponger: Ping);

async fn system(limits: Limits) -> System {
    System::builder()
        .workers(WorkerMode::InProcess)
        .limits(limits)
        .start()
        .await
        .unwrap()
}

/// The first frame that comes.
async fn frame(stream: &mut DuplexStream) -> Vec<u8> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.unwrap();
    let mut frame = head.to_vec();
    frame.resize(4 + u32::from_le_bytes(head) as usize, 0);
    stream.read_exact(&mut frame[4..]).await.unwrap();
    frame
}

/// A peer that says hello as somebody else and then whatever a test likes.
async fn stranger(system: &System) -> (DuplexStream, ProcessId) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    let joined = tokio::spawn({
        let system = system.clone();
        async move { system.admin().join_stream(reader, writer).await }
    });
    let mut hello = frame(&mut theirs).await;
    // Length, kind and version come before the process.
    let name = ProcessId::random();
    hello[9..17].copy_from_slice(&name.0.to_le_bytes());
    theirs.write_all(&hello).await.unwrap();
    assert_eq!(joined.await.unwrap().unwrap(), name);
    (theirs, name)
}

/// Sends bytes in place of a hello; gives why the system says that it hangs up.
async fn refusal(limits: Limits, said: &[u8], hang_up: bool) -> String {
    let system = system(limits).await;
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    theirs.write_all(said).await.unwrap();
    if hang_up {
        theirs.shutdown().await.unwrap();
    }
    let joining = system.admin().join_stream(reader, writer);
    let error = Clock::timeout(PATIENCE, joining)
        .await
        .expect("an answer in time")
        .unwrap_err();
    assert!(matches!(error, SystemError::Refused(_)), "{error:?}");
    system.shutdown().await;
    error.to_string()
}

#[tokio::test]
async fn a_peer_that_does_not_say_hello_is_refused_with_the_reason() {
    let mut quick = Limits::default();
    quick.worker_start_timeout = Duration::from_millis(50);
    for (said, hang_up, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], false, "a frame of"),
        (&[1, 0, 0, 0, 99], false, "unknown frame kind 99"),
        (
            &[9, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0],
            false,
            "did not begin with hello",
        ),
        (&[3, 0, 0, 0, 1, 2, 3], false, "malformed hello"),
        (&[9, 0], true, "hung up"),
        (&[], false, "did not say hello in time"),
    ] {
        let text = refusal(quick.clone(), said, hang_up).await;
        assert!(text.contains(why), "{said:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_live_link_closes_that_link_and_no_other() {
    let system = system(Limits::default()).await;
    let actor = system.spawn::<Ponger>(()).await.unwrap();
    let (mut well_behaved, me) = stranger(&system).await;
    for (garbage, why) in [
        (&[0xff; 64][..], "a frame of 4294967295 bytes"),
        (&[1, 0, 0, 0, 77], "unknown frame kind 77"),
        (&[2, 0, 0, 0, 2, 0], "a malformed call frame"),
        (&[5, 0, 0, 0, 6, 1, 2, 3, 4], "a malformed request frame"),
    ] {
        let (mut stream, name) = stranger(&system).await;
        // An actor that would live there, were there one.
        let reference = codec::encode(&((name, 1u64), 0u32)).unwrap();
        let far: Ref<Ponger> = codec::decode(&reference).unwrap();
        let asking = tokio::spawn({
            let system = system.clone();
            async move { system.scope(far.ask(Ping)).await }
        });
        // Its call has been written; so it is under way.
        let called = async { while frame(&mut stream).await[4] != 2 {} };
        let called = Clock::timeout(PATIENCE, called).await;
        called.expect("a call in time");
        stream.write_all(garbage).await.unwrap();
        let outcome = Clock::timeout(PATIENCE, asking)
            .await
            .expect("an answer in time")
            .unwrap();
        let Err(AskError::LinkLost { why: said, .. }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert!(said.contains("no frame") && said.contains(why), "{said}");
        let mut rest = vec![];
        let ended = Clock::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        ended.expect("the link is closed").unwrap();
        assert_eq!(system.scope(actor.ask(Ping)).await, Ok(7));
    }
    // The other link still carries calls: one for the actor here is answered.
    let mut call = vec![2];
    for field in [1, me.0, actor.id().home.0, actor.id().serial, 0] {
        call.extend_from_slice(&u64::to_le_bytes(field));
    }
    call.extend_from_slice(&[0; 4]);
    call.extend_from_slice(&Ping::METHOD.to_le_bytes());
    call.extend_from_slice(&30_000_000u64.to_le_bytes());
    call.extend_from_slice(&[0; 25]);
    let mut bytes = (call.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&call);
    well_behaved.write_all(&bytes).await.unwrap();
    let answered = async {
        loop {
            let frame = frame(&mut well_behaved).await;
            if frame[4] == 3 {
                return frame;
            }
        }
    };
    let reply = Clock::timeout(PATIENCE, answered)
        .await
        .expect("an answer in time");
    assert_eq!(reply[5..13], 1u64.to_le_bytes());
    assert_eq!(reply[21..], [0, 7, 0, 0, 0], "no error, and the number");
    system.shutdown().await;
}
