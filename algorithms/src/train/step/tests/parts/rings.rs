//! Tests of ranks whose keys and values go around a ring.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 135, 140. Ranks whose keys and values go around a ring, alone and in every mixture; over several sequences
    /// that are cut anywhere, with windows, and with fewer key heads than ranks.
    #[test]
    fn ranks_of_a_ring_train_a_model_as_one_device_does(
        config in prop::sample::select(models_of_rings()),
        [copies, experts, context, tensor] in prop::sample::select(mixtures_of_rings()),
        lengths in prop::collection::vec(2usize..30, 3),
        beside in prop::collection::vec(1usize..20, 0..4),
        entropy in prop::sample::select(vec![0.0f32, 0.1]),
        lion in any::<bool>(),
        recompute in prop::sample::select(recomputes()),
        dropout in shares_that_are_dropped(),
    ) {
        let of_experts = config.block.experts().map_or(1, |_| experts);
        let sharing = Sharing {
            copies,
            experts: of_experts,
            context,
            context_kind: ContextKind::Ring,
            tensor: if config.kv_heads.is_multiple_of(tensor) { tensor } else { 1 },
            ..Sharing::ALONE
        };
        let mut work = Texts::of(&lengths, 0..3);
        (work.beside, work.entropy, work.dropout) = (beside, entropy, dropout);
        let mut dealt = vec![0; copies * of_experts];
        (0..3).for_each(|number| dealt[number % (copies * of_experts)] += 1);
        let settings = TrainConfig { recompute, ..settings(lion, None) };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}

/// Models of every kind of layer, most of which have fewer key heads than there are ranks, or heads that these could not
/// share. A window may begin behind the first layer.
fn models_of_rings() -> Vec<ModelConfig> {
    let window = |tokens, from_layer| {
        let tokens = NonZeroU32::new(tokens).unwrap();
        Some(AttentionWindow { tokens, from_layer })
    };
    let [plain, biased, normed, experts, _] = models().try_into().unwrap();
    vec![
        ModelConfig {
            heads: 4,
            kv_heads: 1,
            ..plain.clone()
        },
        ModelConfig {
            heads: 3,
            kv_heads: 3,
            window: window(5, 0),
            ..plain
        },
        biased,
        ModelConfig {
            kv_heads: 2,
            window: window(9, 1),
            ..normed
        },
        ModelConfig {
            kv_heads: 2,
            ..experts
        },
    ]
}

/// Copies, expert, context and tensor ranks, of eight ranks at most.
fn mixtures_of_rings() -> Vec<[usize; 4]> {
    vec![
        [1, 1, 2, 1],
        [1, 1, 4, 1],
        [1, 1, 3, 1],
        [2, 1, 2, 1],
        [2, 1, 4, 1],
        [1, 1, 2, 2],
        [1, 1, 4, 2],
        [2, 1, 2, 2],
        [1, 2, 2, 2],
        [1, 2, 4, 1],
    ]
}

/// A rank of either kind sends what is said before: rows of keys and values that go around, or of heads that are
/// exchanged.
#[test]
fn ranks_that_share_rows_send_what_is_said_of_them() {
    let mut config = models()[0].clone();
    config.kv_heads = 2;
    for (kind, context) in [
        (ContextKind::Ulysses, 2),
        (ContextKind::Ulysses, 4),
        (ContextKind::Ring, 2),
        (ContextKind::Ring, 4),
        (ContextKind::Ring, 3),
    ] {
        let sharing = Sharing {
            context,
            context_kind: kind,
            ..Sharing::ALONE
        };
        let told = Footprint::of(&config, &TrainConfig::default(), sharing, 0).unwrap();
        // Eight query heads, two key heads and two layers, of six numbers of four bytes a head.
        let (head, layers, others) = (4 * 6, 2, context - 1);
        let [forward, backward] = match kind {
            // Queries, keys and values of a share of the heads, and what they made, to each of the others and back.
            ContextKind::Ulysses => [2 * (8 / context + (2 / context).max(1)); 2],
            // Keys and values once forward; backward they and their gradients, each as often.
            ContextKind::Ring => [2 * 2, 2 * 2 * 2],
        };
        assert_eq!(told.context_row, layers * others * forward * head);
        assert_eq!(told.context_row_back, layers * others * backward * head);
        let threads = Rank::all(context)
            .into_iter()
            .enumerate()
            .map(|(rank, peer)| {
                let config = config.clone();
                thread::spawn(move || {
                    let peers = OfCopy::of(peer, context);
                    let mut model = model(&config);
                    model.meet(PassGroups {
                        context: Some(peers.clone()),
                        ..PassGroups::default()
                    });
                    let mut work = Texts::of(&[29], 0..1);
                    work.context = RankOf::new(rank, context);
                    work.context_kind = kind;
                    let rows = work.batch(0).unwrap().processed();
                    let mut trainer = Trainer::new(model, TrainConfig::default());
                    let sent = || peers.2.lock().unwrap().drain(..).sum::<usize>();
                    let _ = trainer.logprobs(&work.batch(0).unwrap());
                    let forward = sent();
                    let shape = StepShape::of(&work, false, true);
                    let peers = StepPeers::<Rank>::none();
                    trainer
                        .run(&plan(&shape), &mut work, peers, &mut |_| Ok(()))
                        .unwrap();
                    (rows, 4 * forward, 4 * (sent() - forward))
                })
            });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            let (rows, forward, backward) = thread.join().unwrap();
            assert_eq!(forward, rows * told.context_row, "{kind} of {context}");
            assert_eq!(
                backward,
                rows * told.context_row_back,
                "{kind} of {context}"
            );
        }
    }
}
