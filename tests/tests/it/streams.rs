//! Streams of replies: in one process, from a worker, from another node; whoever ends first.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use odeon::prelude::*;
use odeon::simulation::{SimulationSpec, World};

const SECOND: Duration = Duration::from_secs(1);
/// Seeds of the simulation of all troubles.
const SEEDS: u64 = 300;
/// Replies that may be on their way: the room of the writer, and two batches of what fits into it.
const AHEAD: u64 = 3 * 16 + 3;

thread_local! {
    /// Replies that were made, and streams whose work has ended, in this simulation.
    static MADE: Cell<u64> = const { Cell::new(0) };
    static ENDED: Cell<u64> = const { Cell::new(0) };
}

/// Counts an end of work.
struct Work;

impl Drop for Work {
    fn drop(&mut self) {
        ENDED.set(ENDED.get() + 1);
    }
}

/// Streams numbers.
struct Source {
    news: Vec<ReplySender<String>>,
}

#[odeon::actor(name = "streams.Source")]
impl Source {
    fn start(_: ()) -> Self {
        Self { news: vec![] }
    }

    /// The numbers below `to`, a pause before each.
    #[handler]
    fn count(&mut self, to: u64, pause: Duration, cx: &mut Context<Self>) -> ReplyStream<u64> {
        let work = Work;
        cx.replies(futures::stream::unfold(
            (0, work),
            move |(at, work)| async move {
                if at == to {
                    return None;
                }
                if !pause.is_zero() {
                    Clock::sleep(pause).await;
                }
                MADE.set(MADE.get() + 1);
                Some((at, (at + 1, work)))
            },
        ))
    }

    /// Numbers, and then a panic.
    #[handler]
    fn stumble(&mut self, at: u64, cx: &mut Context<Self>) -> ReplyStream<u64> {
        let numbers = (0..=at).inspect(move |number| assert!(*number < at, "stumbled"));
        cx.replies(futures::stream::iter(numbers))
    }

    /// Nothing for people without a name, else what is told from now on.
    #[handler]
    fn subscribe(
        &mut self,
        name: String,
        cx: &mut Context<Self>,
    ) -> Result<ReplyStream<String>, String> {
        if name.is_empty() {
            return Err("a reader needs a name".to_owned());
        }
        let (sender, stream) = cx.reply_channel(2);
        self.news.push(sender);
        Ok(stream)
    }

    /// Tells all who read; says how many had room.
    #[handler]
    fn publish(&mut self, news: String) -> usize {
        let told = self
            .news
            .iter()
            .filter(|reader| reader.try_send(news.clone()).is_ok());
        told.count()
    }

    #[handler]
    fn hush(&mut self) {
        self.news.clear();
    }

    #[handler]
    fn boom(&mut self) {
        panic!("boom");
    }

    /// More than may travel.
    #[handler]
    fn bulk(&mut self, cx: &mut Context<Self>) -> ReplyStream<Vec<u8>> {
        cx.replies(futures::stream::iter([
            vec![1; 10],
            vec![2; 5 << 20],
            vec![3],
        ]))
    }
}

/// Reads streams.
struct Reader;

#[odeon::actor(name = "streams.Reader")]
impl Reader {
    fn start(_: ()) -> Self {
        Self
    }

    /// Reads so many numbers, checks their order, and says how the stream ended if it did.
    #[handler]
    async fn read(&mut self, from: Ref<Source>, count: Count, most: u64) -> Ending {
        let mut stream = from.ask_stream(count);
        read(&mut stream, most).await
    }

    /// Passes a stream on, which is not for others.
    #[handler]
    async fn pass_on(&mut self, from: Ref<Source>) -> String {
        let count = Count {
            to: 9,
            pause: Duration::ZERO,
        };
        let stream = from.ask(count).await.expect("it is there");
        let passed = codec_error(&stream);
        drop(stream);
        passed
    }
}

