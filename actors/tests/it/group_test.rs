//! The group test of nodes, with processes of nodes that are linked as those of a cluster are.

use std::time::Duration;

use odeon::{ClusterIdentity, Context, Limits, System, WorkerCommand, WorkerMode, actor};
use odeon_actors::ranks::group_test::{GroupTested, TooFewNodes, test_nodes};
use odeon_actors::ranks::replay::{ReplaySteps, ReplayTrouble, ShowProcessor, processor};
use odeon_tests::again;

/// Longer than a process takes to begin where much else goes on.
const LIMIT: Duration = Duration::from_secs(60);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn worker_entry() {
    odeon_actors::job().serve_if_worker();
}

/// In the place of a node's rank: its arithmetic is wrong, and so is what it has come to.
#[derive(Debug)]
struct WrongRank;

#[actor(name = "ranks.ReplayRank")]
impl WrongRank {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler(message = ShowProcessor)]
    fn show(&mut self, _: ShowProcessor) -> String {
        processor()
    }

    #[handler(message = ReplaySteps)]
    async fn replay(
        &mut self,
        asked: ReplaySteps,
        cx: &mut Context<Self>,
    ) -> Result<String, ReplayTrouble> {
        let bits = asked.replay(cx)?;
        Ok(bits.replace(|_| true, "0"))
    }
}

#[test]
fn wrong_worker_entry() {
    odeon::job![WrongRank].serve_if_worker();
}

/// Nodes of one cluster, of which the last starts its processes by this command.
async fn nodes(last: WorkerMode, limits: Limits) -> Vec<System> {
    let cluster = ClusterIdentity::generate().unwrap();
    let mut nodes: Vec<System> = vec![];
    for name in NAMES {
        let is_last = name == NAMES[3];
        let (workers, limits) = match is_last {
            true => (last.clone(), limits.clone()),
            false => {
                let own = WorkerMode::Processes(again::worker(module_path!()));
                (own, Limits::default())
            }
        };
        let node = System::builder().job(odeon_actors::job());
        let node = node.workers(workers).limits(limits);
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        let node = node.start().await.unwrap();
        for other in &nodes {
            other.join(node.address().unwrap()).await.unwrap();
        }
        nodes.push(node);
    }
    nodes
}

/// Tests them all from the first.
async fn tested(nodes: Vec<System>) -> GroupTested {
    let names = NAMES.map(str::to_owned);
    let tested = test_nodes(&nodes[0], &names, LIMIT).await.unwrap();
    let left: usize = nodes.iter().map(|it| it.admin().workers().len()).sum();
    assert_eq!(left, 0, "processes stay");
    for node in nodes {
        node.shutdown().await;
    }
    tested
}

/// SEMANTICS 210.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_with_other_bits_is_named_and_no_other() {
    let wrong = WorkerCommand::current_exe().unwrap();
    let wrong = wrong.arg(again::name(module_path!(), "wrong_worker_entry"));
    let wrong = WorkerMode::Processes(wrong.arg("--exact"));
    let tested = tested(nodes(wrong, Limits::default()).await).await;
    assert_eq!(tested.culprit(), Some("d"), "{tested}");
    assert_eq!((tested.nodes.len(), tested.groups.len()), (4, 4));
    let failed = tested.groups.iter().filter(|it| it.fault.is_some());
    let failed: Vec<_> = failed.map(|it| (it.round, it.nodes.join(""))).collect();
    assert_eq!(failed, [(1, "cd".to_owned()), (2, "bd".to_owned())]);
    let told = tested.to_string();
    assert!(told.contains("different bits"), "{told}");
}

/// SEMANTICS 210.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_nodes_come_to_the_same_bits_and_one_that_starts_no_process_is_named() {
    let own = WorkerMode::Processes(again::worker(module_path!()));
    let sound = tested(nodes(own.clone(), Limits::default()).await).await;
    assert_eq!(sound.to_string(), "no group of 4 nodes has failed");
    let mut none = Limits::default();
    none.workers_max = 0;
    let tested = tested(nodes(own, none).await).await;
    assert_eq!(tested.culprit(), Some("d"), "{tested}");
    let told = tested.to_string();
    assert!(told.contains("worker processes, its limit"), "{told}");
}

/// SEMANTICS 210.
#[tokio::test]
async fn fewer_than_four_nodes_are_not_tested() {
    let system = System::builder().job(odeon_actors::job());
    let system = system.start().await.unwrap();
    let names = ["a", "b", "b", "c"].map(str::to_owned);
    let refused: TooFewNodes = test_nodes(&system, &names, LIMIT).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a group test takes 4 nodes of one kind of processor, and there are 3 (a, b, c)"
    );
    system.shutdown().await;
}
