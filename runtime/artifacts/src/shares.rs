//! Shares of pieces that several nodes bring at the same time: who brings which from where all are.

use crate::{Digest, Piece};

/// Nodes that bring the same pieces at the same time. Each brings its share from whoever had them before, and the rest
/// from the others, so that nobody has to give all pieces to all nodes. Pure.
///
/// The node of a piece is the one with the highest hash of both (rendezvous hashing, Thaler and Ravishankar, IEEE/ACM
/// Transactions on Networking 6, 1998): all nodes know it without asking, and when one is missing only its own pieces
/// go to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    own: String,
    /// The others, in order.
    others: Vec<String>,
}

impl Shares {
    /// Those of this node and others.
    #[must_use]
    pub fn new(own: &str, all: impl IntoIterator<Item = String>) -> Self {
        let mut others: Vec<String> = all.into_iter().filter(|it| it != own).collect();
        others.sort_unstable();
        others.dedup();
        Self {
            own: own.to_owned(),
            others,
        }
    }

    /// Returns true where nobody else brings the same.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// Those of the same nodes but for one, which has the pieces already.
    #[must_use]
    pub fn without(&self, node: &str) -> Self {
        let others = self.others.iter().filter(|it| *it != node);
        Self::new(&self.own, others.cloned())
    }

    /// The node that brings a piece from where it was before; `None` for this one.
    #[must_use]
    pub fn owner(&self, piece: &Digest) -> Option<&str> {
        let weight = |node: &str| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(piece.as_bytes()).update(node.as_bytes());
            *hasher.finalize().as_bytes()
        };
        let others = self.others.iter().map(|it| (weight(it), Some(it.as_str())));
        let own = (weight(&self.own), None);
        others
            .fold(own, |most, it| if it.0 > most.0 { it } else { most })
            .1
    }

    /// Cuts pieces into the share of this node and those of each other one that has some, in their order.
    #[must_use]
    pub fn split<'a>(&'a self, pieces: &[Piece]) -> (Vec<Piece>, Vec<(&'a str, Vec<Piece>)>) {
        let (mut own, mut others) = (vec![], Vec::<(&str, Vec<Piece>)>::new());
        for piece in pieces {
            let Some(owner) = self.owner(&piece.digest) else {
                own.push(*piece);
                continue;
            };
            match others.iter_mut().find(|(node, _)| *node == owner) {
                Some((_, share)) => share.push(*piece),
                None => others.push((owner, vec![*piece])),
            }
        }
        (own, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(count: u64) -> Vec<Piece> {
        (0..count).map(|n| Piece::of(&n.to_le_bytes())).collect()
    }

    #[test]
    fn each_piece_has_one_node_and_all_agree_on_it() {
        let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
        let pieces = pieces(800);
        let mut shares = 0;
        for own in &names {
            let all = Shares::new(own, names.clone());
            let (mine, others) = all.split(&pieces);
            assert!(mine.iter().all(|it| {
                let told = names.iter().filter(|it| *it != own);
                let told = told.map(|other| Shares::new(other, names.clone()));
                told.into_iter()
                    .all(|other| other.owner(&it.digest) == Some(own))
            }));
            let of_others: usize = others.iter().map(|(_, share)| share.len()).sum();
            assert_eq!(mine.len() + of_others, pieces.len());
            assert!((60..140).contains(&mine.len()), "{}", mine.len());
            shares += mine.len();
        }
        assert_eq!(shares, pieces.len());
    }

    #[test]
    fn without_a_node_only_its_pieces_go_to_others() {
        let all = Shares::new("a", ["b", "c"].map(str::to_owned));
        let fewer = Shares::new("a", ["b", "a", "b"].map(str::to_owned));
        assert_eq!(all.without("c"), fewer);
        for piece in pieces(100) {
            let before = all.owner(&piece.digest);
            if before != Some("c") {
                assert_eq!(fewer.owner(&piece.digest), before);
            }
        }
        assert!(Shares::new("a", []).is_alone());
        assert_eq!(Shares::new("a", []).owner(&pieces(1)[0].digest), None);
    }
}
