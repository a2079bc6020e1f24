//! Commands that come while others are being written, and then go into the log together: a write to
//! the disks of the voters takes as long for many as for one.

use std::collections::VecDeque;
use std::sync::Arc;

use odeon::Clock;
use openraft::error::{ClientWriteError, RaftError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Raft, TRY_PATIENCE};
use crate::fact::{Command, Refusal, Written};

/// Commands of one entry.
const COMMANDS_MAX: usize = 256;
/// Their bytes, if they are more than one.
const BYTES_MAX: usize = 64 << 10;

/// Commands of one entry of the log, in order. One alone is written as itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Noted", into = "Noted")]
pub(crate) struct Batch(pub(crate) Vec<Command>);

/// A batch as it is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Noted {
    Many(Vec<Command>),
    One(Box<Command>),
}

impl From<Noted> for Batch {
    fn from(noted: Noted) -> Self {
        match noted {
            Noted::Many(commands) => Self(commands),
            Noted::One(command) => Self(vec![*command]),
        }
    }
}

impl From<Batch> for Noted {
    fn from(Batch(mut commands): Batch) -> Self {
        match (commands.pop(), commands.is_empty()) {
            (Some(command), true) => Self::One(Box::new(command)),
            (last, _) => {
                commands.extend(last);
                Self::Many(commands)
            }
        }
    }
}

/// The result of each command of an entry.
pub(crate) type Outcomes = Vec<Result<Written, Refusal>>;

/// Why a command is not written, as far as is known.
#[derive(Clone, Debug)]
pub(crate) enum Unwritten {
    /// Another voter leads; which, if that is known.
    Elsewhere(Option<String>),
    /// It may be written yet.
    Unknown(String),
}

/// The result of a command, and the number of its entry.
pub(crate) type Noticed = Result<(Result<Written, Refusal>, u64), Unwritten>;

/// Writes commands. Clones write to the same log.
#[derive(Clone)]
pub(crate) struct Batcher {
    raft: Raft,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Set while a task empties it.
    tended: bool,
}

struct Waiting {
    command: Command,
    bytes: usize,
    tell: oneshot::Sender<Noticed>,
}

impl Batcher {
    pub(crate) fn new(raft: Raft) -> Self {
        Self {
            raft,
            queue: Arc::default(),
        }
    }

    /// Writes a command, with those that wait meanwhile.
    pub(crate) async fn write(&self, command: Command) -> Noticed {
        let bytes = serde_json::to_vec(&command).map_or(0, |bytes| bytes.len());
        let (tell, told) = oneshot::channel();
        let begins = {
            let mut queue = self.queue.lock();
            queue.waiting.push_back(Waiting {
                command,
                bytes,
                tell,
            });
            !std::mem::replace(&mut queue.tended, true)
        };
        if begins {
            let batcher = self.clone();
            tokio::spawn(async move { batcher.tend().await });
        }
        let lost = || Unwritten::Unknown("its voter has ended".to_owned());
        told.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Writes what waits until nothing does.
    async fn tend(&self) {
        loop {
            let taken = self.queue.lock().take();
            if taken.is_empty() {
                return;
            }
            let (commands, tells): (Vec<_>, Vec<_>) = taken
                .into_iter()
                .map(|waiting| (waiting.command, waiting.tell))
                .unzip();
            let written = self.write_now(Batch(commands)).await;
            let mut outcomes = written.map(|(outcomes, index)| (outcomes.into_iter(), index));
            for tell in tells {
                let noticed = match &mut outcomes {
                    Ok((outcomes, index)) => match outcomes.next() {
                        Some(outcome) => Ok((outcome, *index)),
                        None => Err(Unwritten::Unknown("its outcome is missing".to_owned())),
                    },
                    Err(error) => Err(error.clone()),
                };
                // Whoever wanted it may have given up.
                let _ = tell.send(noticed);
            }
        }
    }

    async fn write_now(&self, batch: Batch) -> Result<(Outcomes, u64), Unwritten> {
        match Clock::timeout(TRY_PATIENCE, self.raft.client_write(batch)).await {
            None => Err(Unwritten::Unknown(
                "too few voters have answered".to_owned(),
            )),
            Some(Ok(response)) => Ok((response.data, response.log_id.index)),
            Some(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => Err(
                Unwritten::Elsewhere(forward.leader_node.map(|node| node.addr)),
            ),
            Some(Err(error)) => Err(Unwritten::Unknown(error.to_string())),
        }
    }
}

impl Queue {
    /// The commands of the next entry; the queue is not tended any more when there are none.
    fn take(&mut self) -> Vec<Waiting> {
        let mut taken = vec![];
        let mut bytes = 0;
        while let Some(next) = self.waiting.front()
            && taken.len() < COMMANDS_MAX
            && (taken.is_empty() || bytes + next.bytes <= BYTES_MAX)
        {
            bytes += next.bytes;
            taken.extend(self.waiting.pop_front());
        }
        self.tended = !taken.is_empty();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Fact, Writer};
    use crate::unix::Unix;

    fn command(id: u64) -> Command {
        let fact = Fact::NodeForgotten {
            node: format!("n{id}"),
        };
        Command {
            id,
            at: Unix(id),
            writer: Writer::Leader,
            fact,
        }
    }

    #[test]
    fn a_command_alone_is_written_as_itself_and_many_as_a_list() {
        let one = Batch(vec![command(1)]);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, serde_json::to_string(&command(1)).unwrap());
        assert_eq!(serde_json::from_str::<Batch>(&text).unwrap(), one);
        for n in [0, 2, 5] {
            let batch = Batch((0..n).map(command).collect());
            let text = serde_json::to_string(&batch).unwrap();
            assert!(text.starts_with('['), "{text}");
            assert_eq!(serde_json::from_str::<Batch>(&text).unwrap(), batch);
        }
    }

    #[test]
    fn an_entry_takes_what_waits_in_order_within_its_bounds() {
        let mut queue = Queue::default();
        let wait = |queue: &mut Queue, id: u64, bytes: usize| {
            let tell = oneshot::channel().0;
            let command = command(id);
            queue.waiting.push_back(Waiting {
                command,
                bytes,
                tell,
            });
        };
        let ids = |taken: Vec<Waiting>| taken.iter().map(|it| it.command.id).collect::<Vec<_>>();
        for id in 0..300 {
            wait(&mut queue, id, 10);
        }
        queue.tended = true;
        assert_eq!(ids(queue.take()), (0..256).collect::<Vec<_>>());
        assert_eq!(ids(queue.take()), (256..300).collect::<Vec<_>>());
        // One that is too large for any goes alone.
        for (id, bytes) in [
            (1, BYTES_MAX / 2),
            (2, BYTES_MAX / 2),
            (3, 1),
            (4, BYTES_MAX + 1),
            (5, 1),
        ] {
            wait(&mut queue, id, bytes);
        }
        assert_eq!(ids(queue.take()), [1, 2]);
        assert_eq!(ids(queue.take()), [3]);
        assert_eq!(ids(queue.take()), [4]);
        assert_eq!(ids(queue.take()), [5]);
        assert!(queue.tended);
        assert!(queue.take().is_empty() && !queue.tended);
    }
}
