//! Many exchanges at once over one stream, as the floor of many asks: a slab of who waits, frames that are
//! written straight into the next batch, a task that writes batches and one that reads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use parking_lot::Mutex;
use slab::Slab;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::floor::{BUFFER, PAYLOAD, put_frame, take_frame};
use crate::pace::{rate, rate_of_tasks};

/// A stream that many exchanges share.
#[derive(Clone)]
pub(crate) struct Mux(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    /// There is something to write.
    filled: Notify,
}

#[derive(Default)]
struct Table {
    /// Frames for the next write.
    output: BytesMut,
    /// Exchanges under way, by the ids of their frames.
    waiting: Slab<Slot>,
    /// The stream has ended.
    over: bool,
}

enum Slot {
    Waiting(Waker),
    Answered([u8; PAYLOAD.len()]),
}

impl Mux {
    /// Shares a stream, by tasks of the present runtime.
    pub(crate) fn new(
        reader: impl AsyncRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            table: Mutex::default(),
            filled: Notify::new(),
        });
        tokio::spawn(write(Arc::clone(&shared), writer));
        tokio::spawn(read(Arc::clone(&shared), reader));
        Self(shared)
    }

    fn exchange(&self) -> Exchange<'_> {
        Exchange {
            shared: &self.0,
            id: None,
        }
    }

    /// Exchanges per second of one task that has many under way.
    pub(crate) async fn rate(self) -> anyhow::Result<f64> {
        rate(|| async { self.exchange().await.map(drop) }).await
    }

    /// Exchanges per second of many tasks, each with one under way.
    pub(crate) async fn rate_of_tasks(self) -> anyhow::Result<f64> {
        rate_of_tasks(|count| {
            let mux = self.clone();
            async move {
                for _ in 0..count {
                    mux.exchange().await?;
                }
                Ok(())
            }
        })
        .await
    }
}

/// One exchange: sent when it is first polled.
struct Exchange<'a> {
    shared: &'a Shared,
    id: Option<usize>,
}

impl Future for Exchange<'_> {
    type Output = anyhow::Result<[u8; PAYLOAD.len()]>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut table = self.shared.table.lock();
        if table.over {
            return Poll::Ready(Err(anyhow::anyhow!("the echo hung up")));
        }
        let Some(id) = self.id else {
            let id = table.waiting.insert(Slot::Waiting(cx.waker().clone()));
            let was_empty = table.output.is_empty();
            put_frame(&mut table.output, id as u64, &PAYLOAD);
            drop(table);
            if was_empty {
                self.shared.filled.notify_one();
            }
            self.id = Some(id);
            return Poll::Pending;
        };
        match &mut table.waiting[id] {
            Slot::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Slot::Answered(_) => match table.waiting.remove(id) {
                Slot::Answered(reply) => Poll::Ready(Ok(reply)),
                Slot::Waiting(_) => unreachable!("it was looked at under the same lock"),
            },
        }
    }
}

async fn write(shared: Arc<Shared>, mut writer: impl AsyncWrite + Unpin) {
    let mut batch = BytesMut::new();
    loop {
        shared.filled.notified().await;
        // Tasks that are ready to send come first, as they do in a link.
        tokio::task::yield_now().await;
        loop {
            std::mem::swap(&mut batch, &mut shared.table.lock().output);
            if batch.is_empty() {
                break;
            }
            if writer.write_all_buf(&mut batch).await.is_err() || writer.flush().await.is_err() {
                return;
            }
            batch.clear();
        }
    }
}

async fn read(shared: Arc<Shared>, mut reader: impl AsyncRead + Unpin) {
    let (mut input, mut woken) = (BytesMut::with_capacity(BUFFER), vec![]);
    while let Ok(1..) = reader.read_buf(&mut input).await {
        let mut table = shared.table.lock();
        while let Some((id, payload)) = take_frame(&mut input) {
            let Some(slot) = table.waiting.get_mut(id as usize) else {
                continue;
            };
            // Copied, so that the buffer is free for the next read.
            let Ok(reply) = payload[..].try_into() else {
                return;
            };
            if let Slot::Waiting(waker) = std::mem::replace(slot, Slot::Answered(reply)) {
                woken.push(waker);
            }
        }
        drop(table);
        woken.drain(..).for_each(Waker::wake);
        input.reserve(BUFFER);
    }
    let mut table = shared.table.lock();
    table.over = true;
    for (_, slot) in &table.waiting {
        if let Slot::Waiting(waker) = slot {
            waker.wake_by_ref();
        }
    }
}
