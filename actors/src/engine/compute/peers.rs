//! The ranks that train one model together: sums and exchanges over the collectives of their group, in memory of the
//! host, or between cards by NCCL.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use odeon::collective::{Collective, CollectiveError, Reduce};
use odeon::group::Communicator;
use odeon::{Clock, Failure, telemetry};
use odeon_algorithms::model::ShardTime;
use odeon_algorithms::train::{Peers, on_host};
use odeon_gpu::any::{AnyBuffer, AnyView, AnyViewMut};
use odeon_gpu::cuda::card::Card;
use odeon_gpu::cuda::nccl::{Nccl, NcclError, NcclLibrary};
use odeon_gpu::cuda::{Cuda, CudaArray, CudaBuffer, CudaError, Gpu};
use odeon_gpu::{Any, Backend, PassRanks};

/// A rank, with that over which it adds up numbers.
pub(crate) struct Gang {
    rank: usize,
    way: Way,
    /// Memory for sums of a shard.
    sums: Vec<f32>,
}

/// Spans of collectives within passes are kept where they last as long as this: a pass has several a layer.
const SPANS_FROM: Duration = Duration::from_millis(20);

/// Ranks that compute passes of a model together, as recordings ask for them.
pub(crate) struct PassGang {
    rank: usize,
    ranks: usize,
    gang: Mutex<Gang>,
    /// The reason why the pass that runs is worth nothing.
    failure: Mutex<Option<Failure>>,
    /// Time in collectives that passes wait for, since that was asked for.
    spent: Mutex<Duration>,
    /// Time in those that move shards, and for which passes waited for these.
    moves: Mutex<ShardTime>,
}

impl std::fmt::Debug for PassGang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassGang")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl PassGang {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            rank: comm.membership().rank,
            ranks: comm.membership().world(),
            gang: Mutex::new(Gang::new(comm.with_spans_from(SPANS_FROM))),
            failure: Mutex::default(),
            spent: Mutex::default(),
            moves: Mutex::default(),
        }
    }

    /// Adds up numbers over the ranks between their passes.
    ///
    /// # Errors
    /// A rank is lost, or a collective has failed before; this rank has left the others then.
    pub(crate) fn sum_numbers(&self, numbers: &mut [f32]) -> Result<(), Failure> {
        self.check()?;
        let mut gang = self.gang.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Clock::now();
        let summed = gang.sum(numbers);
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        *spent += Clock::now().since(begun);
        if summed.is_err() {
            gang.leave();
        }
        summed
    }

    /// Leaves the others, see [`Gang::leave`].
    pub(crate) fn leave(&self) {
        let mut gang = self.gang.lock().unwrap_or_else(PoisonError::into_inner);
        gang.leave();
    }

    /// The seconds for which passes waited for collectives since this was asked last.
    pub(crate) fn take_seconds(&self) -> f64 {
        take(&self.spent).as_secs_f64()
    }

    /// The time in which shards were moved, and for which passes waited for it, since this was asked last.
    pub(crate) fn take_moves(&self) -> ShardTime {
        take(&self.moves)
    }

    /// Checks that all ranks have had their part in each collective so far.
    ///
    /// # Errors
    /// The first that is not; this rank has left the others then.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    /// A collective that the pass waits for, unless one has failed; `None` where it has, or this one fails.
    fn together<T>(
        &self,
        backend: &Any,
        collective: impl FnOnce(&mut Gang) -> Result<T, Failure>,
    ) -> Option<T> {
        let (done, took) = self.timed(backend, collective);
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += took;
        done
    }

    /// The same of one that moves a shard: it may run beside the pass, and is [waited](PassRanks::wait) for apart.
    fn beside<T>(
        &self,
        backend: &Any,
        collective: impl FnOnce(&mut Gang) -> Result<T, Failure>,
    ) -> Option<T> {
        let (done, took) = self.timed(backend, collective);
        self.count(|moves| moves.moving += took);
        done
    }

    fn count(&self, took: impl FnOnce(&mut ShardTime)) {
        took(&mut self.moves.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn timed<T>(
        &self,
        backend: &Any,
        collective: impl FnOnce(&mut Gang) -> Result<T, Failure>,
    ) -> (Option<T>, Duration) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_some() {
            return (None, Duration::ZERO);
        }
        let mut gang = self.gang.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Clock::now();
        let done = gang
            .on(backend)
            .map(drop)
            .and_then(|()| collective(&mut gang));
        let took = Clock::now().since(begun);
        match done {
            Ok(done) => (Some(done), took),
            Err(error) => {
                gang.leave();
                *failure = Some(error);
                (None, took)
            }
        }
    }
}

