//! The trainer's end of the chain: it has the newest weights and hands them to the master while the
//! trainer computes.
//!
//! It is a child of the trainer in its process, with a mailbox of its own. So what the trainer waits
//! for at a new version is the writing of it, whoever stands behind.

use std::error::Error;
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Context, Failure, Ref, actor, message};

use super::chain::chunks::{ChunkBounds, Pace, chunking};
use super::chain::{Forms, Manifest, Peer};
use super::handing::{Asked, Handing, Look, Stand};
pub use super::handing::{CountHanded, HandingCounts};
use super::relay::Edition;
use super::relays::{EnterSource, Relays};
use crate::engine::in_place;

/// Settings that a [`Source`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct SourceArgs {
    /// The actor that watches over the relays.
    pub relays: Ref<Relays>,
    /// Time between two words to it that this source is there.
    pub beat: Duration,
    /// The forms in which chunks travel.
    pub forms: Forms,
}

/// The weights of a version, to be handed to the master. Told: nobody waits.
#[message(name = "source.Put")]
#[derive(Debug)]
pub struct Put {
    /// Which.
    pub edition: Edition,
    /// The bytes.
    pub blob: Blob,
}

/// The cost of a hop between two processes of a machine: a message, and a copy and a checksum of
/// the bytes. Far slower links want fewer and far quicker ones more chunks, as the root of the
/// ratio.
const PACE: Pace = Pace {
    startup_s: 100e-6,
    seconds_per_byte: 1.0 / 2e9,
};

/// The actor beside the trainer that hands its newest weights to the first relay.
#[derive(Debug)]
pub struct Source {
    args: SourceArgs,
    handing: Handing,
    /// Relays in the chain, as far as it has heard.
    relays: u64,
}

#[actor(name = "rl.Source")]
impl Source {
    async fn start(args: SourceArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let source = Self {
            handing: Handing::new(Peer::Trainer, cx.blobs(), args.forms),
            args,
            relays: 0,
        };
        source.enter(cx.me()).await;
        cx.every(source.args.beat, Look);
        Ok(source)
    }

    #[handler(message = Look)]
    async fn look(&mut self, _look: Look, cx: &mut Context<Self>) {
        self.enter(cx.me()).await;
    }

    #[handler(message = Stand)]
    async fn stand(&mut self, stand: Stand) {
        self.relays = stand.relays;
        self.handing.stand(stand).await;
    }

    #[handler(message = Asked)]
    async fn asked(&mut self, asked: Asked) {
        self.handing.asked(asked).await;
    }

    #[handler(message = CountHanded)]
    fn count(&mut self, _count: CountHanded) -> HandingCounts {
        self.handing.counts()
    }

    #[handler(message = Put)]
    async fn put(&mut self, put: Put, cx: &mut Context<Self>) {
        let put = async {
            let view = put.blob.open().await.map_err(Failure::error)?;
            let manifest = in_place(|| cut(put.edition, &view, self.relays))?;
            self.handing.put(manifest, put.blob, view).await
        };
        if let Err(failure) = put.await {
            cx.fail(failure);
        }
    }
}

impl Source {
    async fn enter(&self, me: Ref<Self>) {
        // One that is gone hears of it with the next.
        let _ = self.args.relays.tell(EnterSource { source: me }).await;
    }
}

/// Another life would make the same.
fn unfit(error: impl Error) -> Failure {
    Failure::error(error).fatal()
}

/// The division of a version into chunks for so many relays, with the checksum of each chunk.
fn cut(edition: Edition, bytes: &[u8], relays: u64) -> Result<Manifest, Failure> {
    let (len, bounds) = (bytes.len() as u64, ChunkBounds::default());
    let chunking = chunking(relays + 1, len, &PACE, &bounds).map_err(unfit)?;
    Manifest::of(edition.in_chain(), bytes, chunking.chunk_bytes).map_err(unfit)
}
