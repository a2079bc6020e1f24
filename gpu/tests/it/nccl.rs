//! Collectives between the cards of this machine, by NCCL itself. Skipped by name where there is no
//! card or no library; the reason is printed.

use std::thread;
use std::time::Duration;

use odeon_collective::conformance::{self, Bench};
use odeon_collective::queue::gang;
use odeon_collective::{Collective, Communicator, Element, Fault, Reduce, Topology};
use odeon_gpu::cuda::nccl::{Nccl, NcclError, NcclLibrary};
use odeon_gpu::cuda::{Cuda, CudaArray, CudaError, Elements, Gpu, GpuOptions};
use odeon_gpu::{Backend, Precision};

fn say(text: &str) {
    #[allow(
        clippy::print_stderr,
        reason = "who reads the output wants to know what ran"
    )]
    {
        let name = thread::current().name().unwrap_or("a test").to_owned();
        eprintln!("{name}: {text}");
    }
}

/// Returns true when the machine lacks what it takes, in contrast to something that is broken.
fn is_absent(error: &CudaError) -> bool {
    matches!(
        error,
        CudaError::NoDriver
            | CudaError::NoDevice { .. }
            | CudaError::NoLibrary { .. }
            | CudaError::OldLibrary { .. }
            | CudaError::OldDriver { .. }
            | CudaError::OldDevice { .. }
            | CudaError::Driver { .. }
    )
}

fn or_skipped<T>(result: Result<T, CudaError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(is_absent(&error), "{error}");
            say(&format!("skipped: {error}"));
            None
        }
    }
}

/// The library and all cards.
fn machine() -> Option<(NcclLibrary, Vec<Cuda>)> {
    let library = or_skipped(NcclLibrary::load())?;
    let count = or_skipped(Gpu::count())?;
    let open = |device| Cuda::open(device, Precision::F32, &GpuOptions::default());
    let cards: Option<Vec<Cuda>> = (0..count).map(|device| or_skipped(open(device))).collect();
    let cards = cards.filter(|cards| !cards.is_empty())?;
    say(&format!(
        "NCCL {}, cards: {}",
        library.version(),
        cards.len()
    ));
    Some((library, cards))
}

struct OnCard(Cuda);

impl Bench<Nccl> for OnCard {
    type Held<T: Element> = CudaArray<T, Gpu>;

    const ROUNDS_EACH: bool = true;

    fn put<T: Element>(&self, values: &[T]) -> CudaArray<T, Gpu> {
        let mut held = CudaArray::zeros(&self.0, values.len());
        held.write(values);
        held
    }

    fn get<T: Element>(&self, held: &CudaArray<T, Gpu>) -> Vec<T> {
        held.to_vec()
    }

    fn input<'a, T: Element>(&self, held: &'a CudaArray<T, Gpu>) -> &'a Elements<T, Gpu> {
        held
    }

    fn output<'a, T: Element>(&self, held: &'a mut CudaArray<T, Gpu>) -> &'a mut Elements<T, Gpu> {
        held
    }
}

/// Runs a rank for each card on a thread of its own.
fn run(body: impl Fn(&mut Nccl, &Cuda) + Sync) {
    let Some((library, cards)) = machine() else {
        return;
    };
    let ends = gang(&Topology::one_node(cards.len()), 1);
    thread::scope(|scope| {
        for (end, card) in ends.into_iter().zip(&cards) {
            let body = &body;
            scope.spawn(move || {
                let comm = Communicator::new(end);
                let mut nccl = Nccl::form(comm, card, &library).expect("all cards of one machine");
                body(&mut nccl, card);
            });
        }
    });
}

#[test]
fn every_operation_gives_what_arithmetic_gives() {
    run(|nccl, card| {
        conformance::check_on(nccl, &OnCard(card.clone()));
        nccl.wait().expect("nothing failed");
    });
}

#[test]
fn a_gradient_is_reduced_between_operations_of_the_card() {
    run(|nccl, card| {
        let mut gradient = card.buffer(&vec![1.0; 1 << 20]);
        for _ in 0..10 {
            let whole = Cuda::view_mut(&mut gradient, 0..1 << 20);
            nccl.all_reduce(&mut whole.elements(), Reduce::Mean)
                .expect("all-reduce");
            card.scale(2.0, Cuda::view_mut(&mut gradient, 0..1 << 20));
        }
        nccl.wait().expect("nothing failed");
        assert!(card.to_vec(&gradient).iter().all(|value| *value == 1024.0));
    });
}

/// Needs two cards: with one there is nobody to wait for.
#[test]
fn a_card_that_does_not_come_is_named() {
    run(|nccl, card| {
        let (rank, world) = (nccl.membership().rank, nccl.membership().world());
        if world < 2 {
            eprintln!("a_card_that_does_not_come_is_named: skipped, nobody misses the only card");
            return;
        }
        if rank == world - 1 {
            // Leaves at once; the others are told so, or miss it.
            return;
        }
        nccl.set_deadline(Duration::from_secs(10));
        let mut data = CudaArray::<f32, Gpu>::zeros(card, 1000);
        let done = nccl.all_reduce(&mut data, Reduce::Sum);
        let error = done.and_then(|()| nccl.wait()).expect_err("one is gone");
        let fault = error.fault().expect("a fault of the gang");
        assert_eq!(fault.ranks(), [world - 1], "{error}");
        assert!(!matches!(fault, Fault::Device { .. }), "{error}");
    });
}

#[test]
fn two_ranks_on_one_card_are_refused() {
    let Some((library, cards)) = machine() else {
        return;
    };
    thread::scope(|scope| {
        for end in gang(&Topology::one_node(2), 1) {
            let card = &cards[0];
            scope.spawn(move || {
                let formed = Nccl::form(Communicator::new(end), card, &library);
                let error = formed.map(drop).expect_err("one card for two ranks");
                assert!(matches!(error, NcclError::SharedDevice { .. }), "{error}");
            });
        }
    });
}

/// Needs the library alone.
#[test]
fn the_library_that_is_there_has_all_functions() {
    if let Some(library) = or_skipped(NcclLibrary::load()) {
        say(&format!("NCCL {}", library.version()));
        assert!(library.version() >= 21_800);
    }
}
