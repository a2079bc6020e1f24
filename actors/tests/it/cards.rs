//! Collectives between the cards of a group whose members are processes of their own: what gives them
//! seats, processes and news of the lost is the runtime; the cards are emulated, and a library stands in
//! NCCL's place. Skipped by name where there is no C++ compiler.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures::future::join_all;
use odeon::collective::{Collective, CollectiveError, Reduce};
use odeon::group::{Communicator, Seat};
use odeon::{AskError, Clock, Context, Failure, Group, Rank, Restart, System, WorkerMode, mesh};
use odeon_actors::engine::compute::{Cards, Joined};
use odeon_algorithms::model::{Batch, Model, ModelConfig, Sequence, TokenScores};
use odeon_algorithms::train::{
    CrossEntropy, Muon, Objective, Optimizer, Peers, StepPeers, StepShape, StepWork,
    TokenGradients, TrainConfig, Trainer, plan,
};
use odeon_gpu::cuda::emulated::ThreadOrder;
use odeon_gpu::cuda::nccl::{Nccl, NcclLibrary};
use odeon_gpu::cuda::{Cuda, CudaArray, Emulated};
use odeon_gpu::{Backend, Cpu, Precision};
use odeon_skip::{Need, skip};
use odeon_tests::again;

/// The longest time that the machine may take for what comes about by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a seat and forms NCCL between the cards of all, by the library at this path.
#[derive(Clone)]
#[odeon::message(reply = Result<u64, String>)]
struct Sit(Seat, String);

/// Sums so many ranks on the card.
#[derive(Clone)]
#[odeon::message(reply = Result<Vec<f32>, String>)]
struct Sum(u32);

/// Sums again and again until it fails; answers the ranks at fault and the error.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumUntilItFails;

/// Sums as many elements as its rank says, and answers the ranks at fault and the error.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumOthers;

/// Takes a seat and trains with the others, the sums of their gradients made between cards by the library
/// at this path; answers the losses and the weights.
#[derive(Clone)]
#[odeon::message(reply = Result<(Vec<f64>, Vec<f32>), String>)]
struct TrainTogether(Seat, String);

/// Takes a seat and joins the others with the library at this path, which is not there for the last of them;
/// answers a sum over the host.
#[derive(Clone)]
#[odeon::message(reply = Result<f32, String>)]
struct JoinWithout(Seat, String);

struct Member {
    rank: Rank,
    between: Option<(Cuda<Emulated>, Nccl<Emulated>)>,
}

#[odeon::actor(name = "test.CardMember")]
impl Member {
    fn start(rank: Rank) -> Result<Self, Failure> {
        Ok(Self {
            rank,
            between: None,
        })
    }

    #[handler(message = Sit)]
    async fn sit(&mut self, sit: Sit, cx: &mut Context<Self>) -> Result<u64, String> {
        let mut comm = sit.0.take(cx).map_err(|error| error.to_string())?;
        comm.set_deadline(DEADLINE);
        let generation = comm.membership().generation;
        let formed = tokio::task::block_in_place(|| between_cards(comm, &sit.1));
        self.between = Some(formed?);
        Ok(generation)
    }

    #[handler(message = Sum)]
    async fn sum(&mut self, sum: Sum) -> Result<Vec<f32>, String> {
        let rank = self.rank.index() as f32;
        let (card, nccl) = self.between.as_mut().ok_or("no seat")?;
        let summed = tokio::task::block_in_place(|| summed(card, nccl, rank, sum.0 as usize));
        summed.map_err(|error| error.to_string())
    }

