//! Which bundles of a gang talk to each other, and how much.

use odeon_mesh::Mesh;
use serde::{Deserialize, Serialize};

/// A bundle of a gang that talks to another one, or to somebody on a node.
///
/// A gang with talks is placed so that the sum of weights times distances is small. The distance of two
/// bundles is 0 on one node, 1 in one rack, 2 in one zone and 3 elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Talk {
    /// The bundle, by its number in the gang.
    pub bundle: u32,
    /// The other end.
    pub with: TalkEnd,
    /// Bytes that they exchange, in any unit that is the same for all talks of the gang.
    pub weight: u32,
}

/// The other end of a [`Talk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TalkEnd {
    /// A bundle of the same gang.
    Bundle(u32),
    /// Somebody who is on the node with this name already.
    Node(String),
}

/// The order in which the members of a group along a dimension of a mesh talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TalkOrder {
    /// Each with the next one, as stages of a pipeline.
    Line,
    /// Each with the next one and the last with the first, as in a ring of sums.
    Ring,
    /// Each with each, as in exchanges of rows.
    All,
}

impl Talk {
    /// Two bundles.
    #[must_use]
    pub const fn between(bundle: u32, other: u32, weight: u32) -> Self {
        Self {
            bundle,
            with: TalkEnd::Bundle(other),
            weight,
        }
    }

    /// The talks of ranks that differ along a dimension alone; none along one that the mesh has not.
    #[must_use]
    pub fn along(mesh: &Mesh, dim: &str, order: TalkOrder, weight: u32) -> Vec<Self> {
        let mut talks = vec![];
        for group in mesh.groups(&[dim]) {
            // No mesh of a gang has more ranks than its size says, which is of this type.
            let talk = |a: usize, b: usize| Self::between(group[a] as u32, group[b] as u32, weight);
            let size = group.len();
            match order {
                TalkOrder::All => {
                    talks.extend((0..size).flat_map(|a| (a + 1..size).map(move |b| talk(a, b))));
                }
                TalkOrder::Line | TalkOrder::Ring => {
                    talks.extend((1..size).map(|b| talk(b - 1, b)));
                    // Two are a ring already.
                    if order == TalkOrder::Ring && size > 2 {
                        talks.push(talk(size - 1, 0));
                    }
                }
            }
        }
        talks
    }
}

#[cfg(test)]
mod tests {
    use odeon_mesh::mesh;

    use super::*;

    fn pairs(order: TalkOrder, dim: &str) -> Vec<(u32, u32)> {
        let mesh = mesh! { dp: 2, pp: 3 };
        let talks = Talk::along(&mesh, dim, order, 4);
        let ends = talks.into_iter().map(|talk| match talk.with {
            TalkEnd::Bundle(other) => (talk.bundle, other),
            TalkEnd::Node(node) => panic!("{node}"),
        });
        ends.collect()
    }

    #[test]
    fn ranks_along_a_dimension_talk_in_a_line_a_ring_or_each_with_each() {
        use TalkOrder::{All, Line, Ring};
        assert_eq!(pairs(Line, "pp"), [(0, 1), (1, 2), (3, 4), (4, 5)]);
        let ring = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)];
        assert_eq!(pairs(Ring, "pp"), ring);
        let all = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)];
        assert_eq!(pairs(All, "pp"), all);
        assert_eq!(pairs(Ring, "dp"), [(0, 3), (1, 4), (2, 5)]);
        assert_eq!(pairs(All, "tp"), []);
    }
}