fn take<T: Default>(sum: &Mutex<T>) -> T {
    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *sum)
}

impl PassRanks<Any> for PassGang {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.ranks
    }

    fn sum(&self, backend: &Any, numbers: &mut AnyBuffer, range: Range<usize>) {
        self.together(backend, |gang| gang.sum_buffer(backend, numbers, range));
    }

    fn scatter(&self, backend: &Any, numbers: &mut AnyBuffer, len: usize) {
        let counts = vec![len / self.ranks; self.ranks];
        self.together(backend, |gang| {
            gang.scatter_buffer(backend, numbers, &counts)
        });
    }

    fn gather(&self, backend: &Any, numbers: &mut AnyBuffer, len: usize) {
        let counts = vec![len / self.ranks; self.ranks];
        self.together(backend, |gang| {
            gang.gather_buffer(backend, numbers, &counts)
        });
    }

    fn exchange(
        &self,
        backend: &Any,
        from: &AnyBuffer,
        sends: &[usize],
        to: &mut AnyBuffer,
        receives: &[usize],
    ) {
        self.together(backend, |gang| {
            gang.exchange(backend, (from, sends), (to, receives))
        });
    }

    fn gather_shards(
        &self,
        backend: &Any,
        shard: AnyView<'_>,
        len: usize,
        all: &mut AnyBuffer,
    ) -> usize {
        let counts = vec![len; self.ranks];
        let copied = self.beside(backend, |gang| {
            gang.gather_shards(backend, shard, &counts, all)
        });
        copied.unwrap_or(0)
    }

    fn reduce_shards(
        &self,
        backend: &Any,
        all: &mut AnyBuffer,
        len: usize,
        shard: AnyViewMut<'_>,
    ) -> usize {
        let counts = vec![len; self.ranks];
        let copied = self.beside(backend, |gang| {
            gang.reduce_shards(backend, all, &counts, shard)
        });
        copied.unwrap_or(0)
    }

    fn wait(&self, until: &mut (dyn FnMut() + Send)) {
        let begun = Clock::now();
        until();
        let took = Clock::now().since(begun);
        self.count(|moves| moves.waited += took);
    }

    fn tell(&self, backend: &Any, counts: &[u32]) -> Vec<u32> {
        let told = self.together(backend, |gang| gang.tell(counts));
        told.unwrap_or_else(|| vec![0; counts.len()])
    }
}

/// That over which numbers are added up.
enum Way {
    /// A seat whose rank has not computed yet.
    Open(Mutex<Communicator>),
    /// Memory of the host.
    Host(Mutex<Communicator>),
    Cards(Box<Cards<Gpu>>),
    /// Nobody: the others were lost, or this rank has left them.
    Nobody,
}

