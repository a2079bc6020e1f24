//! The setup of the tests: a library in NCCL's place, cards, and a thread for each rank.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use odeon_collective::conformance::Bench;
use odeon_collective::queue::{Queues, gang};
use odeon_collective::{Collective, CollectiveError, Communicator, Element, Fault, Topology};
use odeon_gpu::Precision;
use odeon_gpu::cuda::emulated::{EmulatedError, ThreadOrder};
use odeon_gpu::cuda::nccl::{Nccl, NcclLibrary};
use odeon_gpu::cuda::{Cuda, CudaArray, Elements, Emulated};
use odeon_skip::{Need, skip};

pub(crate) type Comm = Nccl<Emulated>;
pub(crate) type Card = Cuda<Emulated>;

/// Long enough for a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);
/// For tests in which somebody does not come.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// The library in NCCL's place, compiled if nobody has before, or why there is none.
pub(crate) fn compiled() -> Result<PathBuf, String> {
    const SOURCE: &str = include_str!("standin.cpp");
    let compiler = env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let mut hasher = DefaultHasher::new();
    (SOURCE, &compiler).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("nccl-{:016x}.so", hasher.finish()));
    // One compiles, the others wait for it.
    let lock = fs::File::create(folder.join("nccl.lock")).unwrap();
    lock.lock().unwrap();
    if path.exists() {
        return Ok(path);
    }
    let (source, made) = (path.with_extension("cpp"), path.with_extension("made"));
    fs::write(&source, SOURCE).unwrap();
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-o"])
        .args([&made, &source])
        .arg("-ldl")
        .output()
        .map_err(|error| format!("{compiler} does not start: {error}"))?;
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    fs::rename(&made, &path).unwrap();
    Ok(path)
}

/// A library of a test's own, which behaves as `mode` says.
pub(crate) struct Standin {
    pub(crate) library: NcclLibrary,
    pub(crate) folder: tempfile::TempDir,
}

impl Standin {
    pub(crate) fn new(mode: &str) -> Option<Self> {
        let compiled = match compiled() {
            Ok(path) => path,
            Err(why) => {
                skip(Need::CppCompiler, why);
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnccl.so.2");
        fs::copy(compiled, &path).unwrap();
        fs::write(folder.path().join("libnccl.so.2.mode"), mode).unwrap();
        let library = NcclLibrary::at(&path).unwrap();
        Some(Self { library, folder })
    }

    /// From now on.
    pub(crate) fn behave(&self, mode: &str) {
        let (new, path) = ("new.mode", "libnccl.so.2.mode");
        fs::write(self.folder.path().join(new), mode).unwrap();
        fs::rename(self.folder.path().join(new), self.folder.path().join(path)).unwrap();
    }
}

pub(crate) fn card() -> Card {
    match Emulated::start(ThreadOrder::Forwards) {
        Ok(card) => Cuda::over(card, Precision::F32),
        Err(error @ EmulatedError::NoCompiler { .. }) => panic!("{error}, and yet there was one"),
        Err(error) => panic!("{error}"),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long a call took is what is tested"
)]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

pub(crate) fn ranks(world: usize) -> Vec<Communicator<Queues>> {
    let ends = gang(&Topology::one_node(world), 7);
    ends.into_iter()
        .map(|end| {
            let mut comm = Communicator::new(end);
            comm.set_deadline(PATIENT);
            comm
        })
        .collect()
}

/// Runs each rank on a thread and a card of its own, and gives what they give, in rank order.
pub(crate) fn run<R: Send>(
    standin: &Standin,
    world: usize,
    body: impl Fn(&mut Comm, &Card) -> R + Sync,
) -> Vec<R> {
    let gate = Barrier::new(world);
    each(ranks(world), |comm| {
        let card = card();
        let formed = Nccl::form(comm, &card, &standin.library);
        // A fault of one must not meet another that is still forming.
        gate.wait();
        let mut comm = formed.unwrap();
        body(&mut comm, &card)
    })
}

pub(crate) fn each<T: Send, R: Send>(ranks: Vec<T>, body: impl Fn(T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || body(rank)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

pub(crate) struct OnCard(pub(crate) Card);

impl Bench<Comm> for OnCard {
    type Held<T: Element> = CudaArray<T, Emulated>;

    const ROUNDS_EACH: bool = true;

    fn put<T: Element>(&self, values: &[T]) -> CudaArray<T, Emulated> {
        array(&self.0, values)
    }

    fn get<T: Element>(&self, held: &CudaArray<T, Emulated>) -> Vec<T> {
        held.to_vec()
    }

    fn input<'a, T: Element>(&self, held: &'a CudaArray<T, Emulated>) -> &'a Elements<T, Emulated> {
        held
    }

    fn output<'a, T: Element>(
        &self,
        held: &'a mut CudaArray<T, Emulated>,
    ) -> &'a mut Elements<T, Emulated> {
        held
    }
}

pub(crate) fn array<T: Element>(card: &Card, values: &[T]) -> CudaArray<T, Emulated> {
    let mut held = CudaArray::zeros(card, values.len());
    held.write(values);
    held
}

pub(crate) fn ones(card: &Card, len: usize) -> CudaArray<f32, Emulated> {
    array(card, &vec![1.0; len])
}

pub(crate) fn fault(error: &CollectiveError) -> Fault {
    error.fault().cloned().unwrap_or_else(|| panic!("{error}"))
}
