//! Voters in virtual time: their log, disks and network are the real ones, and some of them die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use odeon::simulation::{SimulationSpec, World};
use odeon::{Clock, System};
use openraft::error::{InstallSnapshotError, RPCError, RaftError};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, ServerState};
use tempfile::TempDir;

use super::disk::Disk;
use super::machine::{Machine, Shared};
use super::network::{Network, Peer, Voter, names};
use super::{Batch, Raft, Types, config};
use crate::access::KeyRole;
use crate::fact::{Command, Fact, Writer};
use crate::local_only::LocalOnly;
use crate::node_directory;
use crate::unix::Unix;

/// The time within which a leader that dies is followed by another.
const LED_WITHIN: Duration = Duration::from_secs(3);
/// The same where two have stood at the same moment, and none of them had a majority.
const LED_AGAIN_WITHIN: Duration = Duration::from_secs(6);
/// Longer than anything takes here that comes about.
const PATIENCE: Duration = Duration::from_secs(30);

/// The network of one of the voters in this process: what it asks leaves from its own node.
struct Own(Network);

/// The same towards one other voter.
struct OwnPeer {
    system: System,
    peer: Peer,
}

impl RaftNetworkFactory<Types> for Own {
    type Network = OwnPeer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> OwnPeer {
        OwnPeer {
            system: self.0.system.clone(),
            peer: self.0.new_client(target, node).await,
        }
    }
}

type Asked<T, E = openraft::error::Infallible> =
    Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl RaftNetwork<Types> for OwnPeer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Asked<AppendEntriesResponse<u64>> {
        let asked = self.peer.append_entries(request, option);
        self.system.scope(asked).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Asked<VoteResponse<u64>> {
        self.system.scope(self.peer.vote(request, option)).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Asked<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        let asked = self.peer.install_snapshot(request, option);
        self.system.scope(asked).await
    }
}

/// A voter and its disk.
struct Seat {
    raft: Raft,
    shared: Shared,
    _folder: TempDir,
}

impl Seat {
    async fn take(system: &System, node: &str, number: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(&folder.path().join("catalog.redb")).unwrap();
        let shared = Shared::default();
        let machine = Machine::load(disk.clone(), shared.clone()).await.unwrap();
        let network = Own(Network {
            system: system.clone(),
        });
        let config = Arc::new(config().validate().unwrap());
        let raft = Raft::new(number, config, network, disk, machine).await;
        let raft = raft.unwrap();
        let (log, votes) = names(node);
        for name in [log, votes] {
            let voter = system.spawn::<Voter>(LocalOnly::new(raft.clone())).await;
            let voter = voter.unwrap();
            node_directory::register(system, &name, voter)
                .await
                .unwrap();
        }
        Self {
            raft,
            shared,
            _folder: folder,
        }
    }

    fn leads(&self) -> bool {
        self.raft.metrics().borrow().state == ServerState::Leader
    }

    fn known(&self) -> usize {
        self.shared.read(|tables| tables.keys.len())
    }

    /// Returns true once the voters have accepted the command.
    async fn writes(&self, id: u64) -> bool {
        let writing = self.raft.client_write(Batch(vec![command(id)]));
        let written = Clock::timeout(PATIENCE, writing).await;
        written.is_some_and(|written| written.is_ok_and(|it| it.data[0].is_ok()))
    }
}

/// A command that makes a key.
pub(super) fn command(id: u64) -> Command {
    Command {
        id,
        at: Unix(id),
        writer: Writer::Leader,
        fact: Fact::KeyMade {
            id: format!("hash {id}"),
            name: format!("key {id}"),
            role: KeyRole::View,
            by: "ann".to_owned(),
        },
    }
}

/// The voters that live, by their nodes.
struct Voters {
    world: World,
    seats: BTreeMap<usize, Seat>,
    /// Commands that were accepted.
    accepted: u64,
}

impl Voters {
    async fn seated(world: &World) -> Self {
        let mut seats = BTreeMap::new();
        let mut members = BTreeMap::new();
        for (at, system) in world.nodes.iter().enumerate() {
            let (node, number) = (format!("node-{at}"), at as u64 + 1);
            let seat = system.scope(Seat::take(system, &node, number)).await;
            seats.insert(at, seat);
            members.insert(number, BasicNode::new(node));
        }
        seats[&0].raft.initialize(members).await.unwrap();
        Self {
            world: world.clone(),
            seats,
            accepted: 0,
        }
    }

    /// Waits until one of them leads.
    async fn leader(&self) -> usize {
        loop {
            if let Some((at, _)) = self.seats.iter().find(|(_, seat)| seat.leads()) {
                return *at;
            }
            Clock::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Has the next command accepted, by the leader that does.
    async fn write(&mut self) -> usize {
        let next = self.accepted + 1;
        let writing = async {
            loop {
                let leader = self.leader().await;
                if self.seats[&leader].writes(next).await {
                    return leader;
                }
            }
        };
        let leader = Clock::timeout(PATIENCE, writing).await;
        self.accepted = next;
        leader.expect("somebody leads")
    }

    /// Nobody hears of this one any more.
    async fn kill(&mut self, at: usize) {
        let dead = self.seats.remove(&at).unwrap();
        for other in (0..self.world.nodes.len()).filter(|other| *other != at) {
            self.world.network.cut(at, other);
        }
        dead.raft.shutdown().await.unwrap();
    }
}

/// Leaders die one after the other, until too few are left. The times without a leader.
async fn story(world: World, losses: usize, seed: u64) -> Vec<Duration> {
    let mut voters = Voters::seated(&world).await;
    let mut leader = voters.write().await;
    let mut times = vec![];
    for _ in 0..losses {
        for _ in 0..3 {
            leader = voters.write().await;
        }
        // At any moment between two signs of the leader.
        Clock::sleep(Duration::from_millis(seed * 37 % 200)).await;
        voters.kill(leader).await;
        let died = Clock::now();
        leader = voters.write().await;
        times.push(Clock::now().since(died));
        let known = voters.seats[&leader].known();
        assert_eq!(known as u64, voters.accepted, "seed {seed}");
    }
    let other = voters.seats.keys().find(|at| **at != leader).copied();
    voters.kill(other.expect("a majority")).await;
    for seat in voters.seats.values() {
        assert!(!seat.writes(voters.accepted + 1).await, "seed {seed}");
        // The last that was accepted it may not have heard of.
        assert!(seat.known() as u64 <= voters.accepted, "seed {seed}");
    }
    times
}

/// SEMANTICS 60.
#[test]
fn three_voters_bear_one_loss_and_five_bear_two_and_are_led_again_within_three_seconds() {
    let mut times = vec![];
    for (voters, losses) in [(3, 1), (5, 2)] {
        for seed in 0..20 {
            let spec = SimulationSpec::new(odeon::job![]).nodes(voters);
            let story = |world| story(world, losses, seed);
            times.extend(System::simulated(seed, spec).run(story));
        }
    }
    times.sort_unstable();
    let late = times.iter().filter(|time| **time > LED_WITHIN).count();
    assert!(late * 10 <= times.len(), "{times:?}");
    assert!(*times.last().unwrap() < LED_AGAIN_WITHIN, "{times:?}");
}