impl std::fmt::Debug for Gang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gang")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Gang {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            rank: comm.membership().rank,
            way: Way::Open(Mutex::new(comm)),
            sums: vec![],
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Leaves the others, who know at once: without it they would wait for this rank at their next sum.
    pub(crate) fn leave(&mut self) {
        self.way = Way::Nobody;
    }

    /// The way over memory of the host.
    fn on_the_host(&mut self) -> Result<&mut Communicator, Failure> {
        match &mut self.way {
            Way::Open(comm) | Way::Host(comm) => {
                Ok(comm.get_mut().unwrap_or_else(PoisonError::into_inner))
            }
            Way::Cards(_) => Err(Failure::error("these ranks add up on their cards")),
            Way::Nobody => Err(Failure::error("this rank has left the others")),
        }
    }

    /// The ranks, joined where these compute: by NCCL between cards if all of them have it, else over the host.
    /// All ranks call it together the first time.
    ///
    /// # Errors
    /// A rank is lost, or NCCL refuses.
    pub(crate) fn on(
        &mut self,
        backend: &Any,
    ) -> Result<&mut dyn Peers<Any, Error = Failure>, Failure> {
        if matches!(self.way, Way::Open(_))
            && let Way::Open(comm) = std::mem::replace(&mut self.way, Way::Nobody)
        {
            let comm = comm.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.way = joined(comm, backend)?;
        }
        Ok(self)
    }

    /// Sends runs of numbers, so many to each rank, and receives so many from each.
    fn exchange(
        &mut self,
        backend: &Any,
        (from, sends): (&AnyBuffer, &[usize]),
        (to, receives): (&mut AnyBuffer, &[usize]),
    ) -> Result<(), Failure> {
        if let Way::Cards(cards) = &mut self.way
            && let (AnyBuffer::Cuda(from), AnyBuffer::Cuda(to)) = (from, &mut *to)
        {
            return cards.exchange((from, sends), (to, receives));
        }
        let len = sends.iter().sum();
        let read = |len| {
            let mut numbers = vec![0.0; len];
            backend.read(Any::view(from, 0..len), &mut numbers);
            Cow::Owned(numbers)
        };
        let own = Any::host(from).map_or_else(|| read(len), |own| Cow::Borrowed(&own[..len]));
        on_host(backend, to, 0..receives.iter().sum(), |numbers| {
            let comm = self.on_the_host()?;
            comm.all_to_all_v(&own, sends, numbers, receives)
                .map_err(Failure::error)
        })
    }

    /// Gives each rank's shard to all; answers the bytes that were copied before and behind the collective. None in
    /// memory of the host: it reads a shard where that lies, and writes where operations read.
    fn gather_shards(
        &mut self,
        backend: &Any,
        shard: AnyView<'_>,
        counts: &[usize],
        all: &mut AnyBuffer,
    ) -> Result<usize, Failure> {
        let (own, len) = (part_of(self.rank, counts), counts.iter().sum::<usize>());
        if let (AnyView::Cpu(shard), Some(all)) = (shard, Any::host_mut(all)) {
            let comm = self.on_the_host()?;
            let gathered = comm.all_gather_v(shard, counts, &mut all[..len]);
            return gathered.map(|()| 0).map_err(Failure::error);
        }
        // A card's shard goes to its place among all, and from there to the others.
        let copied = size_of::<f32>() * (2 * own.len() + self.passes_through_host(len));
        backend.copy(shard, Any::view_mut(all, own));
        self.gather_buffer(backend, all, counts)?;
        Ok(copied)
    }

    /// Adds up numbers over all ranks, and adds to this rank's shard its part of the sums; answers the bytes that were
    /// copied before and behind the collective. None in memory of the host.
    fn reduce_shards(
        &mut self,
        backend: &Any,
        all: &mut AnyBuffer,
        counts: &[usize],
        shard: AnyViewMut<'_>,
    ) -> Result<usize, Failure> {
        let (own, len) = (part_of(self.rank, counts), counts.iter().sum::<usize>());
        if let (AnyViewMut::Cpu(_), Some(all)) = (&shard, Any::host(all)) {
            let mut sums = std::mem::take(&mut self.sums);
            sums.resize(own.len(), 0.0);
            let comm = self.on_the_host()?;
            comm.reduce_scatter_v(&all[..len], counts, &mut sums, Reduce::Sum)
                .map_err(Failure::error)?;
            backend.axpy(1.0, AnyView::Cpu(&sums), shard);
            self.sums = sums;
            return Ok(0);
        }
        let copied = size_of::<f32>() * (own.len() + self.passes_through_host(len));
        self.scatter_buffer(backend, all, counts)?;
        backend.axpy(1.0, Any::view(all, own), shard);
        Ok(copied)
    }

    /// Numbers that are copied to the host and back where so many lie on a card and are exchanged there.
    const fn passes_through_host(&self, len: usize) -> usize {
        match self.way {
            Way::Cards(_) => 0,
            _ => 2 * len,
        }
    }

    /// Tells each rank as many counts, and hears as many from each. They travel as numbers that are whole up to 2^24.
    fn tell(&mut self, counts: &[u32]) -> Result<Vec<u32>, Failure> {
        let own: Vec<f32> = counts.iter().map(|count| *count as f32).collect();
        let mut heard = vec![0.0; own.len()];
        match &mut self.way {
            Way::Cards(cards) => cards.tell(&own, &mut heard)?,
            _ => {
                let comm = self.on_the_host()?;
                comm.all_to_all(&own, &mut heard).map_err(Failure::error)?;
            }
        }
        Ok(heard.into_iter().map(|count| count as u32).collect())
    }
}