fn codec_error(stream: &ReplyStream<u64>) -> String {
    match odeon::codec::encode(stream) {
        Ok(_) => "encoded".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// What a reader has seen.
#[odeon::wire]
#[derive(Debug, PartialEq)]
enum Ending {
    /// So many, and there may be more.
    More(u64),
    Finished(u64),
    Failed(u64, AskError),
}

async fn read(stream: &mut ReplyStream<u64>, most: u64) -> Ending {
    for expected in 0..most {
        match stream.next().await {
            Some(Ok(number)) => assert_eq!(number, expected, "in order, each once"),
            Some(Err(error)) => {
                assert_eq!(stream.next().await, None, "nothing follows an error");
                return Ending::Failed(expected, error);
            }
            None => return Ending::Finished(expected),
        }
    }
    Ending::More(most)
}

fn simulated<F: Future<Output = ()>>(seed: u64, story: impl FnOnce(World) -> F) {
    let spec = SimulationSpec::new(odeon::job![Source, Reader])
        .delays(Duration::from_millis(20), Duration::from_millis(30))
        .supervision(Supervision::one_for_one().budget(50, Duration::from_secs(600)));
    System::simulated(seed, spec).run(async |world| {
        MADE.set(0);
        ENDED.set(0);
        story(world).await;
    });
}

/// A source beside the reader, one in a worker process, and one on another node.
async fn sources(world: &World) -> Vec<Ref<Source>> {
    vec![
        world.nodes[0].spawn::<Source>(()).await.unwrap(),
        world.nodes[0].spawn::<Source>(()).isolated().await.unwrap(),
        world.nodes[1].spawn::<Source>(()).await.unwrap(),
    ]
}

async fn reader(world: &World) -> Ref<Reader> {
    world.nodes[0].spawn::<Reader>(()).await.unwrap()
}

/// SEMANTICS 112.
#[test]
fn each_reply_comes_once_and_in_order_from_wherever_it_is_made() {
    simulated(1, async |world| {
        let reader = reader(&world).await;
        for from in sources(&world).await {
            for to in [0, 1, 15, 16, 17, 256, 257, 3000] {
                let count = Count {
                    to,
                    pause: Duration::ZERO,
                };
                let ending = reader
                    .ask(Read {
                        from,
                        count,
                        most: u64::MAX,
                    })
                    .await
                    .unwrap();
                assert_eq!(ending, Ending::Finished(to));
            }
        }
        assert_eq!(ENDED.get(), 3 * 8);
    });
}

/// SEMANTICS 112.
#[test]
fn a_writer_waits_for_its_reader_and_ends_when_that_does() {
    simulated(2, async |world| {
        let node = &world.nodes[0];
        for from in sources(&world).await {
            MADE.set(0);
            ENDED.set(0);
            let mut stream = node
                .scope(async {
                    from.ask_stream(Count {
                        to: 10_000,
                        pause: Duration::ZERO,
                    })
                })
                .await;
            for read in 1..=5 {
                let next = node.scope(stream.next()).await;
                assert_eq!(next, Some(Ok(read - 1)));
                Clock::sleep(SECOND * 60).await;
                assert!(MADE.get() <= read + AHEAD, "{} for {read}", MADE.get());
            }
            assert_eq!(ENDED.get(), 0);
            drop(stream);
            Clock::sleep(SECOND).await;
            assert_eq!(ENDED.get(), 1, "nobody reads any more");
        }
    });
}

/// SEMANTICS 112.
#[test]
fn a_reader_takes_what_was_written_and_then_hears_how_the_writer_ended() {
    simulated(3, async |world| {
        let node = &world.nodes[0];
        for from in sources(&world).await {
            let mut stream = node
                .scope(async { from.ask_stream(Stumble { at: 20 }) })
                .await;
            match node.scope(read(&mut stream, 100)).await {
                // What was written in the same step as the panic may be lost with it.
                Ending::Failed(read, AskError::Died(down)) => {
                    assert!(read <= 20, "{read}");
                    assert!(down.to_string().contains("stumbled"), "{down}");
                }
                other => panic!("{other:?}"),
            }
            let slow = Count {
                to: 9,
                pause: SECOND,
            };
            for _ in 0..2 {
                let mut stream = node.scope(async { from.ask_stream(slow.clone()) }).await;
                let reading = node.scope(read(&mut stream, 100));
                let ending = async {
                    Clock::sleep(SECOND * 5 / 2).await;
                    node.scope(async { from.ask(Boom).await.unwrap_err() })
                        .await;
                };
                match futures::join!(reading, ending).0 {
                    Ending::Failed(2, AskError::Died(down)) => {
                        assert!(down.to_string().contains("boom"), "{down}")
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut stream = node.scope(async { from.ask_stream(slow.clone()) }).await;
            assert_eq!(node.scope(read(&mut stream, 1)).await, Ending::More(1));
            node.scope(async { from.stop().await.unwrap() }).await;
            match node.scope(stream.next()).await {
                Some(Err(AskError::Died(down))) => assert_eq!(down.reason, Reason::Stopped),
                other => panic!("{other:?}"),
            }
            let mut stream = node.scope(async { from.ask_stream(slow.clone()) }).await;
            assert!(matches!(
                node.scope(read(&mut stream, 1)).await,
                Ending::Failed(0, AskError::Dead(_))
            ));
        }
    });
}

/// SEMANTICS 112.
#[test]
fn a_reader_hears_of_a_process_that_is_lost_and_a_writer_of_its_reader() {
    simulated(4, async |world| {
        let node = &world.nodes[0];
        let count = Count {
            to: 1000,
            pause: SECOND,
        };
        for from in sources(&world).await.split_off(1) {
            let mut stream = node.scope(async { from.ask_stream(count.clone()) }).await;
            assert_eq!(node.scope(read(&mut stream, 2)).await, Ending::More(2));
            match node.admin().process_of(from) {
                Some(worker) => assert!(node.admin().kill_worker(worker)),
                // It is at home on the other node.
                None => world.network.part(0, 1),
            }
            match node.scope(read_on(&mut stream)).await {
                AskError::Died(down) => assert!(matches!(down.reason, Reason::Failed(_)), "{down}"),
                other => panic!("{other:?}"),
            }
            Clock::sleep(SECOND * 30).await;
            assert!(ENDED.get() > 0, "nobody reads any more");
        }
    });
}

async fn read_on(stream: &mut ReplyStream<u64>) -> AskError {
    loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            None => panic!("it did not come to its end"),
        }
    }
}

/// SEMANTICS 112.
#[test]
fn a_stream_that_never_arrives_ends_by_itself() {
    simulated(5, async |world| {
        let (node, from) = (
            &world.nodes[0],
            world.nodes[1].spawn::<Source>(()).await.unwrap(),
        );
        let count = Count {
            to: 1000,
            pause: Duration::ZERO,
        };
        let asked = node.scope(async { from.ask(count).timeout(Duration::from_millis(35)).await });
        assert!(
            matches!(asked.await, Err(AskError::Timeout { .. })),
            "the answer is under way"
        );
        Clock::sleep(Limits::default().blob_transit / 2).await;
        assert_eq!(ENDED.get(), 0);
        Clock::sleep(Limits::default().blob_transit).await;
        assert_eq!(ENDED.get(), 1);
    });
}

/// SEMANTICS 112.
#[test]
fn an_actor_writes_a_stream_as_things_happen_and_may_refuse_one() {
    simulated(6, async |world| {
        let node = &world.nodes[0];
        for from in sources(&world).await {
            let subscribe = |name: &str| {
                let name = name.to_owned();
                node.scope(async move { from.ask(Subscribe { name }).await.unwrap() })
            };
            assert_eq!(subscribe("").await.unwrap_err(), "a reader needs a name");
            let (mut one, two) = (
                subscribe("one").await.unwrap(),
                subscribe("two").await.unwrap(),
            );
            drop(two);
            Clock::sleep(SECOND).await;
            let publish = |news: &str| {
                let news = news.to_owned();
                node.scope(async move { from.ask(Publish { news }).await.unwrap() })
            };
            for news in ["a", "b", "c"] {
                assert_eq!(publish(news).await, 1, "one reads");
                assert_eq!(node.scope(one.next()).await, Some(Ok(news.to_owned())));
            }
            publish("last").await;
            node.scope(async { from.ask(Hush).await.unwrap() }).await;
            assert_eq!(node.scope(one.next()).await, Some(Ok("last".to_owned())));
            assert_eq!(node.scope(one.next()).await, None);
        }
    });
}

/// SEMANTICS 112.
#[test]
fn a_stream_is_for_one_reader_and_a_reply_for_one_message() {
    simulated(7, async |world| {
        let reader = reader(&world).await;
        let node = &world.nodes[0];
        let sources = sources(&world).await;
        for from in &sources[1..] {
            let passed = reader.ask(PassOn { from: *from }).await.unwrap();
            assert!(passed.contains("read once"), "{passed}");
            let mut stream = node.scope(async { from.ask_stream(Bulk) }).await;
            assert_eq!(node.scope(stream.next()).await, Some(Ok(vec![1; 10])));
            match node.scope(stream.next()).await {
                Some(Err(AskError::BadReply { why, .. })) => {
                    assert!(why.contains("limit"), "{why}")
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(node.scope(stream.next()).await, None);
        }
    });
}

/// SEMANTICS 112. Over many seeds: whatever is lost, killed and parted, a reader sees the first replies in their
/// order and then the end, an error or more of them; and at last no work is left.
#[test]
fn whatever_happens_a_reader_sees_a_beginning_and_an_end() {
    static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    for seed in 0..SEEDS {
        simulated(seed, async |world| {
            let draw = |of: u64, from: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> from) % of;
            let (node, reader) = (&world.nodes[0], reader(&world).await);
            let from = sources(&world).await[draw(3, 7) as usize];
            let to = draw(600, 11);
            let count = Count {
                to,
                pause: Duration::from_millis(draw(3, 23) * 7),
            };
            let most = if draw(4, 29) == 0 {
                draw(100, 31)
            } else {
                u64::MAX
            };
            let reading = reader.ask(Read { from, count, most }).timeout(SECOND * 100);
            let trouble = async {
                Clock::sleep(Duration::from_millis(draw(1500, 37))).await;
                match draw(6, 41) {
                    0 => drop(node.scope(async { from.ask(Boom).await }).await),
                    1 => drop(node.scope(async { from.stop().await }).await),
                    2 => {
                        let worker = node.admin().process_of(from);
                        worker.map(|worker| node.admin().kill_worker(worker));
                    }
                    3 => world.network.snap(0, 1),
                    4 => {
                        world.network.part(0, 1);
                        Clock::sleep(Duration::from_millis(draw(20_000, 17))).await;
                        world.network.heal(0, 1);
                    }
                    _ => {}
                }
            };
            let (ending, ()) = futures::join!(reading, trouble);
            let at = match ending.unwrap_or_else(|error| panic!("{seed}: {error}")) {
                Ending::More(read) => {
                    assert_eq!(read, most);
                    0
                }
                Ending::Finished(read) => {
                    assert_eq!(read, to, "{seed}: all of it");
                    1
                }
                Ending::Failed(read, error) => {
                    let lost = matches!(
                        error,
                        AskError::Died(_) | AskError::Dead(_) | AskError::LinkLost { .. }
                    );
                    assert!(read <= to && lost, "{seed}: {error}");
                    2
                }
            };
            SEEN[at].fetch_add(1, Ordering::Relaxed);
            // A way that was cut is given up, and what nobody has come for is dropped.
            Clock::sleep(SECOND * 60).await;
            assert!(
                ENDED.get() <= 1 && (to == 0 || MADE.get() == 0 || ENDED.get() == 1),
                "{seed}: work is left"
            );
        });
    }
    let seen: BTreeMap<_, _> = ["stopped reading", "finished", "lost"]
        .into_iter()
        .zip(SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed)))
        .collect();
    assert!(seen.values().all(|seen| *seen > SEEDS / 20), "{seen:?}");
}
