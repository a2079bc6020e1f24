//! From any placement to any other.

use super::*;

/// The shards of every rank of a layout.
fn placed(model: &ModelSpec, mesh: &Mesh) -> Vec<Shards> {
    let ranks = 0..mesh.len();
    ranks
        .map(|rank| model.shards_on(mesh, rank).unwrap())
        .collect()
}

/// The shards of so many ranks, of a model that is cut anywhere.
fn flat(model: &ModelSpec, ranks: usize) -> Vec<Shards> {
    let part = |rank| Part::new(rank, ranks).unwrap();
    (0..ranks).map(|rank| model.flat(part(rank))).collect()
}

/// Carries out all transfers, each target in a buffer of its own.
fn carried(
    transfers: &Transfers,
    source: &[Shards],
    buffers: &[Vec<u8>],
    target: &[Shards],
) -> Vec<Vec<u8>> {
    let ranks = 0..target.len();
    ranks
        .map(|rank| carry_out(transfers.of(rank), rank, source, buffers, &target[rank]))
        .collect()
}

fn filled(model: &ModelSpec, shards: &[Shards]) -> Vec<Vec<u8>> {
    shards
        .iter()
        .map(|shards| numbered(model, shards))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn there_and_back_is_where_it_was(
        (a, b, model) in (trainings(), trainings()).prop_flat_map(|(a, b)| {
            let model = models(a.size(PP).max(b.size(PP)), a.size(TP).max(b.size(TP)));
            (Just(a), Just(b), model)
        }),
        flats in any::<[bool; 2]>(),
    ) {
        let [mut a, mut b] = [(a, flats[0]), (b, flats[1])].map(|(layout, is_flat)| {
            if is_flat { flat(&model, layout.len()) } else { placed(&model, &layout) }
        });
        // Ranks come or leave.
        let ranks = a.len().max(b.len());
        a.resize(ranks, Shards::default());
        b.resize(ranks, Shards::default());
        let before = filled(&model, &a);

        let there = between(&model, &a, &b).unwrap();
        let after = carried(&there, &a, &before, &b);
        prop_assert_eq!(&after, &filled(&model, &b));
        let back = between(&model, &b, &a).unwrap();
        prop_assert_eq!(carried(&back, &b, &after, &a), before);

        let received: usize = (0..ranks).map(|rank| there.received_bytes(rank)).sum();
        prop_assert_eq!(received, there.sent_bytes().iter().sum::<usize>());
        let needed = |rank: usize| b[rank].bytes() - b[rank].common_bytes(&a[rank]);
        prop_assert_eq!(received, (0..ranks).map(needed).sum::<usize>());
    }

    #[test]
    fn nothing_moves_where_nothing_changes((layouts, model) in worlds()) {
        let shards = placed(&model, &layouts.training);
        let transfers = between(&model, &shards, &shards).unwrap();
        prop_assert!(transfers.sent_bytes().iter().all(|&bytes| bytes == 0));
    }
}

