//! New weights go from one node to readers on four others, one of which hangs on a slow wire.

use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use odeon::{Blob, BlobError, Clock, Context, Failure, Job, Ref, System, WorkerMode, telemetry};
use odeon_observe::{Observer, here};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::linger;

/// Makes weights, and has readers take them.
pub(crate) struct Publisher {
    readers: Vec<Ref<Reader>>,
}

/// Takes weights as soon as it hears of them.
pub(crate) struct Reader;

/// A version of a small model.
const BYTES: usize = 24 << 20;
const VERSIONS: u64 = 5;
const READERS: usize = 4;
/// Bytes of a piece, and the time that a slow wire takes for each.
const PIECE: usize = 64 << 10;
const SLOW: Duration = Duration::from_micros(6_000);
const PATIENCE: Duration = Duration::from_secs(60);

#[odeon::actor(name = "weights.Publisher")]
impl Publisher {
    fn start(readers: Vec<Ref<Reader>>) -> Self {
        Self { readers }
    }

    #[handler]
    async fn publish(&mut self, version: u64, cx: &mut Context<Self>) -> Result<usize, Failure> {
        let span = telemetry::span("publish").with("version", version as i64);
        let mut writer = cx.blobs().writer(BYTES).map_err(Failure::error)?;
        writer.fill(version as u8);
        let blob = writer.seal();
        telemetry::gauge("weights.published", version as f64).record();
        let takes = self.readers.iter().map(|reader| {
            let blob = blob.clone();
            reader.ask(Take { version, blob }).timeout(PATIENCE)
        });
        let taken = join_all(takes.map(IntoFuture::into_future)).await;
        let taken: Result<Vec<_>, Failure> = taken
            .into_iter()
            .map(|answer| answer.map_err(Failure::error)?.map_err(Failure::error))
            .collect();
        let taken = taken?.len();
        span.end();
        Ok(taken)
    }
}

#[odeon::actor(name = "weights.Reader")]
impl Reader {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    async fn take(&mut self, version: u64, blob: Blob) -> Result<u64, BlobError> {
        let opened = blob.open().await?;
        telemetry::gauge("weights.version", version as f64).record();
        Ok(opened.iter().step_by(4096).map(|it| u64::from(*it)).sum())
    }
}

async fn node(job: Job, name: &str) -> Result<System> {
    let builder = System::builder().job(job).node(name);
    Ok(builder.workers(WorkerMode::InProcess).start().await?)
}

/// Carries what comes, piece by piece, with a pause after each.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pause: Option<Duration>,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..read]).await?;
        if let Some(pause) = pause {
            Clock::sleep(pause.mul_f64(read as f64 / PIECE as f64)).await;
        }
    }
}

/// Links two nodes by a wire.
async fn link(a: &System, b: &System, pause: Option<Duration>) -> Result<()> {
    let (near, a_wire) = tokio::io::duplex(1 << 20);
    let (b_wire, far) = tokio::io::duplex(1 << 20);
    let ((a_in, a_out), (b_in, b_out)) = (tokio::io::split(near), tokio::io::split(far));
    let ((from_a, to_a), (from_b, to_b)) = (tokio::io::split(a_wire), tokio::io::split(b_wire));
    drop(tokio::spawn(carry(from_a, to_b, pause)));
    drop(tokio::spawn(carry(from_b, to_a, None)));
    let (ours, theirs) = tokio::join!(
        a.admin().join_stream(a_in, a_out),
        b.admin().join_stream(b_in, b_out)
    );
    ours?;
    theirs?;
    Ok(())
}

pub(crate) async fn story(job: Job, observer: &Observer) -> Result<()> {
    let trainer = node(job, "trainer").await?;
    let (mut nodes, mut readers) = (vec![trainer.clone()], vec![]);
    for number in 1..=READERS {
        let other = node(job, &format!("rollout-{number}")).await?;
        link(&trainer, &other, (number == 3).then_some(SLOW)).await?;
        let reader = other.spawn::<Reader>(()).await?;
        other.register(&format!("reader-{number}"), reader).await?;
        readers.push(reader);
        nodes.push(other);
    }
    let publisher = trainer.spawn::<Publisher>(readers).await?;
    trainer.register("publisher", publisher).await?;
    let steps = async {
        for version in 1..=VERSIONS {
            let publish = publisher.ask(Publish { version }).timeout(PATIENCE);
            trainer.scope(publish.into_future()).await??;
            Clock::sleep(Duration::from_millis(700)).await;
        }
        linger(2).await;
        Ok(())
    };
    let follow = async {
        let mut watches: Vec<_> = nodes.iter().map(|system| system.admin().watch()).collect();
        loop {
            for watch in &mut watches {
                let sight = watch.look(Duration::from_secs(1)).await;
                // All of them have the clock of this process.
                observer.look(sight, here(), None);
            }
            observer.tick();
            Clock::sleep(observer.pause()).await;
        }
    };
    tokio::select! {
        outcome = steps => outcome,
        () = follow => unreachable!("it looks until it is dropped"),
    }
}
