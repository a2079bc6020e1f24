//! Which algorithm to take: the time of each by the alpha-beta model (Hockney 1994). Pure, and the
//! same on every rank.

use odeon_topology::{Link, LinkKind};

use super::schedule::{Algorithm, CollectiveTask, Topology};

/// The costs of messages inside a node and between nodes. All ranks must have the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Between two ranks of one node.
    pub near: Link,
    /// Between ranks of two nodes. The ranks of a node share its bandwidth.
    pub far: Link,
}

impl Default for Costs {
    /// Queues in shared memory, and a connection of 10 Gbit/s.
    fn default() -> Self {
        Self {
            near: Link::new(LinkKind::Memory, 4e9).latency(5e-6),
            far: Link::new(LinkKind::Ethernet, 1.2e9).latency(50e-6),
        }
    }
}

impl Costs {
    /// The algorithm with the least time; of equal ones the first that the task names.
    #[must_use]
    pub fn choose(
        &self,
        task: CollectiveTask<'_>,
        element_bytes: usize,
        topology: &Topology,
    ) -> Algorithm {
        let known = task.algorithms();
        let mut best = (known[0], f64::INFINITY);
        for algorithm in known {
            let time = self.seconds(task, *algorithm, element_bytes, topology);
            if time < best.1 {
                best = (*algorithm, time);
            }
        }
        best.0
    }

    /// About how long a task takes with an algorithm, in seconds.
    #[must_use]
    pub fn seconds(
        &self,
        task: CollectiveTask<'_>,
        algorithm: Algorithm,
        element_bytes: usize,
        topology: &Topology,
    ) -> f64 {
        let world = topology.world();
        if world < 2 {
            return 0.0;
        }
        let (nodes, per_node) = (topology.node_count(), topology.ranks_per_node_max());
        let n = world as f64;
        // Every step of an algorithm that does not know of nodes is as slow as its slowest message;
        // where the ranks of a node all send out of it at once, they share the way.
        let slowest = if nodes > 1 { self.far } else { self.near };
        let crowded = match nodes {
            1 => self.near,
            _ => Link {
                bytes_per_second: self.far.bytes_per_second / per_node as f64,
                ..self.far
            },
        };
        let log = |n: usize| f64::from(n.next_power_of_two().trailing_zeros());
        let size = |count: usize| (count * element_bytes) as f64;
        let all = |counts: &[usize]| size(counts.iter().sum());
        match (task, algorithm) {
            (CollectiveTask::AllReduce { count }, Algorithm::Direct) => {
                (n - 1.0) * crowded.seconds(size(count))
            }
            (CollectiveTask::AllReduce { count }, Algorithm::Ring) => {
                2.0 * (n - 1.0) * slowest.seconds(size(count) / n)
            }
            (CollectiveTask::AllReduce { count }, Algorithm::Tree) => {
                2.0 * log(world) * crowded.seconds(size(count))
            }
            (CollectiveTask::AllReduce { count }, Algorithm::Hierarchical) => {
                let inside = 2.0 * log(per_node) * self.near.seconds(size(count));
                let m = nodes as f64;
                inside + 2.0 * (m - 1.0) * self.far.seconds(size(count) / m)
            }
            (CollectiveTask::Broadcast { count, .. }, Algorithm::Direct) => {
                (n - 1.0) * slowest.seconds(size(count))
            }
            (CollectiveTask::Broadcast { count, .. }, Algorithm::Ring) => {
                let segment = size(count).min((64 << 10) as f64 * element_bytes as f64);
                let segments = (size(count) / segment.max(1.0)).max(1.0);
                (segments + n - 2.0) * slowest.seconds(segment)
            }
            (CollectiveTask::Broadcast { count, .. }, Algorithm::Tree) => {
                log(world) * slowest.seconds(size(count))
            }
            (CollectiveTask::Broadcast { count, .. }, Algorithm::Hierarchical) => {
                log(nodes) * self.far.seconds(size(count))
                    + log(per_node) * self.near.seconds(size(count))
            }
            (
                CollectiveTask::AllGather { counts } | CollectiveTask::ReduceScatter { counts },
                Algorithm::Direct,
            ) => (n - 1.0) * crowded.seconds(all(counts) / n),
            (
                CollectiveTask::AllGather { counts } | CollectiveTask::ReduceScatter { counts },
                _,
            ) => (n - 1.0) * slowest.seconds(all(counts) / n),
            (CollectiveTask::AllToAll { to, .. }, _) => (n - 1.0) * crowded.seconds(all(to) / n),
            (CollectiveTask::Barrier, _) => log(world) * slowest.latency_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_topology_decide() {
        let costs = Costs::default();
        let all_reduce = |count, topology: &Topology| {
            costs.choose(CollectiveTask::AllReduce { count }, 4, topology)
        };
        let (pair, node) = (Topology::one_node(2), Topology::one_node(16));
        assert_eq!(all_reduce(16, &pair), Algorithm::Direct);
        assert_eq!(all_reduce(16, &node), Algorithm::Tree);
        assert_eq!(all_reduce(16 << 20, &node), Algorithm::Ring);
        let cluster = Topology::new((0..64).map(|rank| rank / 8).collect());
        assert_eq!(all_reduce(1 << 10, &cluster), Algorithm::Hierarchical);
        let spread = Topology::new((0..64).collect());
        assert_eq!(all_reduce(16 << 20, &spread), Algorithm::Ring);
        let broadcast =
            |count| costs.choose(CollectiveTask::Broadcast { count, root: 0 }, 4, &node);
        assert_eq!(broadcast(16), Algorithm::Tree);
        assert_eq!(broadcast(16 << 20), Algorithm::Ring);
    }

    #[test]
    fn times_grow_with_size_and_world() {
        let costs = Costs::default();
        for algorithm in Algorithm::ALL {
            let time = |count, world| {
                let topology = Topology::one_node(world);
                costs.seconds(CollectiveTask::AllReduce { count }, algorithm, 4, &topology)
            };
            for world in 2..20 {
                assert!(time(1 << 20, world) > time(1 << 10, world));
                assert!(time(1 << 20, world + 1) >= time(1 << 20, world));
            }
            assert_eq!(time(5, 1).to_bits(), 0.0f64.to_bits());
        }
    }
}
