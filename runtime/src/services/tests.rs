//! The list of services: everything that is said to them and by them, hostile input, and questions
//! that nobody can read.

use std::fmt::Debug;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_placement::{Demand, DeviceGrant, Lease, Node, Resources, View, solve};
use odeon_shm::{GangName, RegionName};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use serde_bytes::ByteBuf;

use super::*;
use crate::actor::blocked::protocol::BlockingReport;
use crate::actor::engine::Engine;
use crate::actor::engine::lives::{HostName, HostOrder, LifeRequest};
use crate::actor::names::NameRequest;
use crate::actor::placing::{
    Ask, DismissRequest, Granted, GrantedDevice, LaunchOrder, Launched, LeaseId,
};
use crate::actor::replies::protocol::{Batch, StreamEnd, StreamRequest};
use crate::actor::waits::protocol::WaitsQuestion;
use crate::actor::waits::{Wait, Waits};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::NameError;
use crate::base::failure::{Down, Failure, Reason};
use crate::base::id::{ActorId, ProcessId};
use crate::base::needs::Needs;
use crate::base::supervise::{Orphans, Restart, Supervision};
use crate::base::trace::SpanContext;
use crate::net::service::{Notice, Service, decode, encode};
use crate::net::wire::draw::{Draw, KINDS};
use crate::net::wire::{Frame, NameRow, ServiceId, codec};
use crate::node::blob::protocol::{LendRequest, ReadOrder};
use crate::node::blob::{BlobError, Handle};
use crate::node::detached::protocol::{DetachError, DetachOrder, DetachedActor};
use crate::node::device_manager::protocol::{
    ClaimRequest, Eviction, HandOver, NodeSnapshot, Waiting,
};
use crate::node::flows::protocol::{NodeRanks, RanksRequest};
use crate::node::gang::protocol::{GangMemoryRequest, GangNews, RankId};
use crate::node::inspect::watch::LookOrder;
use crate::node::inspect::{MethodView, Sight};
use crate::simulation::{SimulationSpec, World};
use crate::system::System;

const MESSAGE_BYTES_MAX: usize = 4096;

/// A service whose questions and answers can be drawn.
trait Drawn: Service<Request: Debug + PartialEq, Answer: Debug + PartialEq> {
    fn request(draw: &mut Draw) -> Self::Request;
    fn answer(draw: &mut Draw) -> Self::Answer;
}

/// A notice that can be drawn.
trait DrawnNotice: Notice + Debug + PartialEq {
    fn notice(draw: &mut Draw) -> Self;
}

/// Things that are said in frames of one kind about one service, without their types.
#[derive(Clone, Copy)]
struct Speech {
    service: ServiceId,
    /// One of them, as bytes.
    draw: fn(&mut Draw) -> Bytes,
    /// The bytes that they are written as again, if they are read.
    again: fn(&[u8]) -> Option<Bytes>,
}

impl Speech {
    const fn requests<S: Drawn>() -> Self {
        Self {
            service: S::ID,
            draw: |draw| drawn(S::ID, &S::request(draw)),
            again: |body| again::<S::Request>(S::ID, body),
        }
    }

    const fn answers<S: Drawn>() -> Self {
        Self {
            service: S::ID,
            draw: |draw| drawn(S::ID, &S::answer(draw)),
            again: |body| again::<S::Answer>(S::ID, body),
        }
    }

    const fn notices<N: DrawnNotice>() -> Self {
        Self {
            service: N::SERVICE,
            draw: |draw| drawn(N::SERVICE, &N::notice(draw)),
            again: |body| again::<N>(N::SERVICE, body),
        }
    }
}

/// The bytes of something that is said, which is read from them as it was.
fn drawn<T>(service: ServiceId, said: &T) -> Bytes
where
    T: serde::Serialize + serde::de::DeserializeOwned + Debug + PartialEq,
{
    let body = encode(said);
    assert_eq!(decode::<T>(service, "test", &body).as_ref(), Ok(said));
    body
}

fn again<T>(service: ServiceId, body: &[u8]) -> Option<Bytes>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    decode::<T>(service, "test", body)
        .ok()
        .map(|said| encode(&said))
}

macro_rules! speeches {
    ($of:ident: $($service:ty),* $(,)?) => {
        &[$(Speech::$of::<$service>()),*]
    };
}