    #[handler(message = TrainTogether)]
    async fn train_together(
        &mut self,
        train: TrainTogether,
        cx: &mut Context<Self>,
    ) -> Result<(Vec<f64>, Vec<f32>), String> {
        let comm = train.0.take(cx).map_err(|error| error.to_string())?;
        let rank = self.rank.index();
        tokio::task::block_in_place(|| {
            let card = Emulated::start(ThreadOrder::Forwards).map_err(|error| error.to_string())?;
            let card = Cuda::over(card, Precision::F32);
            let library = NcclLibrary::at(train.1.as_ref()).map_err(|error| error.to_string())?;
            let joined = Cards::join(comm, &card, Ok(library));
            let Joined::Cards(mut cards) = joined.map_err(|error| error.to_string())? else {
                return Err("they go over the host".to_owned());
            };
            let trained = trained(card, rank..rank + 1, Some(&mut *cards));
            trained.map_err(|error| error.to_string())
        })
    }

    #[handler(message = JoinWithout)]
    async fn join_without(
        &mut self,
        join: JoinWithout,
        cx: &mut Context<Self>,
    ) -> Result<f32, String> {
        let comm = join.0.take(cx).map_err(|error| error.to_string())?;
        let lacks = self.rank.index() == 2;
        tokio::task::block_in_place(|| {
            let card = Emulated::start(ThreadOrder::Forwards).map_err(|error| error.to_string())?;
            let card = Cuda::over(card, Precision::F32);
            let path = if lacks {
                "/nowhere/libnccl.so"
            } else {
                &join.1
            };
            let joined = Cards::join(comm, &card, NcclLibrary::at(path.as_ref()));
            let Joined::Host(mut comm) = joined.map_err(|error| error.to_string())? else {
                return Err("they are joined".to_owned());
            };
            let mut sum = [1.0];
            let summed = comm.all_reduce(&mut sum, Reduce::Sum);
            summed.map_err(|error| error.to_string())?;
            Ok(sum[0])
        })
    }

    #[handler(message = SumUntilItFails)]
    async fn sum_until_it_fails(&mut self, _: SumUntilItFails) -> (Vec<u64>, String) {
        let Some((card, nccl)) = self.between.as_mut() else {
            return (vec![], "no seat in this life".to_owned());
        };
        let begun = Clock::now();
        loop {
            assert!(Clock::now().since(begun) < PATIENCE, "nobody is lost");
            if let Err(error) = tokio::task::block_in_place(|| summed(card, nccl, 1.0, 100)) {
                return (ranks(&error), error.to_string());
            }
        }
    }

    #[handler(message = SumOthers)]
    async fn sum_others(&mut self, _: SumOthers) -> (Vec<u64>, String) {
        let (card, nccl) = self.between.as_mut().expect("it has a seat");
        let len = 10 + self.rank.index();
        let summed = tokio::task::block_in_place(|| summed(card, nccl, 1.0, len));
        let error = summed.expect_err("ranks call different things");
        (ranks(&error), error.to_string())
    }
}

/// Longer than any answer may take that comes at once.
const DEADLINE: Duration = Duration::from_secs(40);

/// A card, and NCCL between it and those of the other ranks.
fn between_cards(
    comm: Communicator,
    library: &str,
) -> Result<(Cuda<Emulated>, Nccl<Emulated>), String> {
    let card = Emulated::start(ThreadOrder::Forwards).map_err(|error| error.to_string())?;
    let card = Cuda::over(card, Precision::F32);
    let library = NcclLibrary::at(library.as_ref()).map_err(|error| error.to_string())?;
    let nccl = Nccl::form(comm.into_inner(), &card, &library);
    Ok((card, nccl.map_err(|error| error.to_string())?))
}

fn summed(
    card: &Cuda<Emulated>,
    nccl: &mut Nccl<Emulated>,
    number: f32,
    len: usize,
) -> Result<Vec<f32>, CollectiveError> {
    let mut data = CudaArray::zeros(card, len);
    data.write(&vec![number; len]);
    nccl.all_reduce(&mut data, Reduce::Sum)?;
    nccl.wait()?;
    Ok(data.to_vec())
}

/// Some of three texts, each as a rank's part of a step.
struct Texts(Range<usize>);

impl StepWork for Texts {
    type Error = Failure;

    fn micro_batches(&self) -> usize {
        self.0.len()
    }

    fn counts(&self) -> Vec<u64> {
        vec![self.0.clone().map(|text| 5 + text as u64).sum()]
    }