/// See [`Gang::on`].
fn joined(comm: Communicator, backend: &Any) -> Result<Way, Failure> {
    let host = |comm| Way::Host(Mutex::new(comm));
    match backend {
        Any::Cuda(cuda) if comm.membership().world() > 1 => {
            Ok(match Cards::join(comm, cuda, NcclLibrary::load())? {
                Joined::Cards(cards) => Way::Cards(cards),
                Joined::Host(comm) => host(*comm),
            })
        }
        _ => Ok(host(comm)),
    }
}

/// The way in which ranks with a card each came together.
#[derive(Debug)]
pub enum Joined<C: Card> {
    /// Their cards.
    Cards(Box<Cards<C>>),
    /// Memory of the host, since NCCL cannot be had for all of them.
    Host(Box<Communicator>),
}

impl Peers<Any> for Gang {
    type Error = Failure;

    fn rank(&self) -> usize {
        self.rank
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Failure> {
        if let Way::Cards(cards) = &mut self.way {
            return cards.sum(numbers);
        }
        let summed = self.on_the_host()?.all_reduce(numbers, Reduce::Sum);
        summed.map_err(Failure::error)
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), Failure> {
        counted(counts, |digits| self.sum(digits))
    }

    fn sum_buffer(
        &mut self,
        backend: &Any,
        numbers: &mut AnyBuffer,
        range: Range<usize>,
    ) -> Result<(), Failure> {
        match (&mut self.way, numbers) {
            (Way::Cards(cards), AnyBuffer::Cuda(numbers)) => cards.sum_part(numbers, range),
            (_, numbers) => on_host(backend, numbers, range, |numbers| self.sum(numbers)),
        }
    }

    fn scatter_buffer(
        &mut self,
        backend: &Any,
        numbers: &mut AnyBuffer,
        counts: &[usize],
    ) -> Result<(), Failure> {
        match (&mut self.way, numbers) {
            (Way::Cards(cards), AnyBuffer::Cuda(numbers)) => cards.scatter(numbers, counts),
            (_, numbers) => {
                let own = part_of(self.rank, counts);
                on_host(backend, numbers, 0..counts.iter().sum(), |numbers| {
                    let mut sums = vec![0.0; own.len()];
                    let comm = self.on_the_host()?;
                    comm.reduce_scatter_v(numbers, counts, &mut sums, Reduce::Sum)
                        .map_err(Failure::error)?;
                    numbers[own].copy_from_slice(&sums);
                    Ok(())
                })
            }
        }
    }

    fn gather_buffer(
        &mut self,
        backend: &Any,
        numbers: &mut AnyBuffer,
        counts: &[usize],
    ) -> Result<(), Failure> {
        match (&mut self.way, numbers) {
            (Way::Cards(cards), AnyBuffer::Cuda(numbers)) => cards.gather(numbers, counts),
            (_, numbers) => {
                let own = part_of(self.rank, counts);
                on_host(backend, numbers, 0..counts.iter().sum(), |numbers| {
                    let own = numbers[own].to_vec();
                    let comm = self.on_the_host()?;
                    comm.all_gather_v(&own, counts, numbers)
                        .map_err(Failure::error)
                })
            }
        }
    }
}

/// A rank's part of numbers that have one for each rank, one behind the other.
fn part_of(rank: usize, counts: &[usize]) -> Range<usize> {
    let begin = counts[..rank].iter().sum();
    begin..begin + counts[rank]
}

/// Ranks with a card each, which add up what lies there without the host.
#[derive(Debug)]
pub struct Cards<C: Card = Gpu> {
    cuda: Cuda<C>,
    nccl: Mutex<Nccl<C>>,
}

impl<C: Card> Cards<C> {
    /// Joins the cards of all ranks, where each has NCCL in the same version and a card of its own; else all of
    /// them are left with their communicator, and a warning of the first one says why. Every rank calls it.
    ///
    /// # Errors
    /// A rank is lost, or NCCL refuses.
    pub fn join(
        mut comm: Communicator,
        cuda: &Cuda<C>,
        library: Result<NcclLibrary, CudaError>,
    ) -> Result<Joined<C>, Failure> {
        let mut having = [if library.is_ok() { 1.0 } else { 0.0 }];
        comm.all_reduce(&mut having, Reduce::Sum)
            .map_err(Failure::error)?;
        let all_have = having[0] as usize == comm.membership().world();
        let why = match library {
            Err(error) => error.to_string(),
            Ok(_) if !all_have => "another rank has no NCCL".to_owned(),
            Ok(library) => match Nccl::fits(&mut comm, cuda, &library) {
                Ok(()) => {
                    let nccl = Nccl::form(comm.into_inner(), cuda, &library);
                    return Ok(Joined::Cards(Box::new(Self {
                        cuda: cuda.clone(),
                        nccl: Mutex::new(nccl.map_err(Failure::error)?),
                    })));
                }
                Err(why @ (NcclError::Versions { .. } | NcclError::SharedDevice { .. })) => {
                    why.to_string()
                }
                Err(error) => return Err(Failure::error(error)),
            },
        };
        // All ranks know it: the first one says it.
        if comm.membership().rank == 0 {
            let ranks = comm.membership().world();
            tracing::warn!(%why, ranks, "numbers of cards go from rank to rank over the host");
        }
        Ok(Joined::Host(Box::new(comm)))
    }

