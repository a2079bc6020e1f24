//! One producer, four readers in processes of their own, and 256 MiB that none of them copies: the
//! producer writes into shared memory, and what it sends is a handle.

use std::time::{Duration, Instant};

use anyhow::ensure;
use odeon::prelude::*;

/// A version of weights, as large as a small model.
const BYTES: usize = 256 << 20;
const READERS: usize = 4;
const VERSIONS: u8 = 4;

struct Reader;

#[odeon::actor(name = "demo.BlobReader")]
impl Reader {
    fn start(_unit: ()) -> Self {
        Self
    }

    /// Touches every page, as a first use would.
    #[handler]
    async fn read(&mut self, blob: Blob) -> Result<u64, BlobError> {
        Ok(touch(&blob.open().await?))
    }

    /// The number of slabs of other processes that it has mapped, and the bytes of its own blobs.
    #[handler]
    fn mapped(&mut self, cx: &mut Context<Self>) -> (usize, u64) {
        let stats = cx.blobs().stats();
        (stats.mapped_slabs, stats.bytes)
    }
}

fn touch(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .step_by(4096)
        .map(|byte| u64::from(*byte))
        .sum()
}

async fn story(system: System) -> anyhow::Result<()> {
    let mut readers: Vec<Ref<Reader>> = vec![];
    for _ in 0..READERS {
        readers.push(system.spawn::<Reader>(()).isolated().await?);
    }
    let blobs = system.blobs();
    for version in 1..=VERSIONS {
        let begun = now();
        let mut writer = blobs.writer(BYTES)?;
        writer.fill(version);
        let blob = writer.seal();
        let written = begun.elapsed();

        let begun = now();
        let mut reads = vec![];
        for reader in &readers {
            let read = Read { blob: blob.clone() };
            let asked = reader.ask(read).timeout(Duration::from_secs(20));
            reads.push(tokio::spawn(async move { (asked.await, begun.elapsed()) }));
        }
        let mut times = vec![];
        for read in reads {
            let (sum, took) = read.await?;
            ensure!(
                sum?? == touch(&vec![version; BYTES]),
                "version {version} was misread"
            );
            times.push(took);
        }
        println!("version {version}: written in {written:.1?}; read by each within {times:.1?}");
        // The next version takes the memory of this one, which is mapped everywhere already.
        drop(blob);
        blobs.when(|stats| stats.blobs == 0).await;
    }
    for reader in readers {
        let (mapped_slabs, own_bytes) = reader.ask(Mapped).await?;
        ensure!(
            (mapped_slabs, own_bytes) == (1, 0),
            "one slab, mapped once, and no copy"
        );
    }
    println!("{READERS} readers, {VERSIONS} versions, one slab, no copy");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> anyhow::Result<()> {
    odeon::job![Reader].run(story)
}
