//! Collectives between the cards of this machine, by NCCL itself. Skipped by name where there is no
//! card or no library.

use std::thread;
use std::time::Duration;

use odeon_collective::conformance::{self, Bench};
use odeon_collective::queue::gang;
use odeon_collective::{Collective, Communicator, Element, Fault, Reduce, Topology};
use odeon_gpu::cuda::nccl::{Nccl, NcclError, NcclLibrary};
use odeon_gpu::cuda::{Cuda, CudaArray, Elements, Gpu, GpuOptions};
use odeon_gpu::{Backend, Precision};
use odeon_skip::{Need, skip};

use crate::lacking::or_skipped;

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

/// The library and all cards.
fn machine() -> Option<(NcclLibrary, Vec<Cuda>)> {
    let library = or_skipped(NcclLibrary::load())?;
    let count = or_skipped(Gpu::count())?;
    if count == 0 {
        skip(Need::Card, "the driver sees none");
        return None;
    }
    let open = |device| Cuda::open(device, Precision::F32, &GpuOptions::default());
    let cards: Option<Vec<Cuda>> = (0..count).map(|device| or_skipped(open(device))).collect();
    let cards = cards?;
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

/// Runs a rank for each card of the machine.
fn run(body: impl Fn(&mut Nccl, &Cuda) + Sync) {
    if let Some((library, cards)) = machine() {
        run_on(library, &cards, body);
    }
}

/// Runs a rank for each of these cards on a thread of its own.
fn run_on(library: NcclLibrary, cards: &[Cuda], body: impl Fn(&mut Nccl, &Cuda) + Sync) {
    let ends = gang(&Topology::one_node(cards.len()), 1);
    thread::scope(|scope| {
        for (end, card) in ends.into_iter().zip(cards) {
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
    let Some((library, cards)) = machine() else {
        return;
    };
    if cards.len() < 2 {
        return skip(Need::TwoCards, "nobody misses the only card");
    }
    run_on(library, &cards, |nccl, card| {
        let (rank, world) = (nccl.membership().rank, nccl.membership().world());
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