macro_rules! all {
    ($of:ident) => {
        speeches![$of: Lives, Watching, Naming, Detaching, Launching, LeaseLaunching, Dismissing,
            LastWords, Scheduling, Surveying, SurveyingAll, Claiming, HandingOver, Evicting,
            Lending, Bringing, Domains, GangMemory, GangRanks, Looking, MethodCounts, Streaming, Blocking,
            TellingWaits, NamingFlowLog, LookingAtRanks]
    };
}

/// By number.
const REQUESTS: &[Speech] = all!(requests);
const ANSWERS: &[Speech] = all!(answers);
const NOTICES: &[Speech] = speeches![notices: NameNotice, JobWorkers, RoomChanged, LastSight];

#[test]
fn everything_that_services_say_is_drawn() {
    let listed: Vec<ServiceId> = SERVICES.iter().map(|row| row.id).collect();
    for speeches in [REQUESTS, ANSWERS] {
        let drawn: Vec<ServiceId> = speeches.iter().map(|speech| speech.service).collect();
        assert_eq!(drawn, listed);
    }
}

proptest! {
    #[test]
    fn everything_that_services_say_survives_the_round_trip(seed in any::<u64>()) {
        for speech in [REQUESTS, ANSWERS, NOTICES].concat() {
            // Drawing compares it with what is read.
            let body = (speech.draw)(&mut Draw(seed));
            prop_assert_eq!((speech.again)(&body), Some(body));
        }
    }

    #[test]
    fn what_is_cut_short_or_goes_on_is_not_read(seed in any::<u64>()) {
        for speech in [REQUESTS, ANSWERS, NOTICES].concat() {
            let body = (speech.draw)(&mut Draw(seed));
            for length in 0..body.len() {
                prop_assert!((speech.again)(&body[..length]).is_none(), "{length}");
            }
            let longer = [&body[..], &[0]].concat();
            prop_assert!((speech.again)(&longer).is_none());
        }
    }
}

/// The number of a service is its place, so that whoever puts one between others, or moves one, raises
/// the version of the frames.
#[test]
fn what_services_say_is_pinned_by_golden_bytes() {
    let (from, to) = (ProcessId(0x0102), ProcessId(0x0304));
    let actor = ActorId {
        home: to,
        serial: 5,
    };
    let row = NameRow {
        job: "j".into(),
        name: "n".into(),
        id: actor,
        actor: "A".into(),
        messages: vec![("m".into(), 12)],
    };
    let launched = Launched {
        process: to,
        lease: None,
        devices: vec![],
    };
    let golden = [
        (
            Watching::ID,
            encode::<<Watching as Service>::Request>(&actor),
            (1, "04030000000000000500000000000000"),
        ),
        (
            Launching::ID,
            encode::<<Launching as Service>::Answer>(&Ok(launched)),
            (4, "000000000403000000000000000000000000000000"),
        ),
        (
            NameNotice::SERVICE,
            encode(&NameNotice::Named(row)),
            (
                2,
                "0000000001000000000000006a01000000000000006e0403000000000000050000000000000001000000000000\
                 0041010000000000000001000000000000006d0c00000000000000",
            ),
        ),
        (
            Lives::ID,
            encode::<<Lives as Service>::Request>(&LifeRequest::Stop(actor)),
            (0, "0400000004030000000000000500000000000000"),
        ),
        (
            Domains::ID,
            encode::<<Domains as Service>::Answer>(&from),
            (16, "0201000000000000"),
        ),
    ];
    for (service, body, (number, bytes)) in golden {
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((service, hex.as_str()), (ServiceId(number), bytes));
    }
}

/// A question to the last service by number, which nobody has.
struct Missing;

impl Service for Missing {
    const ID: ServiceId = ServiceId(u16::MAX);
    const NAME: &'static str = "a question that nobody knows";
    type Request = ();
    type Answer = Result<(), Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
}

/// A question to a service that takes another one.
struct Garbled;

impl Service for Garbled {
    const ID: ServiceId = Watching::ID;
    const NAME: &'static str = "a question that cannot be read";
    type Request = u8;
    type Answer = Result<(), Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
}

struct Guest;