/// Two small tensors, and boxes of them, which may overlap, for three ranks before and after.
fn tiny() -> impl Strategy<Value = (ModelSpec, Vec<Shards>, Vec<Shards>)> {
    let tensor = |(name, shape): (&str, &[usize])| TensorSpec {
        name: name.into(),
        shape: shape.to_vec(),
        element_bytes: 2,
        cut: Cut::Whole,
        home: Home::First,
    };
    let tensors: [(&str, &[usize]); 2] = [("a", &[3, 4]), ("b", &[5])];
    let model = ModelSpec::new(1, tensors.map(tensor).to_vec()).unwrap();
    let boxes = (0..2_usize, any::<[u8; 4]>()).prop_map(move |(at, draws)| {
        let (_, shape) = tensors[at];
        let pairs = shape.iter().zip(draws.chunks(2));
        let spans = pairs.map(|(&extent, draw)| {
            let offset = usize::from(draw[0]) % extent;
            let length = 1 + usize::from(draw[1]) % (extent - offset);
            // Some that several ranks have, and some of any size.
            match draw[0] % 4 {
                0 => Span::from(0..extent),
                1 => Span::from(0..2),
                2 => Span::from(2..extent),
                _ => Span { offset, length },
            }
        });
        (at, Region::new(spans.collect()))
    });
    let ranks = prop::collection::vec(prop::collection::vec(boxes, 0..5), 3);
    (ranks.clone(), ranks).prop_map(move |(source, target)| {
        let place = |boxes| model.place(boxes).unwrap();
        let lists = [source, target].map(|ranks| ranks.into_iter().map(place).collect());
        let [source, target] = lists;
        (model.clone(), source, target)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The oracle looks at each element alone, and counts what each rank has sent.
    #[test]
    fn small_cases_are_as_by_brute_force((model, source, target) in tiny()) {
        let held: Vec<_> = source.iter().map(|shards| elements(&model, shards)).collect();
        let somebody = |element: (usize, usize)| held.iter().any(|held| held.contains(&element));
        let wanted = target.iter().map(|shards| elements(&model, shards));
        let possible = wanted.flatten().all(somebody);
        let transfers = between(&model, &source, &target);
        prop_assert_eq!(transfers.is_ok(), possible);
        let Ok(transfers) = transfers else {
            let message = transfers.unwrap_err().to_string();
            prop_assert!(message.starts_with("nobody has ["), "{}", message);
            return Ok(());
        };
        prop_assert_eq!(&between(&model, &source, &target).unwrap(), &transfers);
        let after = carried(&transfers, &source, &filled(&model, &source), &target);
        prop_assert_eq!(after, filled(&model, &target));

        let mut sent = vec![0; source.len()];
        for rank in 0..target.len() {
            let wanted = elements(&model, &target[rank]);
            let others = wanted.iter().filter(|element| !held[rank].contains(element));
            prop_assert_eq!(transfers.received_bytes(rank), 2 * others.count());
            for transfer in transfers.of(rank) {
                let Origin::Rank(from) = transfer.from else { continue };
                let at = |shard: &&Shard| shard.start_bytes == transfer.source.start_bytes();
                let held = source[from].of(transfer.tensor).iter().find(at).unwrap();
                let same = (0..source.len()).filter(|&peer| {
                    source[peer].of(transfer.tensor).iter().any(|s| s.region == held.region)
                });
                let least = same.min_by_key(|&peer| (sent[peer], peer.abs_diff(rank), peer));
                prop_assert_eq!(least, Some(from));
                sent[from] += transfer.bytes();
            }
        }
        prop_assert_eq!(sent, transfers.sent_bytes());
    }

    /// Replicas share the work: no two are apart by more than the largest piece.
    #[test]
    fn replicas_send_alike(replicas in 1..9_usize, newcomers in 1..9_usize, model in models(1, 1)) {
        let nothing = || vec![Shards::default(); replicas];
        let source = vec![model.whole(); replicas];
        let target = [nothing(), vec![model.whole(); newcomers]].concat();
        let transfers = between(&model, &source, &target).unwrap();
        let sent = &transfers.sent_bytes()[..replicas];
        let largest = model.tensors().iter().map(TensorSpec::bytes).max().unwrap();
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        prop_assert!(most - least <= largest, "{:?}", sent);
        prop_assert_eq!(sent.iter().sum::<usize>(), newcomers * model.bytes());
    }
}

#[test]
fn what_nobody_has_is_named() {
    let rows = TensorSpec {
        name: "rows".into(),
        shape: vec![8, 2],
        element_bytes: 2,
        cut: Cut::Split { dim: 0, unit: 1 },
        home: Home::First,
    };
    let model = ModelSpec::new(1, vec![rows]).unwrap();
    let mut source = placed(&model, &layout(1, 4, 1));
    let target = placed(&model, &layout(1, 2, 2));
    assert!(between(&model, &source, &target).is_ok());
    source[1] = Shards::default();
    let refused = between(&model, &source, &target).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "nobody has [2:4, 0:2] of tensor `rows`, which rank 0 needs"
    );
    // Fewer ranks than before have nothing to do with it.
    let fewer = between(&model, &source[2..], &[]).unwrap();
    assert_eq!(
        (fewer.ranks(), fewer.of(1), fewer.of(9)),
        (2, &[][..], &[][..])
    );
}

#[test]
fn shards_of_another_model_are_refused() {
    let model = |element_bytes| {
        let tensor = TensorSpec {
            name: "a".into(),
            shape: vec![8],
            element_bytes,
            cut: Cut::Whole,
            home: Home::First,
        };
        ModelSpec::new(1, vec![tensor]).unwrap()
    };
    let (two, four) = (model(2), model(4));
    let refused = between(&two, &[two.whole()], &[two.whole(), four.whole()]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the target shards of rank 1 are not of this model"
    );
    let text = serde_json::to_string(&two.whole()).unwrap();
    let moved = text.replace(r#""start_bytes":0"#, r#""start_bytes":1"#);
    let moved: Shards = serde_json::from_str(&moved).unwrap();
    let refused = between(&two, &[moved], &[]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the source shards of rank 0 are not of this model"
    );
}
