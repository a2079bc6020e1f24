//! Tests of meshes, over many of them.

use proptest::prelude::*;

use crate::mesh::Parts;
use crate::{At, Coordinate, Dim, Mesh, MeshError, Rank, at, mesh};

const NAMES: [&str; 4] = ["dp", "pp", "tp", "ep"];

fn any_mesh() -> impl Strategy<Value = Mesh> {
    prop::collection::vec(1usize..6, 0..=4)
        .prop_map(|sizes| Mesh::new(NAMES.into_iter().zip(sizes)).unwrap())
}

proptest! {
    #[test]
    fn ranks_and_coordinates_are_a_bijection(mesh in any_mesh()) {
        let mut seen = std::collections::BTreeSet::new();
        for rank in mesh.ranks() {
            let coordinates = rank.coordinates();
            prop_assert_eq!(mesh.rank_at(&coordinates), Some(rank.clone()));
            for (dim, at) in mesh.dims().iter().zip(&coordinates) {
                prop_assert!(*at < dim.size);
                prop_assert_eq!(rank.coordinate(&dim.name), Some(*at));
            }
            // Row-major: coordinates grow in the order of ranks.
            prop_assert!(seen.last().is_none_or(|last| *last < coordinates));
            seen.insert(coordinates);
        }
        prop_assert_eq!(seen.len(), mesh.len());
        prop_assert!(mesh.rank(mesh.len()).is_none());
        let outside: Vec<_> = mesh.dims().iter().map(|dim| dim.size).collect();
        prop_assert!(outside.is_empty() || mesh.rank_at(&outside).is_none());
    }

    #[test]
    fn slices_along_a_dimension_partition_the_ranks(
        mesh in any_mesh(), pick in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!mesh.dims().is_empty());
        let dim = mesh.dims()[pick.index(mesh.dims().len())].clone();
        let mut seen = vec![];
        for at in 0..dim.size {
            let (slice, ranks) = mesh.slice(&At::new([(&dim.name, at.into())])).unwrap();
            prop_assert_eq!(slice.len(), ranks.len());
            prop_assert_eq!(slice.len() * dim.size, mesh.len());
            prop_assert!(ranks.is_sorted());
            for (inner, outer) in slice.ranks().zip(&ranks) {
                let outer = mesh.rank(*outer).unwrap();
                // A rank of a slice has the coordinates it had, the fixed one too.
                for dim in mesh.dims() {
                    prop_assert_eq!(inner.coordinate(&dim.name), outer.coordinate(&dim.name));
                }
            }
            let from_end = at as i64 - dim.size as i64;
            let negative = At::new([(&dim.name, Coordinate(from_end))]);
            prop_assert_eq!(mesh.slice(&negative).unwrap(), (slice, ranks.clone()));
            seen.extend(ranks);
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..mesh.len()).collect::<Vec<_>>());
    }

    #[test]
    fn slicing_twice_is_slicing_once(mesh in any_mesh(), picks in any::<[prop::sample::Index; 4]>()) {
        prop_assume!(mesh.dims().len() >= 2);
        let dims = mesh.dims();
        let (a, b) = (&dims[0], &dims[dims.len() - 1]);
        let (i, j) = (picks[0].index(a.size), picks[1].index(b.size));
        let (once, ranks) =
            mesh.slice(&At::new([(&a.name, i.into()), (&b.name, j.into())])).unwrap();
        let (first, outer) = mesh.slice(&At::new([(&a.name, i.into())])).unwrap();
        let (second, inner) = first.slice(&At::new([(&b.name, j.into())])).unwrap();
        prop_assert_eq!(once, second);
        prop_assert_eq!(ranks, inner.into_iter().map(|rank| outer[rank]).collect::<Vec<_>>());
    }

    #[test]
    fn a_mesh_and_its_ranks_travel(mesh in any_mesh(), pick in any::<prop::sample::Index>()) {
        let rank = mesh.rank(pick.index(mesh.len())).unwrap();
        let text = serde_json::to_string(&(&mesh, &rank)).unwrap();
        prop_assert_eq!(serde_json::from_str::<(Mesh, Rank)>(&text).unwrap(), (mesh.clone(), rank));
        prop_assert_eq!(mesh.to_string().parse::<Mesh>().unwrap(), mesh);
    }
}

#[test]
fn bad_meshes_and_slices_are_refused() {
    let check = |dims: &[(&str, usize)], expect: MeshError| {
        assert_eq!(Mesh::new(dims.iter().copied()), Err(expect));
    };
    check(&[("dp", 0)], MeshError::EmptyDim("dp".to_owned()));
    check(
        &[("dp", 2), ("dp", 3)],
        MeshError::RepeatedDim("dp".to_owned()),
    );
    check(&[("a", usize::MAX), ("b", 2)], MeshError::TooLarge);

    let mesh = mesh! { dp: 2, tp: 4 };
    assert_eq!(
        mesh.slice(&at!(pp = 0)).unwrap_err().to_string(),
        "no dimension `pp`; the mesh is {dp: 2, tp: 4}"
    );
    for at in [at!(dp = 2), at!(dp = -3), at!(dp = usize::MAX)] {
        assert!(matches!(
            mesh.slice(&at),
            Err(MeshError::NoCoordinate { size: 2, .. })
        ));
    }
    assert_eq!(
        mesh.slice(&at!(dp = 0, dp = 1)),
        Err(MeshError::RepeatedDim("dp".to_owned()))
    );
}