    fn sum_part(&mut self, numbers: &mut CudaBuffer<C>, part: Range<usize>) -> Result<(), Failure> {
        let mut numbers = Cuda::view_mut(numbers, part).elements();
        self.spanned("all_reduce", |nccl| {
            nccl.all_reduce(&mut numbers, Reduce::Sum)
        })
    }

    fn scatter(&mut self, numbers: &mut CudaBuffer<C>, counts: &[usize]) -> Result<(), Failure> {
        let (own, cuda) = (part_of(self.rank(), counts), self.cuda.clone());
        let mut sums = cuda.alloc(own.len());
        {
            let all = Cuda::view_mut(numbers, 0..counts.iter().sum()).elements();
            let mut sums = Cuda::view_mut(&mut sums, 0..own.len()).elements();
            self.spanned("reduce_scatter", |nccl| {
                nccl.reduce_scatter_v(&all, counts, &mut sums, Reduce::Sum)
            })?;
        }
        let sums = Cuda::view(&sums, 0..own.len());
        cuda.copy(sums, Cuda::view_mut(numbers, own));
        Ok(())
    }

    fn gather(&mut self, numbers: &mut CudaBuffer<C>, counts: &[usize]) -> Result<(), Failure> {
        let (own, cuda) = (part_of(self.rank(), counts), self.cuda.clone());
        let len = own.len();
        let mut copied = cuda.alloc(len);
        cuda.copy(
            Cuda::view(numbers, own),
            Cuda::view_mut(&mut copied, 0..len),
        );
        let own = Cuda::view_mut(&mut copied, 0..len).elements();
        let all = 0..counts.iter().sum();
        let mut all = Cuda::view_mut(numbers, all).elements();
        self.spanned("all_gather", |nccl| {
            nccl.all_gather_v(&own, counts, &mut all)
        })
    }

    fn exchange(
        &mut self,
        (from, sends): (&CudaBuffer<C>, &[usize]),
        (to, receives): (&mut CudaBuffer<C>, &[usize]),
    ) -> Result<(), Failure> {
        let cuda = self.cuda.clone();
        let len = sends.iter().sum();
        // The elements of a buffer that is lent can only be read where it is lent to be written.
        let mut own = cuda.alloc(len);
        cuda.copy(Cuda::view(from, 0..len), Cuda::view_mut(&mut own, 0..len));
        let own = Cuda::view_mut(&mut own, 0..len).elements();
        let mut to = Cuda::view_mut(to, 0..receives.iter().sum()).elements();
        self.spanned("all_to_all", |nccl| {
            nccl.all_to_all_v(&own, sends, &mut to, receives)
        })
    }

