//! From training to generation and back, on every rank.

use std::collections::HashSet;

use serde_json::json;

use super::*;

fn reshard(model: &ModelSpec, layouts: &Layouts, engine: Engine) -> Reshard {
    let generation = layouts.of(engine.grouping());
    Reshard::new(model.clone(), &layouts.training, generation, engine).unwrap()
}

/// The shards that all ranks train on, and their bytes.
fn trained(reshard: &Reshard) -> (Vec<Shards>, Vec<Vec<u8>>) {
    let ranks = 0..reshard.groups().training().len();
    let shards: Vec<Shards> = ranks.map(|rank| reshard.training(rank).unwrap()).collect();
    let buffers = shards
        .iter()
        .map(|shards| numbered(reshard.model(), shards));
    let buffers = buffers.collect();
    (shards, buffers)
}

/// Those that gather with a rank.
fn gathering(layouts: &Layouts, engine: Engine, rank: usize) -> Vec<usize> {
    let training = &layouts.training;
    let each = replica_ranks(training);
    let replica = rank / each * each;
    match engine {
        Engine::DeepSpeedChat => (0..training.len()).collect(),
        Engine::HybridFlowV => (replica..replica + each).collect(),
        Engine::HybridFlow => {
            let strided = Groups::new(training, &layouts.generation, Grouping::Strided);
            strided.unwrap().micro_data_group(rank).unwrap()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_rank_comes_to_have_what_it_generates_with((layouts, model) in worlds()) {
        for engine in Engine::ALL {
            let reshard = reshard(&model, &layouts, engine);
            let (training, buffers) = trained(&reshard);
            for rank in 0..training.len() {
                let plan = reshard.plan(rank).unwrap();
                let gathered = reshard.gathered(rank).unwrap();
                let group = reshard.gather_group(rank).unwrap();
                prop_assert_eq!(&group, &gathering(&layouts, engine, rank));
                prop_assert!(plan.gather.iter().all(|t| group.contains(&t.sender(rank))));
                let filled = carry_out(&plan.gather, rank, &training, &buffers, &gathered);
                prop_assert_eq!(&filled, &numbered(&model, &gathered));

                let generation = reshard.generation(rank).unwrap();
                let expected = numbered(&model, &generation);
                if engine == Engine::HybridFlow {
                    prop_assert!(plan.slices.is_empty());
                    prop_assert_eq!(filled, expected);
                } else {
                    let (mut sources, mut own) = (training.clone(), buffers.clone());
                    sources[rank] = gathered;
                    own[rank] = filled;
                    let cut = carry_out(&plan.slices, rank, &sources, &own, &generation);
                    prop_assert_eq!(cut, expected);
                    prop_assert!(plan.slices.iter().all(|t| t.from == Origin::Own));
                }
            }
        }
    }

    /// The costs, counted again element by element.
    #[test]
    fn costs_are_what_happens((layouts, model) in worlds()) {
        for engine in Engine::ALL {
            let reshard = reshard(&model, &layouts, engine);
            for rank in (0..layouts.training.len()).step_by(3) {
                let common = |a: &Shards, b: &Shards| -> usize {
                    let b: HashSet<_> = elements(&model, b).into_iter().collect();
                    let mut both = elements(&model, a);
                    both.retain(|element| b.contains(element));
                    both.iter().map(|(tensor, _)| model.tensors()[*tensor].element_bytes).sum()
                };
                let training = reshard.training(rank).unwrap();
                let gathered = reshard.gathered(rank).unwrap();
                let generation = reshard.generation(rank).unwrap();
                let resident_bytes = common(&gathered, &training);
                let outside_bytes = training.bytes() - common(&training, &generation);
                let cost = Cost {
                    received_bytes: gathered.bytes() - resident_bytes,
                    resident_bytes,
                    peak_bytes: gathered.bytes(),
                    generation_bytes: generation.bytes(),
                    redundant_bytes: match engine {
                        Engine::HybridFlow => 0,
                        _ => training.bytes(),
                    },
                    outside_bytes,
                };
                prop_assert_eq!(reshard.plan(rank).unwrap().cost, cost);
            }
        }
    }

    /// The way back: nothing is sent, and nothing was kept beside.
    #[test]
    fn training_shards_are_views_under_strided_grouping((layouts, model) in worlds()) {
        let reshard = reshard(&model, &layouts, Engine::HybridFlow);
        for rank in 0..layouts.training.len() {
            let (training, generation) =
                (reshard.training(rank).unwrap(), reshard.generation(rank).unwrap());
            let views = reshard.views(rank).unwrap();
            prop_assert_eq!(views.len(), training.as_slice().len());
            let mut sources = vec![Shards::default(); rank + 1];
            let mut buffers = vec![vec![]; rank + 1];
            buffers[rank] = numbered(&model, &generation);
            sources[rank] = generation;
            let back = carry_out(&views, rank, &sources, &buffers, &training);
            prop_assert_eq!(back, numbered(&model, &training));
        }
    }

    /// Ranks that give and take in the order of their lists, with no buffer but those that a plan
    /// counts, come to have what they generate with, and what they train on again.
    #[test]
    fn exchanges_fill_buffers_in_place((layouts, model) in worlds()) {
        for engine in Engine::ALL {
            let reshard = reshard(&model, &layouts, engine);
            let (training, kept) = trained(&reshard);
            let ranks = 0..training.len();
            let plans: Vec<Plan> = ranks.clone().map(|rank| reshard.plan(rank).unwrap()).collect();
            let lists: Vec<_> = ranks.clone().map(|rank| reshard.exchanges(rank).unwrap()).collect();
            let strided = engine.grouping() == Grouping::Strided;
            let mut buffers = vec![];
            for (rank, plan) in plans.iter().enumerate() {
                let mut own = plan.gather.clone();
                own.retain(|transfer| transfer.from == Origin::Own);
                let mut buffer = vec![];
                if strided {
                    buffer.clone_from(&kept[rank]);
                    spread(&mut buffer, &own, plan.cost.peak_bytes).unwrap();
                } else {
                    buffer.resize(plan.cost.peak_bytes, 0);
                    for transfer in own {
                        transfer.apply(&kept[rank], &mut buffer).unwrap();
                    }
                }
                buffers.push(buffer);
            }
            let mut done = vec![0; training.len()];
            let mut received = vec![0; training.len()];
            loop {
                let next = |rank: usize, done: &[usize]| lists[rank].get(done[rank]);
                let meets = |rank: usize| -> Option<usize> {
                    let peer = next(rank, &done)?.peer;
                    (next(peer, &done)?.peer == rank && rank < peer).then_some(rank)
                };
                let Some(rank) = ranks.clone().find_map(meets) else { break };
                let peer = lists[rank][done[rank]].peer;
                for (giver, taker) in [(rank, peer), (peer, rank)] {
                    let lent = if strided { &buffers[giver] } else { &kept[giver] };
                    let given = lists[giver][done[giver]].gives.iter().flat_map(Window::ranges);
                    let mut bytes = given.flat_map(|range| lent[range].to_vec()).collect::<Vec<_>>().into_iter();
                    for range in lists[taker][done[taker]].takes.iter().flat_map(Window::ranges) {
                        received[taker] += range.len();
                        buffers[taker][range].fill_with(|| bytes.next().unwrap());
                    }
                    prop_assert_eq!(bytes.next(), None);
                }
                done[rank] += 1;
                done[peer] += 1;
            }
            for (rank, mut buffer) in buffers.into_iter().enumerate() {
                prop_assert_eq!(done[rank], lists[rank].len(), "rank {} waits forever", rank);
                let Plan { slices, cost, .. } = &plans[rank];
                prop_assert_eq!(received[rank], cost.received_bytes);
                if !strided {
                    condense(&mut buffer, slices, cost.generation_bytes).unwrap();
                }
                prop_assert_eq!(&buffer, &numbered(&model, &reshard.generation(rank).unwrap()));
                if strided {
                    let views = reshard.views(rank).unwrap();
                    condense(&mut buffer, &views, training[rank].bytes()).unwrap();
                    prop_assert_eq!(&buffer, &kept[rank]);
                }
            }
        }
    }

    #[test]
    fn of_those_that_have_a_box_the_nearest_sends_it((layouts, model) in worlds()) {
        let training = &layouts.training;
        for engine in [Engine::HybridFlowV, Engine::HybridFlow] {
            let reshard = reshard(&model, &layouts, engine);
            for rank in 0..replica_ranks(training) {
                let apart = |peer: usize| {
                    let far = |dim| {
                        training.coordinate(peer, dim).abs_diff(training.coordinate(rank, dim))
                    };
                    (far(TP), far(PP), peer)
                };
                let group = reshard.gather_group(rank).unwrap();
                for transfer in reshard.plan(rank).unwrap().gather {
                    let Origin::Rank(from) = transfer.from else { continue };
                    let boxes_of = |peer| -> Vec<Region> {
                        let shards = reshard.training(peer).unwrap();
                        shards.of(transfer.tensor).iter().map(|s| s.region.clone()).collect()
                    };
                    let sent = boxes_of(from);
                    let same = group.iter().filter(|&&peer| boxes_of(peer) == sent);
                    prop_assert_eq!(same.copied().min_by_key(|&peer| apart(peer)), Some(from));
                }
            }
        }
    }
}

/// Tensor rank 1 of the second stage has what tensor rank 1 of the first needs whole.
#[test]
fn whole_tensors_come_from_the_same_tensor_rank() {
    let norm = |layer| TensorSpec {
        name: format!("norm.{layer}"),
        shape: vec![8],
        element_bytes: 2,
        cut: Cut::Whole,
        home: Home::Layer(layer),
    };
    let model = ModelSpec::new(2, vec![norm(0), norm(1)]).unwrap();
    let layouts = Layouts {
        training: layout(2, 4, 1),
        generation: generation(1, 1),
        usual: generation(1, 1),
    };
    for engine in [Engine::HybridFlowV, Engine::HybridFlow] {
        let reshard = reshard(&model, &layouts, engine);
        for rank in 0..8 {
            let plan = reshard.plan(rank).unwrap();
            let senders: Vec<_> = plan.gather.iter().map(|t| t.sender(rank)).collect();
            assert_eq!(senders, [rank % 4, rank % 4 + 4]);
        }
    }
}

#[test]
fn what_cannot_be_resharded_is_refused() {
    let cut = Cut::Split { dim: 0, unit: 2 };
    let tensor = TensorSpec {
        name: "wide".into(),
        shape: vec![8],
        element_bytes: 2,
        cut,
        home: Home::First,
    };
    let model = ModelSpec::new(2, vec![tensor]).unwrap();
    let check = |training: Mesh, generation: Mesh, engine, message: &str| {
        let refused = Reshard::new(model.clone(), &training, &generation, engine).unwrap_err();
        assert_eq!(refused.to_string(), message);
    };
    check(
        layout(1, 4, 1),
        generation(1, 3),
        Engine::HybridFlow,
        "tensor parallelism of 3 for generation does not divide the 4 of training, \
         {dp: 1, pp: 1, tp: 4}; choose a divisor",
    );
    check(
        layout(4, 1, 1),
        generation(1, 1),
        Engine::HybridFlowV,
        "2 layers cannot be spread over 4 stages; use at most 2",
    );
    // Flat ranges need no layers in training, but generation has stages.
    check(
        layout(1, 8, 1),
        generation(1, 8),
        Engine::DeepSpeedChat,
        "tensor `wide` has 4 units of 2 along dimension 0 and cannot be split over 8 tensor \
         ranks; use at most 4",
    );
    for engine in Engine::ALL {
        let fitting = Reshard::new(model.clone(), &layout(2, 2, 1), &generation(1, 2), engine);
        let refused = fitting.unwrap().plan(4).unwrap_err();
        assert_eq!(refused.to_string(), "no rank 4; the mesh has 4");
    }
}

#[test]
fn a_plan_can_be_sent() {
    let rows = Cut::Split { dim: 0, unit: 1 };
    let tensor = TensorSpec {
        name: "rows".into(),
        shape: vec![4],
        element_bytes: 2,
        cut: rows,
        home: Home::First,
    };
    let model = ModelSpec::new(1, vec![tensor]).unwrap();
    let reshard = Reshard::new(
        model,
        &layout(1, 2, 1),
        &generation(1, 1),
        Engine::HybridFlow,
    );
    let plan = reshard.unwrap().plan(0).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    let window = |shape: usize, offset: usize| {
        let region = [json!({"offset": offset, "length": 2})];
        json!({"start_bytes": 0, "element_bytes": 2, "shape": [shape], "region": region})
    };
    let sent = json!({
        "tensor": 0,
        "from": {"rank": 1},
        "source": window(2, 0),
        "target": window(4, 2),
    });
    assert_eq!(serde_json::to_value(&plan.gather[1]).unwrap(), sent);
}
