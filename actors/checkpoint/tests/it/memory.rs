//! Checkpoints in the memory of neighbours.

use std::sync::Arc;

use futures::future;
use odeon_checkpoint::{
    Buffers, Checkpointer, Keep, Load, Local, Peers, Save, SavedReader, Storage, WantedReader,
    commit, loader_state, within,
};

use crate::world::{Known, alone, flat, reference, small, tensors};

/// Ranks whose memory is given.
fn ends(storage: &Storage, peers: &[Arc<Peers>]) -> Vec<Checkpointer> {
    let ranks = within(peers.len()).into_iter().zip(peers);
    ranks
        .map(|(rank, peers)| {
            Checkpointer::new(storage.clone(), Arc::new(rank), small()).with_peers(peers.clone())
        })
        .collect()
}

async fn save(ends: &mut [Checkpointer], known: &[Known], locals: &[Local], step: u64, keep: Keep) {
    let saves = ends
        .iter_mut()
        .zip(locals)
        .enumerate()
        .map(|(rank, (end, local))| async move {
            let save = Save {
                step,
                local: local.clone(),
                keep,
                blobs: vec![(format!("rng/{rank}"), vec![rank as u8, step as u8].into())],
                readers: vec![SavedReader {
                    loader: "train".into(),
                    index: rank,
                    of: locals.len(),
                    state: loader_state::ReaderState {
                        streams: vec![loader_state::Stream::new(format!("s{rank}"), step, None)],
                        buffer: vec![],
                    },
                }],
            };
            end.save(save, &reference(known, local))
                .await
                .unwrap()
                .wait()
                .await
                .unwrap();
        });
    future::join_all(saves).await;
}

async fn recover(
    ends: &mut [Checkpointer],
    known: &[Known],
    locals: &[Local],
) -> Result<u64, String> {
    let of = locals.len();
    let loads = ends
        .iter_mut()
        .zip(locals)
        .enumerate()
        .map(|(rank, (end, local))| async move {
            let buffers = Arc::new(Buffers::zeroed(local));
            let load = Load {
                local: local.clone(),
                blobs: vec!["rng/0".into()],
                readers: vec![WantedReader {
                    loader: "train".into(),
                    index: rank,
                    of,
                }],
                ..Load::default()
            };
            let loaded = end
                .recover(load, &buffers)
                .await
                .map_err(|error| error.to_string())?;
            let filled = Arc::try_unwrap(buffers).unwrap().into_inner();
            assert_eq!(filled, reference(known, local), "rank {rank}");
            assert_eq!(loaded.blobs, [vec![0, loaded.entry.step as u8]]);
            assert_eq!(loaded.readers.len(), 1);
            Ok::<_, String>(loaded.entry.step)
        });
    let steps: Result<Vec<u64>, String> = future::join_all(loads).await.into_iter().collect();
    steps.map(|steps| steps[0])
}

/// SEMANTICS 101: any one rank is lost, rank 0 too, and the job goes on from memory.
#[tokio::test]
async fn a_job_that_loses_a_rank_goes_on_from_its_neighbour_s_memory() {
    let storage = Storage::memory();
    for lost in 0..4 {
        let mut peers: Vec<Arc<Peers>> = (0..4).map(|_| Peers::new(1)).collect();
        let known = tensors(5);
        let locals = flat(&known, 4);
        let mut ranks = ends(&storage, &peers);
        save(&mut ranks, &tensors(4), &locals, 4, Keep::InMemory).await;
        save(&mut ranks, &known, &locals, 5, Keep::InMemory).await;
        assert!(
            peers
                .iter()
                .all(|peers| peers.step() == Some(5) && peers.bytes() > 0)
        );
        drop(ranks);
        peers[lost] = Peers::new(1);
        assert_eq!(
            recover(&mut ends(&storage, &peers), &known, &locals).await,
            Ok(5),
            "rank {lost}"
        );
        // More ranks than before, of which the new ones have nothing.
        peers.push(Peers::new(1));
        let five = flat(&known, 5);
        assert_eq!(
            recover(&mut ends(&storage, &peers), &known, &five).await,
            Ok(5)
        );
    }
    let stored = commit::list(&storage).await.unwrap();
    assert_eq!(stored, [], "nothing was stored");
}

/// SEMANTICS 101: neighbours lost at once are told, with the file; then the storage has it.
#[tokio::test]
async fn neighbours_that_are_lost_at_once_leave_the_storage() {
    let storage = Storage::memory();
    let mut peers: Vec<Arc<Peers>> = (0..4).map(|_| Peers::new(1)).collect();
    let known = tensors(5);
    let locals = flat(&known, 4);
    let mut ranks = ends(&storage, &peers);
    save(&mut ranks, &known, &locals, 5, Keep::Stored).await;
    drop(ranks);
    peers[1] = Peers::new(1);
    peers[2] = Peers::new(1);
    let mut ranks = ends(&storage, &peers);
    let said = recover(&mut ranks, &known, &locals).await.unwrap_err();
    assert!(
        said.contains("no rank has rank-00001-000.safetensors of 00000001-step-5"),
        "{said}"
    );
    let whole = alone(&known);
    let mut one = crate::world::ends(&storage, 1, small());
    let loaded = crate::world::load(&mut one, &whole, odeon_checkpoint::Which::Latest).await;
    crate::world::expect_same(&known, &whole, loaded);
}

#[tokio::test]
async fn in_memory_alone_needs_peers() {
    let storage = Storage::memory();
    let known = tensors(1);
    let local = alone(&known).remove(0);
    let mut end = crate::world::ends(&storage, 1, small()).remove(0);
    let save = Save {
        keep: Keep::InMemory,
        local: local.clone(),
        ..Save::default()
    };
    let saving = end.save(save, &reference(&known, &local)).await.unwrap();
    let said = saving.wait().await.unwrap_err().to_string();
    assert!(
        said.contains("memory of peers, and there are none"),
        "{said}"
    );
}