    fn sums_loss(&self) -> bool {
        true
    }

    fn batch(&mut self, micro: usize) -> Result<Batch, Failure> {
        let text = (self.0.start + micro) as u32;
        let tokens: Vec<u32> = (0..6 + text).map(|at| (at * at + text) % 23).collect();
        let one = Sequence {
            tokens: &tokens,
            prompt: 1,
        };
        Batch::pack(&[one]).map_err(Failure::error)
    }

    fn evaluate(
        &mut self,
        _micro: usize,
        counts: &[u64],
        scores: &TokenScores,
        gradients: &mut TokenGradients,
    ) -> Result<f64, Failure> {
        Ok(CrossEntropy::mean_over(counts[0] as usize).evaluate(scores, gradients))
    }
}

/// Four steps: the loss of each, and the weights after them.
fn trained<B: Backend>(
    backend: B,
    texts: Range<usize>,
    mut peers: Option<&mut dyn Peers<B, Error = Failure>>,
) -> Result<(Vec<f64>, Vec<f32>), Failure> {
    let config = ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        ffn: 20,
        ..ModelConfig::default()
    };
    let model = Model::init(backend, config, 11).map_err(Failure::error)?;
    // Plain steps, so that rounding is not blown up where a gradient is nearly nothing.
    let settings = TrainConfig {
        lr: 1e-2,
        optimizer: Optimizer::Muon(Muon::default()),
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let mut losses = vec![];
    for _ in 0..4 {
        let mut work = Texts(texts.clone());
        let plan = plan(&StepShape::of(&work, peers.is_some(), true));
        let peers = StepPeers {
            data: peers.as_deref_mut(),
            ..StepPeers::none()
        };
        let done = trainer.run(&plan, &mut work, peers, &mut |_| Ok(()));
        losses.push(done?.loss);
    }
    Ok((losses, trainer.model().to_flat()))
}

fn ranks(error: &CollectiveError) -> Vec<u64> {
    let fault = error.fault().expect("a fault between ranks");
    fault.ranks().into_iter().map(|rank| rank as u64).collect()
}

#[test]
fn worker_entry() {
    odeon::job![Member].serve_if_worker();
}

/// The library in NCCL's place, in a folder of its own, for ranks that are processes; why there is none.
fn stand_in() -> Result<(tempfile::TempDir, PathBuf), String> {
    const SOURCE: &str = include_str!("../../../gpu/tests/it/emulated_nccl/standin.cpp");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (
        folder.path().join("standin.cpp"),
        folder.path().join("libnccl.so.2"),
    );
    fs::write(&source, SOURCE).unwrap();
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .map_err(|error| format!("{compiler} does not start: {error}"))?;
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    fs::write(folder.path().join("libnccl.so.2.mode"), "processes\n").unwrap();
    // Compiled once, before all members want it at once.
    drop(Emulated::start(ThreadOrder::Forwards).unwrap());
    Ok((folder, library))
}

/// Three members in processes of their own.
struct World {
    system: System,
    group: Group<Member>,
    library: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Option<Self> {
        let (folder, library) = match stand_in() {
            Ok(made) => made,
            Err(why) => {
                skip(Need::CppCompiler, why);
                return None;
            }
        };
        let workers = WorkerMode::Processes(again::worker(module_path!()));
        let system = System::builder().workers(workers).start().await.unwrap();
        let spawn = system.spawn_group::<Member>(mesh! { dp: 3 }, |rank| rank);
        let group = spawn.restart(Restart::Permanent).isolated();
        Some(Self {
            group: group.await.unwrap(),
            system,
            library,
            _folder: folder,
        })
    }

    /// Forms the group, and NCCL between its cards; gives the generation.
    async fn seat(&self) -> u64 {
        let formation = self.group.form().await.unwrap();
        let sit = |seat| Sit(seat, self.library.display().to_string());
        let sitting = self.group.scatter(formation.seats().map(sit).collect());
        let sitting = sitting.await.unwrap();
        let generations: Vec<u64> = sitting.into_iter().map(Result::unwrap).collect();
        assert_eq!(generations, [formation.generation(); 3]);
        formation.generation()
    }

