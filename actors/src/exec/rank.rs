//! Ranks and their places: the variables by which programs for `torchrun` find each other. Pure,
//! but for [`Place::here`].

use odeon::Shape;
use serde::{Deserialize, Serialize};

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Place {
    /// Its node's name.
    pub node: String,
    /// The host by which other nodes reach that.
    pub address: String,
    /// The devices that it was granted, as CUDA names them.
    pub devices: Vec<String>,
}

impl Place {
    /// Of this process, from what its node has told it.
    pub(super) fn here() -> Self {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let devices = var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let devices = devices.split(',').filter(|device| !device.is_empty());
        Self {
            node: var("ODEON_NODE").unwrap_or_else(|| LOCAL.to_owned()),
            address: var("ODEON_NODE_ADDRESS").unwrap_or_else(|| LOOPBACK.to_owned()),
            devices: devices.map(str::to_owned).collect(),
        }
    }
}

/// Where all ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// The host by which every rank reaches rank 0.
    pub address: String,
    /// A free port there.
    pub port: u16,
}

/// One life of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The same for all lives.
    pub run_id: String,
    /// Number of times that all ranks were started again.
    pub restarts: u32,
    /// The most times that they may be.
    pub restarts_max: u32,
    /// A free port on the node of rank 0.
    pub port: u16,
    /// Set when the ranks were granted devices.
    pub devices: bool,
    /// Where each rank is.
    pub places: Vec<Place>,
}

impl Rendezvous {
    /// Where all ranks meet: at rank 0, over the loopback device where nobody is elsewhere.
    #[must_use]
    pub fn master(&self) -> Option<Master> {
        let first = self.places.first()?;
        let together = self.places.iter().all(|place| place.node == first.node);
        let address = if together { LOOPBACK } else { &first.address };
        Some(Master {
            address: address.to_owned(),
            port: self.port,
        })
    }

