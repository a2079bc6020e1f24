//! The picture of a node that does not vote: the nodes, and who votes. The node hears of what has
//! changed since it looked last, so that a thousand nodes may look each second.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::fact::NamespaceQuota;
use crate::resources::Reservation;
use crate::tables::{NodeRow, Tables};

/// The knowledge of a node that is no voter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    pub(crate) seen: Seen,
    pub(crate) nodes: BTreeMap<String, NodeRow>,
    pub(crate) namespaces: BTreeMap<String, NamespaceQuota>,
    pub(crate) reserved: Vec<(String, Reservation)>,
    pub(crate) revoked: BTreeSet<String>,
}

/// Which picture it is: two that say the same here are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// [`Tables::nodes_version`].
    pub(crate) nodes: u64,
    /// The names of the voters.
    pub(crate) voters: Vec<String>,
    /// The one that leads them.
    pub(crate) leader: Option<String>,
}

/// The changes since a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Changes {
    pub(super) seen: Seen,
    /// The nodes that have changed; all that there are, if `whole`.
    pub(super) nodes: Vec<NodeRow>,
    pub(super) whole: bool,
    pub(super) namespaces: BTreeMap<String, NamespaceQuota>,
    /// The reservations of tries, by their tags.
    #[serde(default)]
    pub(super) reserved: Vec<(String, Reservation)>,
    #[serde(default)]
    pub(super) revoked: BTreeSet<String>,
    /// Set where it holds though more was known: the leader has lost that with the other voters.
    pub(super) anew: bool,
}

impl Changes {
    /// The part of `tables` that is new to somebody who has seen `known`.
    pub(super) fn of(tables: &Tables, known: &Seen, seen: Seen, leads: bool) -> Option<Self> {
        let anew = seen.nodes < known.nodes;
        // Whoever knows of more has it from a voter that is ahead, unless nobody is.
        if seen == *known || anew && !leads {
            return None;
        }
        let whole = anew || known.nodes == 0 || known.nodes < tables.forgot_version;
        let rows = tables.nodes.values();
        let changed = rows.filter(|row| whole || row.version > known.nodes);
        Some(Self {
            seen,
            nodes: changed.cloned().collect(),
            whole,
            namespaces: tables.namespaces.clone(),
            reserved: tables.reserved(),
            revoked: tables.revoked.clone(),
            anew,
        })
    }
}

impl Picture {
    /// One that says who votes, and nothing else yet.
    pub(crate) fn of_voters(voters: Vec<String>) -> Self {
        let mut picture = Self::default();
        picture.seen.voters = voters;
        picture
    }

    pub(super) fn learn(&mut self, news: Changes) {
        if news.whole {
            self.nodes.clear();
        }
        let rows = news.nodes.into_iter();
        self.nodes
            .extend(rows.map(|row| (row.spec.name.clone(), row)));
        self.seen = news.seen;
        self.namespaces = news.namespaces;
        self.reserved = news.reserved;
        self.revoked = news.revoked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Command, Fact, NodeSpec, Writer};
    use crate::unix::Unix;

    fn say(tables: &mut Tables, writer: Writer, fact: Fact) {
        let id = tables.version + 1;
        let at = Unix(id);
        let said = tables.apply(Command {
            id,
            at,
            writer,
            fact,
        });
        said.expect("it can be said");
    }

    fn up(tables: &mut Tables, name: &str) {
        let spec = NodeSpec {
            name: name.to_owned(),
            boot: 1,
            address: String::new(),
            release: String::new(),
            cpus: 1,
            memory: 1,
            devices: vec![],
            votes: false,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        };
        say(tables, Writer::Node(name.to_owned()), Fact::NodeUp(spec));
    }

    fn seen(tables: &Tables) -> Seen {
        Seen {
            nodes: tables.nodes_version,
            voters: vec!["n1".to_owned()],
            leader: Some("n1".to_owned()),
        }
    }

    /// Looks, and gives how many rows came.
    fn look(picture: &mut Picture, tables: &Tables) -> Option<usize> {
        let changes = Changes::of(tables, &picture.seen, seen(tables), true)?;
        let rows = changes.nodes.len();
        picture.learn(changes);
        assert_eq!(picture.nodes, tables.nodes);
        assert_eq!(picture.namespaces, tables.namespaces);
        assert_eq!(picture.revoked, tables.revoked);
        Some(rows)
    }

    #[test]
    fn who_looks_again_hears_of_what_has_changed_alone() {
        let (mut tables, mut picture) = (Tables::default(), Picture::default());
        for name in ["n1", "n2", "n3"] {
            up(&mut tables, name);
        }
        assert_eq!(look(&mut picture, &tables), Some(3));
        assert_eq!(look(&mut picture, &tables), None);
        // What no node has to know changes nothing.
        let (id, by) = ("t1".to_owned(), "ann".to_owned());
        let (uses, until) = (1, Unix(100));
        let fact = Fact::TokenMade {
            id,
            uses,
            until,
            by: by.clone(),
        };
        say(&mut tables, Writer::Leader, fact);
        assert_eq!(look(&mut picture, &tables), None);
        let (name, quota) = ("lab".to_owned(), Some(NamespaceQuota::running(3)));
        let fact = Fact::NamespaceSet {
            name,
            quota,
            by: by.clone(),
        };
        say(&mut tables, Writer::Leader, fact);
        assert_eq!(look(&mut picture, &tables), Some(0));
        let node = "n2".to_owned();
        let fact = Fact::NodeDrained {
            node: node.clone(),
            drained: true,
            by,
        };
        say(&mut tables, Writer::Leader, fact);
        assert_eq!(look(&mut picture, &tables), Some(1));
        let left = Fact::NodeLeft {
            node: node.clone(),
            boot: 1,
        };
        say(&mut tables, Writer::Node(node.clone()), left);
        assert_eq!(look(&mut picture, &tables), Some(1));
        // One that is forgotten goes, so all that are left come.
        say(&mut tables, Writer::Leader, Fact::NodeForgotten { node });
        assert_eq!(look(&mut picture, &tables), Some(2));
        up(&mut tables, "n4");
        assert_eq!(look(&mut picture, &tables), Some(1));
    }

    #[test]
    fn a_voter_that_is_behind_takes_nothing_back_unless_it_leads() {
        let (mut ahead, mut picture) = (Tables::default(), Picture::default());
        up(&mut ahead, "n1");
        let behind = ahead.clone();
        up(&mut ahead, "n2");
        look(&mut picture, &ahead);
        assert_eq!(
            Changes::of(&behind, &picture.seen, seen(&behind), false),
            None
        );
        // It goes on alone, and what the others knew is lost.
        assert_eq!(look(&mut picture, &behind), Some(1));
    }
}
