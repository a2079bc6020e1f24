//! Ranks of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::{Mutex as Turn, mpsc, watch};

use super::{Ranks, RanksError};

/// A rank that reaches the others through channels. One that is dropped is lost.
#[derive(Debug)]
pub struct Within {
    rank: usize,
    ranks: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// From whom to whom; made when it is first used.
    channels: Mutex<HashMap<(usize, usize), Arc<Channel>>>,
    /// Ranks that are gone.
    gone: watch::Sender<Vec<usize>>,
}

#[derive(Debug)]
struct Channel {
    sender: mpsc::Sender<Bytes>,
    receiver: Turn<mpsc::Receiver<Bytes>>,
}

/// So many ranks that reach each other.
#[must_use]
pub fn within(ranks: usize) -> Vec<Within> {
    let shared = Arc::new(Shared {
        channels: Mutex::default(),
        gone: watch::Sender::new(vec![]),
    });
    let rank = |rank| Within {
        rank,
        ranks,
        shared: shared.clone(),
    };
    (0..ranks).map(rank).collect()
}

impl Within {
    fn channel(&self, from: usize, to: usize) -> Arc<Channel> {
        let mut channels = self
            .shared
            .channels
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let channel = channels.entry((from, to)).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(WAITING_MAX);
            Arc::new(Channel {
                sender,
                receiver: Turn::new(receiver),
            })
        });
        channel.clone()
    }

    /// Waits until a rank is gone.
    async fn gone(&self, rank: usize) {
        let mut gone = self.shared.gone.subscribe();
        // Who waits holds the sender, so the wait does not fail.
        let _ = gone.wait_for(|gone| gone.contains(&rank)).await;
    }
}

impl Ranks for Within {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, bytes: Bytes) -> BoxFuture<'_, Result<(), RanksError>> {
        Box::pin(async move {
            let channel = self.channel(self.rank, to);
            tokio::select! {
                biased;
                () = self.gone(to) => Err(RanksError::Lost { rank: to }),
                sent = channel.sender.send(bytes) => sent.map_err(|_| RanksError::Lost { rank: to }),
            }
        })
    }

    fn receive(&self, from: usize) -> BoxFuture<'_, Result<Bytes, RanksError>> {
        Box::pin(async move {
            let channel = self.channel(from, self.rank);
            let mut receiver = channel.receiver.lock().await;
            tokio::select! {
                biased;
                message = receiver.recv() => message.ok_or(RanksError::Lost { rank: from }),
                () = self.gone(from) => receiver.try_recv().map_err(|_| RanksError::Lost { rank: from }),
            }
        })
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.shared.gone.send_modify(|gone| gone.push(self.rank));
    }
}

/// Messages that wait for one rank to take them, of one other: each is a block at most.
const WAITING_MAX: usize = 4;
