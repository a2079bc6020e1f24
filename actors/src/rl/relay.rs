//! The relay: keeps the weights for the rollouts of its node, so that the trainer hands them over
//! once and goes on.

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{Blob, Context, Failure, Recipient, Shape, actor, message};

use super::trainer::{Republish, Trainer};
use crate::trajectory::Version;

/// One version of the weights.
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Weights {
    /// Which.
    pub version: Version,
    /// The bytes, as the rollout engines load them.
    pub blob: Blob,
    /// CRC-32 of the bytes.
    pub checksum: u32,
}

/// The trainer has new weights. Told, not asked: the trainer does not wait.
#[message(name = "relay.Publish")]
#[derive(Debug)]
pub struct Publish(pub Weights);

/// The newest complete version; `None` before the first.
#[message(reply = Option<Weights>, name = "relay.Latest")]
#[derive(Debug)]
pub struct Latest;

/// Tell me of every new version, beginning with the one you have.
#[message(name = "relay.Subscribe")]
#[derive(Debug)]
pub struct Subscribe(pub Recipient<Fresh>);

/// A new version is complete at the relay.
#[message(name = "relay.Fresh")]
#[derive(Clone, Debug)]
pub struct Fresh(pub Version);

/// The name of the trainer in its job.
pub(super) const TRAINER: &str = "trainer";

/// See the module.
#[derive(Debug)]
pub struct Relay {
    latest: Option<Weights>,
    subscribers: Vec<Recipient<Fresh>>,
}

#[actor(name = "rl.Relay")]
impl Relay {
    async fn start(_args: (), cx: &mut Context<Self>) -> Result<Self, Failure> {
        // After a restart the weights are gone with the process: the trainer has them.
        if let Ok(trainer) = cx.lookup::<Trainer>(TRAINER).await {
            // A trainer that is gone publishes by itself when it comes back.
            let _ = trainer.tell(Republish).await;
        }
        Ok(Self {
            latest: None,
            subscribers: vec![],
        })
    }

    #[handler(message = Publish)]
    async fn publish(&mut self, publish: Publish, cx: &mut Context<Self>) {
        let Publish(weights) = publish;
        // An own copy outlives the trainer's process.
        let copy = match weights.blob.open().await {
            Ok(view) if crc32fast::hash(&view) == weights.checksum => cx.blobs().copy_in(&view),
            Ok(_) => {
                tracing::error!(
                    version = weights.version,
                    "weights arrived broken; kept the old"
                );
                return;
            }
            Err(error) => Err(error),
        };
        match copy {
            Ok(blob) => self.latest = Some(Weights { blob, ..weights }),
            Err(error) => {
                tracing::error!(version = weights.version, %error, "weights did not arrive");
                return;
            }
        }
        telemetry::gauge("weights.published", weights.version as f64).record();
        let fresh = Fresh(weights.version);
        let mut alive = vec![];
        for subscriber in self.subscribers.drain(..) {
            if subscriber.tell(fresh.clone()).await.is_ok() {
                alive.push(subscriber);
            }
        }
        self.subscribers = alive;
    }

    #[handler(message = Latest)]
    fn latest(&mut self, _latest: Latest) -> Option<Weights> {
        self.latest.clone()
    }

    #[handler(message = Subscribe)]
    async fn subscribe(&mut self, subscribe: Subscribe) {
        let Subscribe(subscriber) = subscribe;
        self.subscribers
            .retain(|known| known.id() != subscriber.id());
        if let Some(weights) = &self.latest
            && subscriber.tell(Fresh(weights.version)).await.is_err()
        {
            return;
        }
        self.subscribers.push(subscriber);
    }
}
