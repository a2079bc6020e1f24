//! The nodes of ranks that share a model, and what crosses from one to another, in sentences. Pure.

use std::collections::{BTreeMap, BTreeSet};

use odeon_mesh::{CP, DP, EP, FSDP, Mesh, PP, TP};

/// A sentence with what each node has of the ranks, and one about what crosses nodes. Each node is named once in the
/// first; nothing is told while the node of a rank is not known.
pub(super) fn told(mesh: &Mesh, nodes: &[String]) -> Vec<String> {
    if nodes.len() != mesh.len() || nodes.iter().any(String::is_empty) {
        return vec![];
    }
    let used: BTreeSet<&String> = nodes.iter().collect();
    if let (Some(one), 1) = (used.first(), used.len()) {
        return vec![format!(
            "{one} has all {} ranks: nothing crosses nodes",
            mesh.len()
        )];
    }
    let has = used.iter().map(|node| {
        let parts = parts_on(mesh, nodes, node);
        format!("{node} has {}", parts.join(", "))
    });
    let has = has.collect::<Vec<_>>().join("; ");
    let crossing = crossing(mesh, nodes);
    vec![has, crossing.join("; ")]
}

/// Coordinates of a rank before its place in a pipeline: which copy of the model it belongs to.
fn copy_of(mesh: &Mesh, rank: usize) -> usize {
    [DP, FSDP, EP].iter().fold(0, |copy, dim| {
        copy * mesh.size(dim) + mesh.coordinate(rank, dim)
    })
}

/// The parts of copies on a node: whole copies first, then stages of others.
fn parts_on(mesh: &Mesh, nodes: &[String], node: &str) -> Vec<String> {
    let of_stage = mesh.size(CP) * mesh.size(TP);
    // By copy and stage, the ranks here.
    let mut here: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for rank in (0..mesh.len()).filter(|rank| nodes[*rank] == node) {
        let stages = here.entry(copy_of(mesh, rank)).or_default();
        *stages.entry(mesh.coordinate(rank, PP)).or_default() += 1;
    }
    let is_whole = |stages: &BTreeMap<usize, usize>| {
        stages.len() == mesh.size(PP) && stages.values().all(|ranks| *ranks == of_stage)
    };
    let whole = here.iter().filter(|(_, stages)| is_whole(stages));
    let whole: Vec<usize> = whole.map(|(copy, _)| *copy).collect();
    let mut told = vec![];
    if !whole.is_empty() {
        told.push(numbers(unit(mesh), &whole));
    }
    for (copy, stages) in here.iter().filter(|(_, stages)| !is_whole(stages)) {
        let of = |is_full: bool| -> Vec<usize> {
            let stages = stages.iter();
            let wanted = stages.filter(|(_, ranks)| (**ranks == of_stage) == is_full);
            wanted.map(|(stage, _)| *stage).collect()
        };
        let (full, parts) = (of(true), of(false));
        let of_copy = format!(" of {} {copy}", unit(mesh));
        match mesh.size(PP) {
            1 => told.push(format!("a part{of_copy}")),
            _ => {
                if !full.is_empty() {
                    told.push(numbers("stage", &full) + &of_copy);
                }
                if !parts.is_empty() {
                    told.push(format!("parts of {}{of_copy}", numbers("stage", &parts)));
                }
            }
        }
    }
    told
}

/// The name of ranks with all layers between them.
fn unit(mesh: &Mesh) -> &'static str {
    match mesh.size(EP) {
        1 => "copy",
        _ => "pipeline",
    }
}