    /// Numbers of the host pass through the card.
    fn tell(&mut self, numbers: &[f32], heard: &mut [f32]) -> Result<(), Failure> {
        let mut own = CudaArray::zeros(&self.cuda, numbers.len());
        own.write(numbers);
        let mut received = CudaArray::zeros(&self.cuda, heard.len());
        self.spanned("all_to_all", |nccl| nccl.all_to_all(&own, &mut received))?;
        heard.copy_from_slice(&received.to_vec());
        Ok(())
    }

    /// A collective between cards, waited for, as a span of this name.
    fn spanned(
        &mut self,
        name: &'static str,
        begin: impl FnOnce(&mut Nccl<C>) -> Result<(), CollectiveError>,
    ) -> Result<(), Failure> {
        let nccl = self.nccl.get_mut().unwrap_or_else(PoisonError::into_inner);
        let span = telemetry::span(name);
        let done = begin(nccl).and_then(|()| nccl.wait());
        match &done {
            Ok(()) => span.end(),
            Err(_) => span.fail(),
        }
        done.map_err(Failure::error)
    }
}

impl<C: Card> Peers<Cuda<C>> for Cards<C> {
    type Error = Failure;

    fn rank(&self) -> usize {
        let nccl = self.nccl.lock().unwrap_or_else(PoisonError::into_inner);
        nccl.membership().rank
    }

    /// Numbers of the host pass through the card.
    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Failure> {
        let nccl = self.nccl.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut data = CudaArray::zeros(&self.cuda, numbers.len());
        data.write(numbers);
        nccl.all_reduce(&mut data, Reduce::Sum)
            .and_then(|()| nccl.wait())
            .map_err(Failure::error)?;
        numbers.copy_from_slice(&data.to_vec());
        Ok(())
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), Failure> {
        counted(counts, |digits| self.sum(digits))
    }

    fn sum_buffer(
        &mut self,
        _: &Cuda<C>,
        numbers: &mut CudaBuffer<C>,
        range: Range<usize>,
    ) -> Result<(), Failure> {
        self.sum_part(numbers, range)
    }

    fn scatter_buffer(
        &mut self,
        _: &Cuda<C>,
        numbers: &mut CudaBuffer<C>,
        counts: &[usize],
    ) -> Result<(), Failure> {
        self.scatter(numbers, counts)
    }

    fn gather_buffer(
        &mut self,
        _: &Cuda<C>,
        numbers: &mut CudaBuffer<C>,
        counts: &[usize],
    ) -> Result<(), Failure> {
        self.gather(numbers, counts)
    }
}

/// Adds up counts by sums of `f32`.
fn counted(
    counts: &mut [u64],
    sum: impl FnOnce(&mut [f32]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut all: Vec<f32> = counts.iter().flat_map(|count| digits(*count)).collect();
    sum(&mut all)?;
    for (count, digits) in counts.iter_mut().zip(all.as_chunks().0) {
        *count = number(*digits);
    }
    Ok(())
}

/// Digits of 16 bits, the least first: sums of those of 256 ranks are exact.
fn digits(count: u64) -> [f32; 4] {
    std::array::from_fn(|digit| ((count >> (16 * digit)) & 0xffff) as f32)
}

fn number(digits: [f32; 4]) -> u64 {
    let shifted = digits.iter().zip([0, 16, 32, 48]);
    shifted.fold(0, |sum, (digit, shift)| sum + ((*digit as u64) << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_counts_are_exact() {
        for counts in [
            vec![0, 1, 65_535],
            vec![65_536, 16_777_217, 3],
            vec![(1 << 40) + 12_345; 256],
        ] {
            let mut sums = [0.0; 4];
            for count in &counts {
                for (sum, digit) in sums.iter_mut().zip(digits(*count)) {
                    *sum += digit;
                }
            }
            assert_eq!(number(sums), counts.iter().sum::<u64>());
        }
    }
}
