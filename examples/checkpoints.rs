//! A model that four tensor ranks save, three ranks load as flat ranges, and one loads whole; then a
//! byte of it rots on the disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures::future::try_join_all;
use odeon_algorithms::parallel::Region;
use odeon_checkpoint::{
    Buffers, Checkpointer, Dtype, Held, Load, Local, LocalTensor, MODEL, Options, Save, Storage,
    Which, commit, verify, within,
};

const SHAPE: [usize; 2] = [12, 1024];
const VALUES: usize = SHAPE[0] * SHAPE[1];

/// The part that a rank has of the one tensor of this model.
fn local(held: Held) -> anyhow::Result<Local> {
    let mut local = Local::default();
    let tensor = LocalTensor {
        name: "layers.0.weight".into(),
        dtype: Dtype::U8,
        shape: SHAPE.to_vec(),
        held,
    };
    local.add("actor", MODEL, vec![tensor])?;
    Ok(local)
}

fn value(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Columns of rank `rank` of four, as tensor parallelism cuts them.
fn columns(rank: usize) -> (Held, Vec<u8>) {
    let (first, end) = (rank * SHAPE[1] / 4, (rank + 1) * SHAPE[1] / 4);
    let rows = 0..SHAPE[0];
    let own = rows.flat_map(|row| (first..end).map(move |column| value(row * SHAPE[1] + column)));
    let region = Region::cut(&SHAPE, 1, first..end);
    (Held::Region(region), own.collect())
}

async fn save(storage: &Storage) -> anyhow::Result<()> {
    let ranks = within(4).into_iter().enumerate();
    let saves = ranks.map(|(rank, ranks)| {
        let mut end = Checkpointer::new(storage.clone(), Arc::new(ranks), Options::default());
        async move {
            let (held, bytes) = columns(rank);
            let save = Save {
                step: 100,
                local: local(held)?,
                ..Save::default()
            };
            let saving = end.save(save, &vec![bytes]).await?;
            // The rank trains on here, while its share is written.
            anyhow::Ok(saving.wait().await?)
        }
    });
    let saved = try_join_all(saves).await?;
    let bytes: u64 = saved.iter().map(|it| it.bytes).sum();
    println!("four ranks saved {bytes} bytes in columns");
    Ok(())
}

/// Has `ranks` ranks load equal ranges of the flattened tensor, as ZeRO has them.
async fn load(storage: &Storage, ranks: usize) -> anyhow::Result<()> {
    let ends = within(ranks).into_iter().enumerate();
    let loads = ends.map(|(rank, ranks_of)| {
        let mut end = Checkpointer::new(storage.clone(), Arc::new(ranks_of), Options::default());
        async move {
            let own = rank * VALUES / ranks..(rank + 1) * VALUES / ranks;
            let local = local(Held::Flat(own.clone()))?;
            let buffers = Arc::new(Buffers::zeroed(&local));
            let load = Load {
                local,
                ..Load::default()
            };
            let loaded = end.load(load, &buffers).await?;
            let filled = Arc::try_unwrap(buffers).map_err(|_| anyhow::anyhow!("in use"))?;
            let expected: Vec<u8> = own.map(value).collect();
            anyhow::ensure!(filled.into_inner() == [expected], "every byte in its place");
            Ok(loaded.entry.step)
        }
    });
    let steps = try_join_all(loads).await?;
    println!("{ranks} ranks loaded flat ranges of step {}", steps[0]);
    Ok(())
}

async fn story(folder: &Path) -> anyhow::Result<()> {
    let storage = Storage::folder(folder)?;
    save(&storage).await?;
    load(&storage, 3).await?;
    load(&storage, 1).await?;
    let (entry, manifest) = commit::find(&storage, Which::Latest).await?;
    println!("{entry}: {} files", manifest.files.len());
    let file = folder.join(entry.file(&manifest.files[0].name));
    let mut bytes = fs::read(&file)?;
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes)?;
    let found = verify::verify(&storage, Which::Latest).await?;
    for fault in &found.faults {
        println!("a rotten byte is found: {}", fault.detail);
    }
    anyhow::ensure!(load(&storage, 1).await.is_err(), "it is not loaded");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    story(folder.path()).await
}