    /// The variables of each rank. Nodes count in the order of their first ranks, and ranks of a
    /// node in that of their ranks. Each rank sees all devices that ranks of its node were granted,
    /// in the order of these ranks: with one each, `cuda:LOCAL_RANK` is its own.
    #[must_use]
    pub fn variables(&self) -> Vec<Vec<(String, String)>> {
        let mut nodes: Vec<(&str, Vec<usize>)> = vec![];
        for (rank, place) in self.places.iter().enumerate() {
            match nodes.iter_mut().find(|(node, _)| *node == place.node) {
                Some((_, ranks)) => ranks.push(rank),
                None => nodes.push((&place.node, vec![rank])),
            }
        }
        let Some(master) = self.master() else {
            return vec![];
        };
        let of_rank = |rank: usize| {
            let place = &self.places[rank];
            let group = nodes.iter().position(|(node, _)| *node == place.node);
            let group = group.expect("every place is on a node");
            let local = &nodes[group].1;
            let within = local.iter().position(|it| *it == rank);
            let world = self.places.len();
            let mut variables = vec![
                ("MASTER_ADDR", master.address.clone()),
                ("MASTER_PORT", master.port.to_string()),
                ("RANK", rank.to_string()),
                (
                    "LOCAL_RANK",
                    within.expect("a rank is on its node").to_string(),
                ),
                ("WORLD_SIZE", world.to_string()),
                ("LOCAL_WORLD_SIZE", local.len().to_string()),
                ("GROUP_RANK", group.to_string()),
                ("GROUP_WORLD_SIZE", nodes.len().to_string()),
                ("NODE_RANK", group.to_string()),
                ("ROLE_RANK", rank.to_string()),
                ("ROLE_WORLD_SIZE", world.to_string()),
                ("ROLE_NAME", "default".to_owned()),
                ("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string()),
                ("TORCHELASTIC_MAX_RESTARTS", self.restarts_max.to_string()),
                ("TORCHELASTIC_RUN_ID", self.run_id.clone()),
                // Rank 0 opens the store itself.
                ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
            ];
            if self.devices {
                let granted = local.iter().flat_map(|rank| &self.places[*rank].devices);
                let granted: Vec<&str> = granted.map(String::as_str).collect();
                variables.push(("CUDA_VISIBLE_DEVICES", granted.join(",")));
            }
            let owned = variables.into_iter();
            owned
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        (0..self.places.len()).map(of_rank).collect()
    }
}

/// Variables that a rank gets where nobody has set them: threads of several ranks would be in each
/// other's way, a rank whose peers are gone should end rather than wait, and what a Python program
/// prints should be seen when it does.
pub const DEFAULTS: [(&str, &str); 3] = [
    ("OMP_NUM_THREADS", "1"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ("PYTHONUNBUFFERED", "1"),
];

/// The node of a process that was told of none.
const LOCAL: &str = "local";
const LOOPBACK: &str = "127.0.0.1";

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::{prop, prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::*;

    fn place(node: &str, address: &str, devices: &[&str]) -> Place {
        Place {
            node: node.to_owned(),
            address: address.to_owned(),
            devices: devices.iter().map(ToString::to_string).collect(),
        }
    }

    fn meeting(places: Vec<Place>, devices: bool) -> Rendezvous {
        Rendezvous {
            run_id: "run".to_owned(),
            restarts: 1,
            restarts_max: 3,
            port: 4000,
            devices,
            places,
        }
    }

    fn maps(meeting: &Rendezvous) -> Vec<BTreeMap<String, String>> {
        let variables = meeting.variables().into_iter();
        variables.map(|env| env.into_iter().collect()).collect()
    }

    /// SEMANTICS 62.
    #[test]
    fn ranks_on_two_nodes_know_themselves_and_where_to_meet() {
        let (a, b) = (
            place("a", "10.0.0.1", &["GPU-1"]),
            place("b", "10.0.0.2", &["GPU-1"]),
        );
        let second = place("a", "10.0.0.1", &["GPU-2"]);
        let ranks = maps(&meeting(vec![b, a, second], true));
        let expect = [
            ("MASTER_ADDR", "10.0.0.2"),
            ("MASTER_PORT", "4000"),
            ("RANK", "2"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
            ("NODE_RANK", "1"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_RANK", "2"),
            ("ROLE_WORLD_SIZE", "3"),
            ("ROLE_NAME", "default"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2"),
        ];
        let expect: BTreeMap<_, _> = expect
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(ranks[2], expect);
        assert_eq!(ranks[0]["CUDA_VISIBLE_DEVICES"], "GPU-1");
    }

    #[test]
    fn ranks_of_one_node_meet_at_the_loopback_device() {
        let ranks = maps(&meeting(vec![place("a", "10.0.0.1", &["GPU-1"]); 2], false));
        for rank in &ranks {
            assert_eq!(rank["MASTER_ADDR"], "127.0.0.1");
            assert!(!rank.contains_key("CUDA_VISIBLE_DEVICES"));
        }
        assert!(meeting(vec![], false).variables().is_empty());
    }

    proptest! {
        /// SEMANTICS 62.
        #[test]
        fn ranks_are_numbered_without_gaps_wherever_they_are(
            nodes in prop::collection::vec(0usize..4, 1..20),
        ) {
            let places = nodes.iter().map(|node| place(&node.to_string(), "h", &[]));
            let ranks = maps(&meeting(places.collect(), false));
            let number = |rank: &BTreeMap<String, String>, name: &str| -> usize {
                rank[name].parse().unwrap()
            };
            let groups: BTreeSet<_> = ranks.iter().map(|it| number(it, "GROUP_RANK")).collect();
            prop_assert_eq!(groups, (0..number(&ranks[0], "GROUP_WORLD_SIZE")).collect());
            let mut seen = BTreeSet::new();
            for (at, rank) in ranks.iter().enumerate() {
                prop_assert_eq!(number(rank, "RANK"), at);
                let size = nodes.iter().filter(|node| **node == nodes[at]).count();
                prop_assert_eq!(number(rank, "LOCAL_WORLD_SIZE"), size);
                prop_assert!(number(rank, "LOCAL_RANK") < size);
                prop_assert!(seen.insert((nodes[at], number(rank, "LOCAL_RANK"))));
                for other in &ranks {
                    prop_assert_eq!(&rank["MASTER_ADDR"], &other["MASTER_ADDR"]);
                }
            }
        }
    }
}