#[test]
fn a_text_that_is_no_mesh_is_not_read() {
    for text in ["", "dp: 2", "{dp}", "{dp: x}", "{dp: 2,tp: 2}"] {
        let unread = MeshError::Unread(text.to_owned());
        assert_eq!(text.parse::<Mesh>(), Err(unread), "{text}");
    }
    let empty = MeshError::EmptyDim("dp".to_owned());
    assert_eq!("{dp: 0}".parse::<Mesh>(), Err(empty));
}

#[test]
fn a_hostile_mesh_or_rank_is_not_decoded() {
    let empty = Parts {
        dims: vec![Dim {
            name: "dp".to_owned(),
            size: 0,
        }],
        fixed: vec![],
    };
    assert!(serde_json::from_str::<Mesh>(&serde_json::to_string(&empty).unwrap()).is_err());
    let outside = (mesh! { dp: 2 }, 2usize);
    assert!(serde_json::from_str::<Rank>(&serde_json::to_string(&outside).unwrap()).is_err());
}

#[test]
fn a_rank_names_its_coordinates() {
    let mesh = mesh! { dp: 2, tp: 4 };
    assert_eq!(mesh.rank(6).unwrap().to_string(), "rank 6 (dp=1, tp=2)");
    let (slice, _) = mesh.slice(&at!(dp = 1)).unwrap();
    assert_eq!(slice.rank(2).unwrap().to_string(), "rank 2 (dp=1, tp=2)");
    assert_eq!(mesh! {}.rank(0).unwrap().to_string(), "rank 0");
}

proptest! {
    /// Groups along some dimensions are the sets of ranks that agree on all others.
    #[test]
    fn groups_are_those_that_agree_on_the_rest(mesh in any_mesh(), chosen in any::<[bool; 4]>()) {
        let free: Vec<&str> = NAMES.into_iter().zip(chosen).filter(|it| it.1).map(|it| it.0).collect();
        let groups = mesh.groups(&free);
        let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..mesh.len()).collect::<Vec<_>>());
        for group in &groups {
            prop_assert!(group.is_sorted());
            for rank in group {
                prop_assert_eq!(&mesh.group(*rank, &free).unwrap(), group);
                for dim in NAMES.into_iter().filter(|dim| !free.contains(dim)) {
                    prop_assert_eq!(mesh.coordinate(*rank, dim), mesh.coordinate(group[0], dim));
                }
            }
            let size: usize = free.iter().map(|dim| mesh.size(dim)).product();
            prop_assert_eq!(group.len(), size);
        }
    }

    /// A rank that moves along a dimension keeps its other coordinates.
    #[test]
    fn a_moved_rank_differs_along_one_dimension(
        mesh in any_mesh(), pick in any::<prop::sample::Index>(), to in 0_usize..8,
    ) {
        let rank = pick.index(mesh.len());
        for moving in NAMES {
            let there = mesh.moved(rank, moving, to);
            prop_assert_eq!(mesh.coordinate(there, moving), to.min(mesh.size(moving) - 1));
            for dim in NAMES.into_iter().filter(|dim| *dim != moving) {
                prop_assert_eq!(mesh.coordinate(there, dim), mesh.coordinate(rank, dim));
            }
        }
    }

    /// Who joins dimensions and splits them again has the mesh that there was.
    #[test]
    fn splitting_undoes_flattening(mesh in any_mesh()) {
        prop_assume!(mesh.dims().len() >= 2);
        let (a, b) = (mesh.dims()[0].clone(), mesh.dims()[1].clone());
        let flat = mesh.flatten(&[&a.name, &b.name], "both").unwrap();
        prop_assert_eq!(flat.len(), mesh.len());
        for rank in 0..mesh.len() {
            let both = mesh.coordinate(rank, &a.name) * b.size + mesh.coordinate(rank, &b.name);
            prop_assert_eq!(flat.coordinate(rank, "both"), both);
        }
        let again = flat.split("both", &[(&a.name, a.size), (&b.name, b.size)]).unwrap();
        prop_assert_eq!(again, mesh);
    }
}

#[test]
fn what_cannot_be_joined_or_split_is_named() {
    let mesh = mesh! { dp: 2, pp: 2, tp: 4 };
    let said = |made: Result<Mesh, MeshError>| made.unwrap_err().to_string();
    assert_eq!(
        said(mesh.flatten(&["dp", "tp"], "x")),
        "dimensions dp, tp do not lie side by side in {dp: 2, pp: 2, tp: 4}: join neighbours, in their order"
    );
    assert_eq!(
        said(mesh.flatten(&["dp", "pp"], "tp")),
        "dimension `tp` is named twice"
    );
    assert_eq!(
        said(mesh.split("tp", &[("a", 2), ("b", 3)])),
        "dimension `tp` of size 4 cannot be split into a: 2, b: 3, which are 6"
    );
    assert_eq!(
        said(mesh.split("ep", &[("a", 1)])),
        "no dimension `ep`; the mesh is {dp: 2, pp: 2, tp: 4}"
    );
    assert_eq!(
        mesh.group(16, &["dp"]).unwrap_err().to_string(),
        "no rank 16; the mesh has 16"
    );
}