    async fn sums(&self) {
        let sums = self.group.gather(Sum(1000)).await.unwrap();
        assert_eq!(sums, vec![Ok(vec![3.0; 1000]); 3]);
    }
}

/// SEMANTICS 50, 51, 53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_killed_is_named_by_the_cards_of_the_others_and_all_meet_again() {
    let Some(world) = World::start().await else {
        return;
    };
    assert_eq!(world.seat().await, 1);
    world.sums().await;
    let members = world.group.members();
    let asks = members.iter().map(|member| {
        let ask = member.ask(SumUntilItFails).timeout(PATIENCE);
        tokio::spawn(ask.into_future())
    });
    let asks: Vec<_> = asks.collect();
    let begun = Clock::now();
    let process = world
        .system
        .admin()
        .process_of(members[1])
        .expect("it runs");
    assert!(world.system.admin().kill_worker(process));
    for (rank, answer) in join_all(asks).await.into_iter().enumerate() {
        match answer.unwrap() {
            // What had not reached it waits for its next life.
            Ok((named, error)) if rank == 1 => assert!(named.is_empty(), "{error}"),
            Ok((named, error)) => assert_eq!(named, [1], "{error}"),
            Err(error) => assert!(
                rank == 1 && matches!(error, AskError::Died(_)),
                "{rank} {error}"
            ),
        }
    }
    let took = Clock::now().since(begun);
    assert!(took < DEADLINE / 2, "before the deadline: {took:?}");
    let refused = members[0].ask(Sum(1)).await.unwrap().unwrap_err();
    assert!(
        refused.contains("broken") && refused.contains("rank 1"),
        "{refused}"
    );
    assert_eq!(world.seat().await, 2);
    world.sums().await;
    world.system.shutdown().await;
}

/// SEMANTICS 52.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_whose_cards_do_different_things_are_told_who_called_what() {
    let Some(world) = World::start().await else {
        return;
    };
    world.seat().await;
    let answers = world.group.gather(SumOthers).timeout(PATIENCE);
    for (named, error) in answers.await.unwrap() {
        assert!(!named.is_empty(), "{error}");
        // Who differs from whom, as one of them found it.
        let called = ["10 f32", "11 f32", "12 f32"];
        let called = called.iter().filter(|call| error.contains(**call));
        assert!(called.count() >= 2, "{error}");
    }
    world.system.shutdown().await;
}

/// SEMANTICS 87.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_a_card_each_train_as_one_without_the_host() {
    let Some(world) = World::start().await else {
        return;
    };
    let formation = world.group.form().await.unwrap();
    let train = |seat| TrainTogether(seat, world.library.display().to_string());
    let trained_by = world
        .group
        .scatter(formation.seats().map(train).collect())
        .timeout(PATIENCE);
    let trained_by: Vec<_> = trained_by
        .await
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let (losses, alone) = trained(Cpu::new(1), 0..3, None).unwrap();
    for (theirs, weights) in &trained_by {
        assert_eq!(
            *weights, trained_by[0].1,
            "the same to the bit on every card"
        );
        for (one, other) in theirs.iter().zip(&losses) {
            assert!((one - other).abs() < 1e-4, "{theirs:?} {losses:?}");
        }
        let apart = weights.iter().zip(&alone).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-3, "{apart}");
    }
    assert!(losses[3] < losses[0], "{losses:?}");
    world.system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_whom_one_has_no_nccl_go_over_the_host_together() {
    let Some(world) = World::start().await else {
        return;
    };
    let formation = world.group.form().await.unwrap();
    let join = |seat| JoinWithout(seat, world.library.display().to_string());
    let sums = world
        .group
        .scatter(formation.seats().map(join).collect())
        .timeout(PATIENCE);
    assert_eq!(sums.await.unwrap(), vec![Ok(3.0); 3]);
    world.system.shutdown().await;
}
