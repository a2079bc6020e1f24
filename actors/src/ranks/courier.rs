//! Letters between ranks about checkpoints, which wait at the rank that they are for.
//!
//! A rank that trains reads no mail, and one that waits for another must not be asked meanwhile; so
//! each has a courier beside it in its process, where others leave letters and from which it collects
//! them.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Context, Down, Failure, Later, Ref, Shape, actor, message};
use odeon_checkpoint::{Ranks, RanksError};
use tokio::sync::oneshot;

/// Something that a rank says to another.
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum Letter {
    /// As part of the message.
    Short(Bytes),
    /// Apart from it.
    Long(Blob),
}

/// A life of the ranks begins. These are the couriers of all, in their order: when one is gone, nobody
/// waits for its letters. Those of lives before are thrown away.
#[message(name = "ranks.Meet")]
#[derive(Clone, Debug)]
pub struct Meet {
    /// Which life.
    pub life: u32,
    /// All of them.
    pub couriers: Vec<Ref<Courier>>,
}

/// Leave this for the rank of this courier. Told: letters of a rank come in order.
#[message(name = "ranks.Post")]
#[derive(Clone, Debug)]
pub struct Post {
    /// In which life.
    pub life: u32,
    /// The rank that sends it.
    pub from: u32,
    /// The letter.
    pub letter: Letter,
}

/// The next letter of a rank. Answered when it is there, or when the rank is gone and has left none, or
/// the life is over.
#[message(reply = Result<Letter, Failure>, name = "ranks.Collect")]
#[derive(Clone, Debug)]
pub struct Collect {
    /// In which life.
    pub life: u32,
    /// The rank that sent it.
    pub from: u32,
}

/// The actor that keeps the letters for one rank until it collects them.
#[derive(Debug, Default)]
pub struct Courier {
    life: u32,
    /// By life and rank: others may have begun the next life already.
    letters: HashMap<(u32, u32), VecDeque<Letter>>,
    waiting: HashMap<u32, VecDeque<oneshot::Sender<Letter>>>,
    couriers: Vec<Ref<Self>>,
    gone: HashSet<u32>,
}

#[actor(name = "ranks.Courier")]
impl Courier {
    fn start(_: ()) -> Self {
        Self::default()
    }

    #[handler(message = Meet)]
    fn meet(&mut self, meet: Meet, cx: &mut Context<Self>) {
        let Meet { life, couriers } = meet;
        for courier in couriers.iter().filter(|it| !self.couriers.contains(it)) {
            cx.watch(*courier);
        }
        self.couriers = couriers;
        self.life = life;
        self.letters.retain(|(of, _), _| *of >= life);
        self.waiting.clear();
        self.gone.clear();
    }

    #[handler(message = Down)]
    fn down(&mut self, down: Down) {
        let ranks = (0..).zip(&self.couriers);
        for (rank, _) in ranks.filter(|(_, courier)| courier.id() == down.id) {
            self.gone.insert(rank);
            self.waiting.remove(&rank);
        }
    }

    #[handler(message = Post)]
    fn post(&mut self, post: Post) {
        let Post {
            life,
            from,
            mut letter,
        } = post;
        if life < self.life {
            return;
        }
        let waiting = self.waiting.entry(from).or_default();
        while let Some(next) = waiting.pop_front_if(|_| life == self.life) {
            match next.send(letter) {
                Ok(()) => return,
                // Who does not wait any more.
                Err(back) => letter = back,
            }
        }
        let letters = self.letters.entry((life, from)).or_default();
        letters.push_back(letter);
    }

    #[handler(message = Collect)]
    fn collect(&mut self, collect: Collect) -> Later<Result<Letter, Failure>> {
        let (sender, receiver) = oneshot::channel();
        let Collect { life, from } = collect;
        let mut letters = self.letters.get_mut(&(life, from));
        match letters.as_mut().and_then(|letters| letters.pop_front()) {
            Some(letter) => drop(sender.send(letter)),
            None if life != self.life => drop(sender),
            None if self.gone.contains(&from) => drop(sender),
            None => self.waiting.entry(from).or_default().push_back(sender),
        }
        Later::new(async move {
            let over = |_| Failure::error(format!("rank {from} will say no more"));
            receiver.await.map_err(over)
        })
    }
}

/// The ranks of a run, as its checkpoints see them.
#[derive(Clone, Debug)]
pub(crate) struct Mail {
    pub(crate) rank: u32,
    /// Which life of the ranks this is.
    pub(crate) life: u32,
    /// Of all ranks, in their order.
    pub(crate) couriers: Vec<Ref<Courier>>,
    pub(crate) blobs: Blobs,
}

/// The longest letter, in bytes, that travels in its message and not apart from it.
const SHORT: usize = 16 << 10;

impl Ranks for Mail {
    fn rank(&self) -> usize {
        self.rank as usize
    }

    fn ranks(&self) -> usize {
        self.couriers.len()
    }

    fn send(&self, to: usize, bytes: Bytes) -> BoxFuture<'_, Result<(), RanksError>> {
        let lost = move |_| RanksError::Lost { rank: to };
        async move {
            let letter = if bytes.len() <= SHORT {
                Letter::Short(bytes)
            } else {
                let unkept = |error: odeon::BlobError| RanksError::Garbled {
                    rank: self.rank as usize,
                    detail: error.to_string(),
                };
                Letter::Long(self.blobs.copy_in(&bytes).map_err(unkept)?)
            };
            let post = Post {
                life: self.life,
                from: self.rank,
                letter,
            };
            self.couriers[to].tell(post).await.map_err(lost)
        }
        .boxed()
    }

    fn receive(&self, from: usize) -> BoxFuture<'_, Result<Bytes, RanksError>> {
        async move {
            let collect = Collect {
                life: self.life,
                from: from as u32,
            };
            let own = self.couriers[self.rank as usize];
            let lost = || RanksError::Lost { rank: from };
            let letter = own.ask(collect).timeout(super::asking::PATIENCE).await;
            match letter.map_err(|_| lost())?.map_err(|_| lost())? {
                Letter::Short(bytes) => Ok(bytes),
                Letter::Long(blob) => {
                    let view = blob.open().await.map_err(|_| lost())?;
                    Ok(Bytes::from_owner(view))
                }
            }
        }
        .boxed()
    }
}
