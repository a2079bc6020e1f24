//! The nodes of a run are tested in groups before it stops for a person.

use tokio::runtime::Handle;

use super::recovery::{of_ranks, recovered};
use super::*;

/// Nodes of one cluster that know each other, with room for one rank each. The last but one starts one process alone, so
/// that it has no other where its rank is; the last is there before the run needs it.
async fn nodes() -> Vec<System> {
    let cluster = ClusterIdentity::generate().unwrap();
    let mut nodes: Vec<System> = vec![];
    for name in ["a", "b", "c", "d", "e"] {
        let mut limits = Limits::default();
        limits.stop_grace = Duration::from_millis(100);
        if name == "d" {
            limits.workers_max = 1;
        }
        let node = node().job(odeon_actors::job()).limits(limits);
        let node = node.resource("rank", 1.0).unwrap();
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        nodes.push(node.start().await.unwrap());
    }
    let first = &nodes[..4];
    for (at, node) in first.iter().enumerate() {
        for other in &first[..at] {
            node.join(other.address().unwrap()).await.unwrap();
        }
    }
    nodes
}

/// SEMANTICS 212.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_to_blame_is_left_before_a_run_stops_for_a_person() {
    let nodes = nodes().await;
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 4);
    plan.recovery.restarts = 0;
    plan.needs = Needs::new().resource("rank", 1.0);
    let mut killed = false;
    let told = told_on(&nodes[0], &plan, |report, system, members, _| {
        if killed || !matches!(report, Report::Step(_)) {
            return;
        }
        killed = true;
        // The fifth has come when the rank is lost.
        tokio::task::block_in_place(|| {
            Handle::current().block_on(async {
                for node in &nodes[..4] {
                    node.join(nodes[4].address().unwrap()).await.unwrap();
                }
            });
        });
        let own = system.admin().workers();
        let is_own = |process| own.iter().any(|(id, _)| Some(*id) == process);
        let mut ranks = members.iter().filter(|it| it.0.starts_with("rank-"));
        let (rank, ..) = ranks.find(|it| is_own(it.2)).unwrap();
        kill(system, members, rank);
    });
    let told = told.await;
    let done = recovered(&told);
    let actions: Vec<_> = done.iter().map(|it| it.0).collect();
    assert_eq!(actions, ["group_test", "evict_node"], "{done:?}");
    assert_eq!(done[1].2, ["d"], "{done:?}");
    assert!(done[1].3.contains("node d is to blame"), "{done:?}");
    assert_eq!(told.steps, plan.steps);
    for node in nodes {
        node.shutdown().await;
    }
}
