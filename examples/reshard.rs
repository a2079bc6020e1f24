//! One model on eight processes, from four tensor ranks in training to two in generation: the bytes
//! that three engines move and allocate for it, measured side by side.

use odeon::group::Pool;
use odeon::prelude::*;
use odeon_actors::hybrid::calls::Join;
use odeon_actors::hybrid::resharding::{Load, Moved, ReshardArgs, ReshardWorker, ToGeneration};
use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::parallel::{Engine, Llama};

async fn story(system: System) -> anyhow::Result<()> {
    let llama = Llama {
        layers: 4,
        hidden: 512,
        intermediate: 1024,
        block: LayerBlock::default(),
        heads: 8,
        kv_heads: 4,
        head_width: 64,
        vocabulary: 4096,
        element_bytes: 2,
        tied: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    let model = llama.spec()?;
    let weights = system.blobs().copy_in(&vec![7; model.bytes()])?;
    let pool = Pool::new("models");
    println!("bytes of each rank, of a model of {}", model.bytes());
    println!("engine            received       peak  redundant");
    for engine in Engine::ALL {
        let args = |rank: Rank| ReshardArgs {
            rank: rank.index(),
            model: model.clone(),
            training: mesh! { dp: 2, tp: 4 },
            generation: mesh! { tp: 2 },
            engine,
        };
        let ranks = mesh! { rank: 8 };
        let workers = pool.spawn::<ReshardWorker>(&system, ranks, args);
        let workers = workers.start().await?;
        let formation = workers.form().await?;
        let seats = formation.seats().collect();
        workers.call(Join { seats }).await?;
        workers.call(Load(weights.clone())).await?;
        let moved = workers.call(ToGeneration).await?;
        anyhow::ensure!(moved.windows(2).all(|two| two[0] == two[1]), "all alike");
        let Moved {
            received,
            peak,
            redundant,
            ..
        } = moved[0];
        let name = format!("{engine:?}");
        println!("{name:<14} {received:>11} {peak:>10} {redundant:>10}");
        workers.group().stop().await?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon_actors::hybrid::job().run(story)
}