impl crate::Actor for Guest {
    const NAME: &'static str = "test.Guest";
    type Args = ();
    async fn start((): (), _: &mut crate::Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
crate::register!(Guest:);

/// Apart from closures: within the crate that makes manifests, the compiler goes round in circles where
/// it has to know both.
fn job() -> crate::Job {
    crate::job![Guest]
}

fn simulate<F: Future<Output = ()>>(story: impl FnOnce(World) -> F) {
    System::simulated(7, SimulationSpec::new(job()).nodes(2)).run(async |world| {
        let home = world.nodes[0].clone();
        home.scope(story(world)).await;
    });
}

/// The answer to a question that cannot be served, and why the link to the neighbour that was asked has
/// ended, if it has.
async fn asked<S>(engine: &Engine, to: ProcessId, request: &S::Request) -> (String, Option<String>)
where
    S: Service<Answer = Result<(), Failure>>,
{
    let link = engine.next_link(to).unwrap();
    let answer = engine.request::<S>(to, request, None).await;
    let failure = answer.expect("an answer comes").unwrap_err();
    let closed = Clock::timeout(Duration::from_secs(1), link.closed()).await;
    (failure.message, closed.map(|()| link.why()))
}

#[test]
fn a_question_that_cannot_be_read_is_answered_and_ends_the_link() {
    simulate(async |world| {
        let (near, far) = (&world.nodes[0], &world.nodes[1]);
        let (failure, why) = asked::<Missing>(near.engine(), far.engine().process, &()).await;
        assert_eq!(failure, "unknown service 65535");
        let why = why.expect("the link has ended");
        assert!(why.contains("unknown service 65535"), "{why}");
    });
    simulate(async |world| {
        let (near, far) = (&world.nodes[0], &world.nodes[1]);
        let (failure, why) = asked::<Garbled>(near.engine(), far.engine().process, &9).await;
        assert!(
            failure.starts_with("a malformed request frame: of service 1:"),
            "{failure}"
        );
        let why = why.expect("the link has ended");
        assert!(why.contains("of service 1:"), "{why}");
    });
}

/// Else whoever speaks nonsense would cut others off, who only pass it on.
#[test]
fn a_question_that_cannot_be_read_does_not_end_the_link_of_whoever_passed_it_on() {
    simulate(async |world| {
        let (near, far) = (&world.nodes[0], &world.nodes[1]);
        let guest = far.spawn::<Guest>(()).isolated().await.unwrap();
        let worker = far.admin().process_of(guest).unwrap();
        let way = far.engine().next_link(worker).unwrap();
        let routed = async {
            while !near.engine().routes_to(worker) {
                Clock::sleep(Duration::from_millis(10)).await;
            }
        };
        let routed = Clock::timeout(Duration::from_secs(600), routed).await;
        routed.expect("a way to the worker is told");
        let (failure, why) = asked::<Missing>(near.engine(), worker, &()).await;
        assert_eq!(failure, "unknown service 65535");
        assert_eq!(why, None);
        assert!(!way.is_closed(), "{}", way.why());
    });
}

fn encoded(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    bytes
}

/// A frame of the kind with this number, with something that is said in it where it is one of services.
fn spoken(draw: &mut Draw, kind: usize) -> Frame {
    let frame = draw.frame(kind);
    let mut say = |speeches: &[Speech]| {
        let speech = speeches[draw.below(speeches.len())];
        (speech.service, (speech.draw)(draw))
    };
    match frame {
        Frame::Request {
            request, from, to, ..
        } => {
            let (service, body) = say(REQUESTS);
            Frame::Request {
                request,
                from,
                to,
                service,
                body,
            }
        }
        Frame::Answer {
            to, result: Ok(_), ..
        } => {
            let (service, body) = say(ANSWERS);
            Frame::Answer {
                request: service.0.into(),
                to,
                result: Ok(body),
            }
        }
        Frame::Notice { .. } => {
            let (service, body) = say(NOTICES);
            Frame::Notice { service, body }
        }
        frame => frame,
    }
}

/// Reads what is said in a frame. An answer is one of the service with the number of its question, which
/// whoever asked knows.
fn is_read(frame: &Frame) -> bool {
    let (speeches, service, body) = match frame {
        Frame::Request { service, body, .. } => (REQUESTS, *service, body),
        Frame::Answer {
            request,
            result: Ok(body),
            ..
        } => (ANSWERS, ServiceId(*request as u16), body),
        Frame::Notice { service, body } => (NOTICES, *service, body),
        _ => return true,
    };
    let mut known = speeches.iter();
    let known = known.find(|speech| speech.service == service);
    known.is_some_and(|speech| (speech.again)(body).is_some())
}

/// SEMANTICS 26.
/// Ten million inputs, or as many as `ODEON_FUZZ_INPUTS` says. Runs in a process of its own under
/// nextest, so that the peak of its memory says what the decoder took.
#[test]
fn no_input_makes_the_decoder_panic_or_take_memory() {
    let inputs = std::env::var("ODEON_FUZZ_INPUTS")
        .ok()
        .and_then(|inputs| inputs.parse().ok())
        .unwrap_or(10_000_000u64);
    let threads = 2;
    let before = peak_kib();
    let accepted: u64 = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || mutate_and_decode(n << 40, inputs / threads)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert!(
        accepted > inputs / 100 && accepted < inputs,
        "{accepted} of {inputs} accepted"
    );
    let grown = peak_kib() - before;
    assert!(grown < 96 << 10, "decoding took {grown} KiB");
}

/// The most memory this process has had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Decodes frames with random damage; how many inputs gave at least one frame.
fn mutate_and_decode(seed: u64, inputs: u64) -> u64 {
    let mut draw = Draw(seed);
    let corpus: Vec<BytesMut> = (0..KINDS * 8)
        .map(|n| encoded(&spoken(&mut draw, n % KINDS)))
        .collect();
    let mut input = BytesMut::with_capacity(4096);
    let mut accepted = 0;
    for _ in 0..inputs {
        input.clear();
        input.extend_from_slice(&corpus[draw.below(corpus.len())]);
        let way = draw.next();
        let place = draw.below(input.len());
        match way % 8 {
            0 => input[place] = (way >> 8) as u8,
            1 => input[place] ^= 1 << ((way >> 8) & 7),
            2 => input.truncate(place),
            // A hostile length inside the body.
            3 => {
                let end = (place + 8).min(input.len());
                input[place..end].fill((way >> 8) as u8);
            }
            // The frame's own length.
            4 => input[..4].copy_from_slice(&((way >> 8) as u32 & 0xfff).to_le_bytes()),
            5 => {
                let other = &corpus[draw.below(corpus.len())];
                let from = draw.below(other.len());
                input.truncate(place);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let kind = way >> 8;
                input.truncate(4);
                for _ in 0..draw.below(6) {
                    input.put_u64_le(draw.next());
                }
                input.put_u8(kind as u8 % 18);
                let length = (input.len() - 4) as u32;
                input[..4].copy_from_slice(&length.to_le_bytes());
            }
            _ => {
                let byte = (way >> 8) as u8;
                input.put_bytes(byte, (way >> 16) as usize % 16);
                let length = (input.len() - 4) as u32;
                input[..4].copy_from_slice(&length.to_le_bytes());
            }
        }
        let mut any = false;
        while let Ok(Some(frame)) = Frame::decode(&mut input, MESSAGE_BYTES_MAX) {
            any = true;
            std::hint::black_box(is_read(&frame));
        }
        accepted += u64::from(any);
    }
    accepted
}

impl Drawn for Lives {
    fn request(draw: &mut Draw) -> LifeRequest {
        match draw.below(6) {
            0 => LifeRequest::Host(HostOrder {
                id: draw.actor(),
                parent: draw.actor(),
                incarnation: draw.next() as u32,
                actor: draw.text(),
                args: draw.bytes(64),
                orphans: [
                    Orphans::Stop,
                    Orphans::Keep,
                    Orphans::StopAfter(Duration::from_secs(7)),
                ][draw.below(3)],
                on: [HostName::Kameo, HostName::Actix][draw.below(2)],
                devices: draw.devices(),
                hang_after: draw.flag().then_some(Duration::from_secs(5)),
            }),
            1 => LifeRequest::Halt {
                id: draw.actor(),
                reason: draw.reason(),
                keep_mail: draw.flag(),
            },
            2 => LifeRequest::Start {
                id: draw.actor(),
                incarnation: draw.next() as u32,
            },
            3 => LifeRequest::Ended {
                id: draw.actor(),
                incarnation: draw.next() as u32,
                reason: draw.reason(),
            },
            4 => LifeRequest::Stop(draw.actor()),
            _ => LifeRequest::Fail {
                id: draw.actor(),
                failure: draw.failure(),
            },
        }
    }

    fn answer(draw: &mut Draw) -> Result<(), Failure> {
        draw.result(|_| ())
    }
}

impl Drawn for Watching {
    fn request(draw: &mut Draw) -> ActorId {
        draw.actor()
    }

    fn answer(draw: &mut Draw) -> Down {
        draw.down()
    }
}

impl Drawn for Naming {
    fn request(draw: &mut Draw) -> NameRequest {
        match draw.flag() {
            true => NameRequest::Register(draw.name_row()),
            false => NameRequest::Lookup {
                job: draw.text(),
                name: draw.text(),
            },
        }
    }

    fn answer(draw: &mut Draw) -> Result<NameRow, NameError> {
        match draw.flag() {
            true => Ok(draw.name_row()),
            false => Err(NameError::Taken {
                name: draw.text(),
                owner: draw.actor(),
            }),
        }
    }
}

impl DrawnNotice for NameNotice {
    fn notice(draw: &mut Draw) -> Self {
        match draw.flag() {
            true => Self::Named(draw.name_row()),
            false => Self::Unnamed {
                job: draw.text(),
                name: draw.text(),
                id: draw.actor(),
            },
        }
    }
}

impl Drawn for Detaching {
    fn request(draw: &mut Draw) -> DetachOrder {
        // The fields of a spawn in their order, which are its own.
        let order = (
            draw.text(),
            draw.bytes(64),
            Restart::Permanent,
            Supervision::one_for_one(),
            Orphans::Keep,
            HostName::Kameo,
            draw.option(Draw::launch_order),
        );
        DetachOrder {
            job: draw.text(),
            or_existing: draw.flag(),
            actor: DetachedActor {
                name: draw.text(),
                order: codec::decode(&encode(&order)).unwrap(),
            },
        }
    }

    fn answer(draw: &mut Draw) -> Result<NameRow, DetachError> {
        match draw.flag() {
            true => Ok(draw.name_row()),
            false => Err(DetachError::Taken {
                name: draw.text(),
                namespace: draw.text(),
            }),
        }
    }
}

impl Drawn for Launching {
    fn request(draw: &mut Draw) -> LaunchOrder {
        draw.launch_order()
    }

    fn answer(draw: &mut Draw) -> Result<Launched, Failure> {
        draw.result(Draw::launched)
    }
}

impl Drawn for LeaseLaunching {
    fn request(draw: &mut Draw) -> LeaseId {
        draw.next()
    }

    fn answer(draw: &mut Draw) -> Result<Option<Launched>, Failure> {
        draw.result(|draw| draw.option(Draw::launched))
    }
}

impl Drawn for Dismissing {
    fn request(draw: &mut Draw) -> DismissRequest {
        match draw.flag() {
            true => DismissRequest::Release {
                process: draw.process(),
                lease: draw.option(Draw::granted),
            },
            false => DismissRequest::Retire {
                process: draw.process(),
                fault: Some(GpuFault::new(3, FaultKind::Xid { code: draw.next() })),
                why: draw.text(),
            },
        }
    }

    fn answer(_draw: &mut Draw) {}
}

impl Drawn for LastWords {
    fn request(draw: &mut Draw) -> String {
        draw.text()
    }

    fn answer(_draw: &mut Draw) {}
}

impl Drawn for Scheduling {
    fn request(draw: &mut Draw) -> Vec<Ask> {
        vec![draw.ask()]
    }

    fn answer(draw: &mut Draw) -> Result<Vec<Granted>, Failure> {
        draw.result(|draw| vec![draw.granted()])
    }
}

impl DrawnNotice for JobWorkers {
    fn notice(draw: &mut Draw) -> Self {
        Self(vec![(draw.process(), 7)])
    }
}

impl DrawnNotice for RoomChanged {
    fn notice(_draw: &mut Draw) -> Self {
        Self
    }
}

impl Drawn for Surveying {
    fn request(_draw: &mut Draw) {}

    fn answer(draw: &mut Draw) -> NodeSnapshot {
        draw.snapshot()
    }
}

impl Drawn for SurveyingAll {
    fn request(_draw: &mut Draw) {}

    fn answer(draw: &mut Draw) -> Vec<(ProcessId, NodeSnapshot)> {
        vec![(draw.process(), draw.snapshot())]
    }
}

impl Drawn for Claiming {
    fn request(draw: &mut Draw) -> ClaimRequest {
        match draw.flag() {
            true => ClaimRequest::Claim {
                version: draw.next(),
                leases: vec![(draw.lease(), draw.actor())],
            },
            false => ClaimRequest::Unclaim(vec![draw.next()]),
        }
    }

    fn answer(draw: &mut Draw) -> Option<Vec<LeaseId>> {
        draw.option(|draw| vec![draw.next()])
    }
}

impl Drawn for HandingOver {
    fn request(draw: &mut Draw) -> HandOver {
        HandOver {
            lease: draw.next(),
            actor: draw.actor(),
            holder: draw.text(),
            rank: draw.next() as u32,
            priority: -3,
        }
    }

    fn answer(draw: &mut Draw) -> bool {
        draw.flag()
    }
}

impl Drawn for Evicting {
    fn request(draw: &mut Draw) -> Eviction {
        Eviction {
            holders: vec![draw.text()],
            by: draw.text(),
        }
    }

    fn answer(_draw: &mut Draw) {}
}

impl Drawn for Lending {
    fn request(draw: &mut Draw) -> LendRequest {
        let (serial, ticket, transfer) = (draw.next(), draw.next(), draw.next());
        match draw.below(6) {
            0 => LendRequest::Hold { serial, ticket },
            1 => LendRequest::Arrived { ticket },
            2 => LendRequest::Release { serial },
            3 => LendRequest::Pin {
                serial,
                ticket,
                arrivals: draw.next() as u32,
                lasts: Duration::from_millis(9),
            },
            4 => LendRequest::Read(ReadOrder {
                origin: draw.handle(),
                transfer,
                first: draw.next(),
                count: draw.next(),
                chunk_bytes: draw.next(),
            }),
            _ => LendRequest::Fetched { transfer },
        }
    }

    fn answer(draw: &mut Draw) -> Result<(), BlobError> {
        match draw.flag() {
            true => Ok(()),
            false => Err(draw.gone()),
        }
    }
}

impl Drawn for Bringing {
    fn request(draw: &mut Draw) -> Handle {
        draw.handle()
    }

    fn answer(draw: &mut Draw) -> Result<Handle, BlobError> {
        match draw.flag() {
            true => Ok(draw.handle()),
            false => Err(draw.gone()),
        }
    }
}

impl Drawn for Domains {
    fn request(_draw: &mut Draw) {}

    fn answer(draw: &mut Draw) -> ProcessId {
        draw.process()
    }
}

impl Drawn for NamingFlowLog {
    fn request(_draw: &mut Draw) {}

    fn answer(_draw: &mut Draw) -> Option<odeon_shm::FlowLogName> {
        None
    }
}

impl Drawn for LookingAtRanks {
    fn request(draw: &mut Draw) -> RanksRequest {
        RanksRequest {
            subscriber: draw.next(),
            processes: vec![draw.process(), draw.process()],
        }
    }

    fn answer(draw: &mut Draw) -> NodeRanks {
        NodeRanks {
            node: draw.text(),
            ranks: vec![(draw.process(), vec![])],
        }
    }
}

impl Drawn for GangMemory {
    fn request(draw: &mut Draw) -> GangMemoryRequest {
        match draw.flag() {
            true => GangMemoryRequest::Keep {
                gang: draw.next(),
                ranks: draw.next() as u32,
            },
            false => GangMemoryRequest::Forget(draw.next()),
        }
    }

    fn answer(draw: &mut Draw) -> Result<GangName, String> {
        match draw.flag() {
            true => Ok(GangName {
                owner_pid: 5,
                fd: 6,
                gang: draw.next(),
                world: 7,
                window_bytes: draw.next(),
                queue_bytes: draw.next(),
            }),
            false => Err(draw.text()),
        }
    }
}

impl Drawn for GangRanks {
    fn request(draw: &mut Draw) -> GangNews {
        draw.gang_news()
    }

    fn answer(_draw: &mut Draw) {}
}

impl Drawn for Looking {
    fn request(draw: &mut Draw) -> LookOrder {
        // Its fields are its own.
        codec::decode(&encode(&(draw.next(), draw.next()))).unwrap()
    }

    fn answer(draw: &mut Draw) -> Sight {
        draw.sight()
    }
}

impl DrawnNotice for LastSight {
    fn notice(draw: &mut Draw) -> Self {
        Self {
            subscriber: draw.option(|some| (some.next(), some.next())),
            sight: Box::new(draw.sight()),
        }
    }
}

impl Drawn for MethodCounts {
    fn request(draw: &mut Draw) -> ActorId {
        draw.actor()
    }

    fn answer(draw: &mut Draw) -> Option<Vec<MethodView>> {
        draw.option(|draw| {
            vec![MethodView {
                name: draw.text(),
                handled: draw.next(),
                ..MethodView::default()
            }]
        })
    }
}

impl Drawn for Streaming {
    fn request(draw: &mut Draw) -> StreamRequest {
        match draw.next() % 3 {
            0 => StreamRequest::Arrived(draw.next()),
            1 => StreamRequest::Next(draw.next()),
            _ => StreamRequest::Drop(draw.next()),
        }
    }

    fn answer(draw: &mut Draw) -> Batch {
        let end = match draw.next() % 5 {
            0 => None,
            1 => Some(StreamEnd::Finished),
            2 => Some(StreamEnd::Died(Down {
                id: draw.actor(),
                incarnation: 3,
                reason: Reason::Failed(draw.failure()),
            })),
            3 => Some(StreamEnd::BadReply(draw.text())),
            _ => Some(StreamEnd::Unknown),
        };
        let replies = vec![ByteBuf::from(draw.text().into_bytes())];
        Batch { replies, end }
    }
}

impl Drawn for Blocking {
    fn request(draw: &mut Draw) -> Vec<BlockingReport> {
        vec![BlockingReport {
            actor: draw.actor(),
            name: draw.text(),
            message: draw.text(),
            lasts: Duration::from_millis(draw.next() >> 16),
        }]
    }

    fn answer(_draw: &mut Draw) {}
}

impl Drawn for TellingWaits {
    fn request(draw: &mut Draw) -> WaitsQuestion {
        WaitsQuestion {
            actor: draw.actor(),
            hops: draw.next() as u8,
        }
    }

    fn answer(draw: &mut Draw) -> Waits {
        let mut waits = Waits::default();
        for _ in 0..draw.next() % 3 {
            let (who, on) = (draw.actor(), draw.actor());
            let message = draw.text().into();
            waits.add(who, "Actor", Wait { on, message });
        }
        waits
    }
}

impl Draw {
    fn result<T>(&mut self, ok: impl FnOnce(&mut Self) -> T) -> Result<T, Failure> {
        match self.flag() {
            true => Ok(ok(self)),
            false => Err(self.failure()),
        }
    }

    fn devices(&mut self) -> Vec<GrantedDevice> {
        vec![GrantedDevice {
            ordinal: 0,
            index: 4,
            model: self.text(),
            memory: self.next(),
            milli: 500,
        }]
    }

    fn launched(&mut self) -> Launched {
        Launched {
            process: self.process(),
            lease: self.option(Self::granted),
            devices: self.devices(),
        }
    }

    fn launch_order(&mut self) -> LaunchOrder {
        LaunchOrder {
            job: self.text(),
            shared: self.option(Self::text),
            node: self.option(Self::text),
            ask: self.option(|this| Box::new(this.ask())),
            claim: self.option(Self::granted),
        }
    }

    fn handle(&mut self) -> Handle {
        Handle {
            owner: self.process(),
            domain: self.process(),
            region: RegionName {
                owner_pid: self.next() as u32,
                slab: self.next(),
                fd: 3,
                region: self.next(),
                offset: self.next(),
                len: self.next(),
            },
            ticket: self.next(),
            pinned_until: self.next(),
        }
    }

    fn gone(&mut self) -> BlobError {
        BlobError::Gone {
            owner: self.process(),
            why: self.text(),
        }
    }

    fn granted(&mut self) -> Granted {
        Granted {
            node: self.process(),
            lease: self.next(),
        }
    }

    fn ask(&mut self) -> Ask {
        Ask {
            job: self.text(),
            holder: self.text(),
            actors: vec![(self.actor(), 3)],
            needs: Needs::new().gpus(2).device_memory(self.next()).cpus(1.5),
            again: self.flag(),
        }
    }

    fn lease(&mut self) -> Lease {
        Lease {
            job: self.text(),
            holder: self.text(),
            rank: 2,
            node: self.text(),
            process: odeon_placement::Process::New(1),
            isolation: odeon_placement::Isolation::Process,
            resources: Resources::new().custom_milli("x", 5).memory_bytes(7),
            devices: vec![DeviceGrant {
                index: 4,
                milli: 1000,
                memory: self.next(),
            }],
            device_set: self.option(Self::text),
            priority: -3,
        }
    }

    /// A node with a device and a lease, and somebody who waits for it.
    fn snapshot(&mut self) -> NodeSnapshot {
        let node = Node::new("a", Resources::new().cpu_milli(1000)).gpus(1, "H200", 8);
        let demand = Demand::new("j", "w", Resources::new()).gpus(1);
        let mut view = View::new([node]);
        let plan = solve(&view, std::slice::from_ref(&demand)).unwrap();
        view.grant(&plan);
        NodeSnapshot {
            node: view.node("a").unwrap().clone(),
            version: self.next(),
            actors: vec![(self.actor(), self.text(), self.process())],
            waiting: vec![Waiting {
                holder: self.text(),
                job: self.text(),
                actors: vec![self.actor()],
                priority: 1,
                waited: Duration::from_millis(8),
                refusal: solve(&view, &[demand]).err(),
                behind: self.option(Self::text),
            }],
        }
    }

    fn gang_news(&mut self) -> GangNews {
        let to = RankId {
            gang: self.next(),
            rank: self.next() as u32,
        };
        let from = self.next() as u32;
        match self.below(4) {
            0 => GangNews::Open {
                to,
                from,
                transfer: self.next(),
                answer: self.flag(),
            },
            1 => GangNews::Room {
                to,
                from,
                bytes: self.next(),
            },
            2 => GangNews::Report {
                to,
                from,
                report: self.bytes(64),
            },
            _ => GangNews::Left { to, from },
        }
    }

    fn sight(&mut self) -> Sight {
        Sight {
            process: self.process(),
            job: self.text(),
            at: Timestamp(self.next()),
            anew: self.flag(),
            actors: vec![crate::node::inspect::ActorView {
                id: self.actor(),
                parent: self.actor(),
                actor: self.text(),
                process: self.process(),
                incarnation: self.next() as u32,
                phase: crate::Phase::Waiting,
                queued: self.next() as u32,
                room: self.next() as u32,
                queued_bytes: self.next(),
                handled: self.next(),
                failed: self.next(),
                busy: self.next(),
                waited: self.next(),
                changed: Timestamp(self.next()),
                running: None,
                devices: vec![self.next() as u32],
            }],
            gone: vec![self.actor()],
            hosted: self.next() as u32,
            waits: vec![],
            waits_left_out: self.next() as u32,
            spans: vec![self.span()],
            spans_lost: self.next(),
            going_on: vec![],
            span_counts: crate::base::trace::SpanCounts::default(),
            ask_times: crate::node::inspect::Times::default(),
            news: vec![],
            news_from: self.next(),
            news_lost: self.next(),
            points: vec![],
            points_from: self.next(),
            points_lost: self.next(),
            dead_letters: self.next(),
            blob_bytes: self.next(),
            flow_log: None,
            more: self.flag(),
            more_spans: self.flag(),
        }
    }

    fn span(&mut self) -> crate::base::trace::Span {
        let labels = vec![("version".into(), crate::actor::telemetry::Label::Int(3))];
        crate::base::trace::Span {
            context: SpanContext::root(),
            parent: self.next(),
            kind: crate::base::trace::SpanKind::User,
            by: self.actor(),
            actor: self.actor(),
            message: self.text().into(),
            queued: Timestamp(self.next()),
            started: Timestamp(self.next()),
            ended: Timestamp(self.next()),
            outcome: crate::base::trace::Outcome::Failed,
            labels,
        }
    }
}