/// What goes from node to node: the links between stages one by one, the rest by dimension.
fn crossing(mesh: &Mesh, nodes: &[String]) -> Vec<String> {
    let mut links: BTreeMap<(usize, &str, &str), BTreeSet<usize>> = BTreeMap::new();
    for group in mesh.groups(&[PP]) {
        for pair in group.windows(2) {
            let [from, to] = [&*nodes[pair[0]], &*nodes[pair[1]]];
            if from != to {
                let stage = mesh.coordinate(pair[0], PP);
                let copies = links.entry((stage, from, to)).or_default();
                copies.insert(copy_of(mesh, pair[0]));
            }
        }
    }
    let links = links.into_iter().map(|((stage, from, to), copies)| {
        let copies: Vec<usize> = copies.into_iter().collect();
        let of = numbers(unit(mesh), &copies);
        format!(
            "stage {stage} -> {} of {of} crosses {from} -> {to}",
            stage + 1
        )
    });
    let others = [
        (TP, "sums of rows"),
        (CP, "rows of one sequence"),
        (EP, "rows for experts"),
        (FSDP, "shards"),
        (DP, "sums of gradients"),
    ];
    let others = others.into_iter().filter(|(dim, _)| {
        let groups = mesh.groups(&[*dim]);
        let is_apart = |group: &Vec<usize>| group.iter().any(|it| nodes[*it] != nodes[group[0]]);
        groups.iter().any(is_apart)
    });
    let others: Vec<String> = others
        .map(|(dim, what)| format!("{what} ({dim})"))
        .collect();
    let others = (!others.is_empty()).then(|| match others.split_last() {
        Some((last, before @ [_, ..])) => {
            format!("{} and {last} cross nodes", before.join(", "))
        }
        _ => format!("{} cross nodes", others.concat()),
    });
    links.chain(others).collect()
}

/// `stage 2`, `stages 0 and 1`, `copies 0 to 3`, `copies 0, 2 and 5`.
fn numbers(what: &str, all: &[usize]) -> String {
    let many = match what.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    };
    match all {
        [one] => format!("{what} {one}"),
        [first, second] => format!("{many} {first} and {second}"),
        [first, .., last] if last - first + 1 == all.len() => format!("{many} {first} to {last}"),
        [before @ .., last] => {
            let before: Vec<String> = before.iter().map(usize::to_string).collect();
            format!("{many} {} and {last}", before.join(", "))
        }
        [] => many,
    }
}

#[cfg(test)]
mod tests {
    use odeon_mesh::mesh;

    use super::*;

    fn of(mesh: &Mesh, nodes: &[&str]) -> Vec<String> {
        told(
            mesh,
            &nodes
                .iter()
                .map(|node| (*node).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    /// SEMANTICS 155.
    #[test]
    fn stages_are_told_by_node_with_what_crosses() {
        let mesh = mesh! { dp: 2, pp: 3 };
        assert_eq!(
            of(&mesh, &["n1", "n1", "n2", "n3", "n3", "n3"]),
            [
                "n1 has stages 0 and 1 of copy 0; n2 has stage 2 of copy 0; n3 has copy 1",
                "stage 1 -> 2 of copy 0 crosses n1 -> n2; sums of gradients (dp) cross nodes"
            ]
        );
        assert_eq!(
            of(&mesh, &["n1"; 6]),
            ["n1 has all 6 ranks: nothing crosses nodes"]
        );
        assert_eq!(of(&mesh, &["n1", "n1", "", "n1", "n1", "n1"]), [""; 0]);
        assert_eq!(of(&mesh, &["n1"; 5]), [""; 0]);
    }

    #[test]
    fn copies_without_stages_and_stages_in_parts_are_told_as_they_are() {
        let whole = mesh! { dp: 4, tp: 2 };
        assert_eq!(
            of(&whole, &["a", "a", "a", "a", "a", "a", "b", "b"]),
            [
                "a has copies 0 to 2; b has copy 3",
                "sums of gradients (dp) cross nodes"
            ]
        );
        let parts = mesh! { dp: 1, ep: 2, pp: 2, cp: 2 };
        assert_eq!(
            of(&parts, &["a", "a", "a", "b", "b", "b", "b", "b"]),
            [
                "a has stage 0 of pipeline 0, parts of stage 1 of pipeline 0; \
                 b has pipeline 1, parts of stage 1 of pipeline 0",
                "stage 0 -> 1 of pipeline 0 crosses a -> b; \
                 rows of one sequence (cp) and rows for experts (ep) cross nodes"
            ]
        );
    }
}
