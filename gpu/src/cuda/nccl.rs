//! Collectives between cards, by NCCL.
//!
//! ```text
//!  Nccl: Collective ── calls on the card's queue ── NcclLibrary (libnccl, loaded at run time)
//!    └─ a thread that watches ── Transport          of a communicator on the processor
//! ```
//!
//! An [`Nccl`] is formed over a [`Communicator`] on the processor: who is who, the generation and
//! the naming of missing ranks are those of that communicator, and versions and devices are
//! compared over it before NCCL begins. Then its transport goes to a thread that watches.
//!
//! A call returns when NCCL has queued it behind what the card was given before. It costs no
//! exchange between processors. The thread sees when it has ended; when it has not within the
//! deadline, the ranks' threads tell each other what was called, the fault names who did not come or
//! who called what, and NCCL is aborted, so that nothing waits for ever: no call, no read, and not
//! the card. The next call tells the fault, or [`Nccl::wait`], which is the way to know before
//! numbers are read. What a read gives after a fault is unspecified.
//!
//! NCCL does not compare calls. Ranks that call different things either wait for each other, which
//! the deadline ends with what each has called, or mix their numbers. So each rank's thread tells
//! the next one every ten milliseconds what was called, and a difference breaks the communicator
//! within moments, though perhaps after wrong numbers were read. The lengths of an all-to-all's parts
//! and of sends are compared when one does not end.
//!
//! ```no_run
//! use odeon_collective::{Collective, Communicator, Reduce, Transport};
//! use odeon_gpu::Backend;
//! use odeon_gpu::cuda::nccl::{Nccl, NcclError, NcclLibrary};
//! use odeon_gpu::cuda::{Cuda, CudaBuffer, Gpu};
//!
//! /// On every rank, with its own end of the communicator and its own card.
//! fn average<X: Transport + 'static>(
//!     comm: Communicator<X>,
//!     cuda: &Cuda,
//!     nccl: &NcclLibrary,
//!     gradients: &mut CudaBuffer<Gpu>,
//! ) -> Result<(), NcclError> {
//!     let mut comm = Nccl::form(comm, cuda, nccl)?;
//!     let all = 0..Cuda::len(gradients);
//!     comm.all_reduce(&mut Cuda::view_mut(gradients, all).elements(), Reduce::Mean)?;
//!     Ok(comm.wait()?)
//! }
//! ```
//!
//! NCCL rounds bf16 at each addition, where a [`Communicator`] rounds once; and its maximum and
//! minimum may pass over a NaN.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `nccl/library` | NCCL's functions, loaded at run time; all unsafe code of their use |
//! | `nccl/form` | the comparison of all ranks before NCCL begins |
//! | `nccl/watch` | the thread that sees calls end, asks the other ranks, tells faults and aborts |

mod form;
mod library;
mod watch;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

pub use form::NcclError;
use form::{agree, compare};
pub use library::NcclLibrary;
use library::{Comm, Refusal, Span};
use odeon_diagnosis::collective::Log;
use watch::{Flight, Held, Shared, Watch};

use crate::cuda::card::Card;
use crate::cuda::elements::{CudaArray, Elements};
use crate::cuda::gpu::Gpu;
use crate::cuda::handle::Cuda;
use odeon_collective::{
    Algorithm, Collective, CollectiveCall, CollectiveError, Communicator, Element, ElementType,
    Membership, Operation, Reduce, Report, Transport,
};

/// Calls under way at most; more wait for the first.
const FLIGHTS_MAX: usize = 1024;
/// The time that a wait sleeps before it looks again.
const PAUSE: Duration = Duration::from_micros(50);
/// The time that a rank that leaves waits for the others to leave as well. After that the thread
/// does.
const PARTING: Duration = Duration::from_secs(1);

/// [`Collective`] between cards. Parts of an [`Elements`] are its buffers.
///
/// Dropped, it parts with the other ranks; ranks that still call are told that this one is gone.
#[derive(Debug)]
pub struct Nccl<C: Card = Gpu> {
    cuda: Cuda<C>,
    membership: Membership,
    shared: Arc<Shared<C>>,
    /// The number that a barrier reduces.
    token: CudaArray<f32, C>,
}

/// The description of a call, apart from its numbers.
fn call_of<T: Element>(operation: Operation, count: usize) -> CollectiveCall {
    CollectiveCall {
        operation,
        element: T::TYPE,
        reduce: None,
        algorithm: Algorithm::Direct,
        peer: 0,
        count: count as u64,
        layout: 0,
    }
}

/// Where numbers of a call lie.
fn span<T: Element, C: Card>(elements: &Elements<T, C>, stream: u64) -> Span {
    Span {
        address: elements.address(),
        count: elements.len(),
        element: T::TYPE,
        stream,
    }
}

impl<C: Card> Nccl<C> {
    /// Forms a communicator of all ranks' cards. Every rank calls it, with its end of a communicator
    /// on the processor that has not failed, whose deadline holds from now on.
    ///
    /// # Errors
    ///
    /// [`NcclError`].
    pub fn form<X: Transport + 'static>(
        mut comm: Communicator<X>,
        cuda: &Cuda<C>,
        library: &NcclLibrary,
    ) -> Result<Self, NcclError> {
        let membership = comm.membership().clone();
        let (rank, world) = (membership.rank, membership.world());
        let id = agree(&mut comm, &cuda.card, library)?;
        // Its buffer is there before the others count on this rank.
        let token = CudaArray::zeros(cuda, 1);
        let (transport, deadline) = comm.into_parts();
        let shared = Arc::new(Shared {
            held: Mutex::new(Held::new(world, deadline)),
            changed: Condvar::new(),
        });
        let begun = call_of::<f32>(Operation::Barrier, 0);
        let watch = Watch::new(transport, &shared, &cuda.card, begun);
        thread::Builder::new()
            .name(format!("nccl-{rank}"))
            .spawn(move || watch.run())
            .map_err(|error| NcclError::Refused {
                rank,
                why: format!("the thread that watches does not start: {error}"),
            })?;
        let mut nccl = Self {
            cuda: cuda.clone(),
            membership,
            shared,
            token,
        };
        let device = cuda.card.stream().map_err(|fault| fault.to_string());
        let made = device.and_then(|_| {
            let made = library.init(world, id, rank);
            made.map_err(|refusal| refusal.to_string())
        });
        let mut held = nccl.shared.held.lock();
        match made {
            Ok(made) => held.comm = Some(made),
            // The others hear of it from the thread.
            Err(why) => held.suspicion = Some(why),
        }
        // As a call with the number 0, on which the deadline is kept as on any.
        held.flights.push_back(Flight {
            record: Log::forming(begun),
            mark: None,
            since: now(),
            deadline,
        });
        nccl.taken(held, &begun)?.flights.clear();
        nccl.barrier()?;
        Ok(nccl)
    }

    /// Compares the versions and the devices of all ranks over a communicator on the processor, which stays
    /// usable whatever comes out: every rank calls it, before [`form`](Self::form) that takes the communicator.
    ///
    /// # Errors
    ///
    /// [`NcclError::Versions`] and [`NcclError::SharedDevice`] on every rank alike; others where the
    /// comparison itself fails.
    pub fn fits<K>(comm: &mut K, cuda: &Cuda<C>, library: &NcclLibrary) -> Result<(), NcclError>
    where
        K: Collective<Buffer<f32> = [f32]>,
    {
        compare(comm, &cuda.card, library)
    }

    /// The first failure, as whoever found it told; every call fails from then on.
    #[must_use]
    pub fn broken(&self) -> Option<Report> {
        self.shared.held.lock().broken.clone()
    }

    /// Waits until all calls have ended on this rank's card: then their results can be read without
    /// doubt.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn wait(&mut self) -> Result<(), CollectiveError> {
        let call = call_of::<f32>(Operation::Barrier, 0);
        let held = self.shared.held.lock();
        drop(self.fewer_than(1, held, &call)?);
        Ok(())
    }

    /// Waits until less is under way.
    fn fewer_than<'a>(
        &self,
        flights: usize,
        mut held: MutexGuard<'a, Held<C>>,
        call: &CollectiveCall,
    ) -> Result<MutexGuard<'a, Held<C>>, CollectiveError> {
        loop {
            held.land(&self.cuda.card);
            held.usable(&self.membership, call)?;
            if held.flights.len() < flights {
                return Ok(held);
            }
            self.shared.changed.wait_for(&mut held, PAUSE);
        }
    }

    /// Waits until NCCL has taken the last call, and takes another.
    fn taken<'a>(
        &self,
        mut held: MutexGuard<'a, Held<C>>,
        call: &CollectiveCall,
    ) -> Result<MutexGuard<'a, Held<C>>, CollectiveError> {
        loop {
            held.usable(&self.membership, call)?;
            if held.suspicion.is_none() && held.is_ready() {
                return Ok(held);
            }
            self.shared.changed.wait_for(&mut held, PAUSE);
        }
    }

    /// Makes a call: notes it and has NCCL queue `work`, given the card's stream.
    fn make(
        &mut self,
        call: CollectiveCall,
        parts: Vec<(u64, u64)>,
        work: impl FnOnce(&Comm, u64) -> Result<(), Refusal>,
    ) -> Result<(), CollectiveError> {
        // Nothing else is put on the card's queue between what waits and this.
        let mut queue = self.cuda.queue.lock();
        let stream = queue.flushed().and_then(|()| self.cuda.card.stream());
        let held = self.shared.held.lock();
        let held = self.fewer_than(FLIGHTS_MAX, held, &call)?;
        let mut held = self.taken(held, &call)?;
        let record = held.log.add(call, parts);
        let deadline = held.deadline;
        held.queued += 1;
        held.flights.push_back(Flight {
            record,
            mark: None,
            since: now(),
            deadline,
        });
        let done = match (stream, &held.comm) {
            (Ok(stream), Some(comm)) => work(comm, stream).map_err(|refusal| refusal.to_string()),
            (Err(fault), _) => Err(fault.to_string()),
            (_, None) => Ok(()),
        };
        // Whether others are to blame is for the thread to find out.
        if let Err(why) = done {
            held.suspicion.get_or_insert(why);
        }
        drop(self.taken(held, &call)?);
        let mark = self.cuda.card.mark();
        let mut held = self.shared.held.lock();
        match mark {
            Ok(mark) => {
                if let Some(flight) = held.flights.back_mut() {
                    flight.mark = Some(mark);
                }
                Ok(())
            }
            Err(fault) => {
                held.suspicion = Some(fault.to_string());
                drop(self.taken(held, &call)?);
                Ok(())
            }
        }
    }

    /// Notes a call in which no numbers move. The others make it as well.
    fn note(
        &mut self,
        call: CollectiveCall,
        parts: Vec<(u64, u64)>,
    ) -> Result<(), CollectiveError> {
        let mut held = self.shared.held.lock();
        held.usable(&self.membership, &call)?;
        held.log.add(call, parts);
        Ok(())
    }

    /// Refuses numbers of another card.
    fn check_card<T: Element>(
        &self,
        operation: Operation,
        elements: &Elements<T, C>,
    ) -> Result<(), CollectiveError> {
        if elements.are_on(&self.cuda.queue) {
            return Ok(());
        }
        let why = "a buffer is not in memory of the card that the communicator was formed with";
        Err(self.membership.misuse(operation, why.to_owned()))
    }

    fn check_pair<T: Element>(
        &self,
        operation: Operation,
        elements: &Elements<T, C>,
        other: usize,
    ) -> Result<CollectiveCall, CollectiveError> {
        self.membership.check_rank(operation, "other side", other)?;
        self.check_card(operation, elements)?;
        if other == self.membership.rank {
            let why = "a rank cannot be its own other side".to_owned();
            return Err(self.membership.misuse(operation, why));
        }
        Ok(CollectiveCall {
            peer: other as u32,
            ..call_of::<T>(operation, elements.len())
        })
    }
}

impl<C: Card> Collective for Nccl<C> {
    type Buffer<T: Element> = Elements<T, C>;

    fn membership(&self) -> &Membership {
        &self.membership
    }

    fn set_deadline(&mut self, deadline: Duration) {
        self.shared.held.lock().deadline = deadline;
    }

    fn all_reduce<T: Element>(
        &mut self,
        data: &mut Elements<T, C>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let operation = Operation::AllReduce;
        self.check_card(operation, data)?;
        let call = CollectiveCall {
            reduce: Some(reduce),
            ..call_of::<T>(operation, data.len())
        };
        if data.is_empty() {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            comm.all_reduce(span(data, stream), reduce)
        })
    }

    fn broadcast<T: Element>(
        &mut self,
        data: &mut Elements<T, C>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let operation = Operation::Broadcast;
        self.membership.check_rank(operation, "root", root)?;
        self.check_card(operation, data)?;
        let call = CollectiveCall {
            peer: root as u32,
            ..call_of::<T>(operation, data.len())
        };
        if data.is_empty() {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            comm.broadcast(data.address(), span(data, stream), root)
        })
    }

    fn all_gather<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        output: &mut Elements<T, C>,
    ) -> Result<(), CollectiveError> {
        let counts = vec![input.len(); self.membership.world()];
        self.all_gather_v(input, &counts, output)
    }

    fn all_gather_v<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        counts: &[usize],
        output: &mut Elements<T, C>,
    ) -> Result<(), CollectiveError> {
        let operation = Operation::AllGather;
        let total = self.membership.check_counts(operation, counts)?;
        let own = counts[self.membership.rank];
        self.membership.fit(operation, "input", input.len(), own)?;
        self.membership
            .fit(operation, "output", output.len(), total)?;
        self.check_card(operation, input)?;
        self.check_card(operation, output)?;
        let call = CollectiveCall {
            layout: CollectiveCall::layout_of(counts),
            ..call_of::<T>(operation, total)
        };
        if total == 0 {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            let output = span(output, stream);
            if counts.iter().all(|count| *count == own) {
                return comm.all_gather(span(input, stream), output.address);
            }
            comm.group(|comm| {
                let parts = parts(counts)
                    .enumerate()
                    .filter(|(_, (_, count))| *count > 0);
                for (root, (start, count)) in parts {
                    comm.broadcast(input.address(), output.part(start, count), root)?;
                }
                Ok(())
            })
        })
    }

    fn reduce_scatter<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        output: &mut Elements<T, C>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let counts = vec![output.len(); self.membership.world()];
        self.reduce_scatter_v(input, &counts, output, reduce)
    }

    fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        counts: &[usize],
        output: &mut Elements<T, C>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let operation = Operation::ReduceScatter;
        let total = self.membership.check_counts(operation, counts)?;
        let own = counts[self.membership.rank];
        self.membership
            .fit(operation, "input", input.len(), total)?;
        self.membership
            .fit(operation, "output", output.len(), own)?;
        self.check_card(operation, input)?;
        self.check_card(operation, output)?;
        let call = CollectiveCall {
            reduce: Some(reduce),
            layout: CollectiveCall::layout_of(counts),
            ..call_of::<T>(operation, total)
        };
        if total == 0 {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            let input = span(input, stream);
            if counts.iter().all(|count| *count == own) {
                return comm.reduce_scatter(input.address, span(output, stream), reduce);
            }
            comm.group(|comm| {
                let parts = parts(counts)
                    .enumerate()
                    .filter(|(_, (_, count))| *count > 0);
                for (root, (start, count)) in parts {
                    comm.reduce(input.part(start, count), output.address(), reduce, root)?;
                }
                Ok(())
            })
        })
    }

    fn all_to_all<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        output: &mut Elements<T, C>,
    ) -> Result<(), CollectiveError> {
        let counts = self.membership.shares(Operation::AllToAll, input.len())?;
        self.all_to_all_v(input, &counts, output, &counts)
    }

    fn all_to_all_v<T: Element>(
        &mut self,
        input: &Elements<T, C>,
        to: &[usize],
        output: &mut Elements<T, C>,
        from: &[usize],
    ) -> Result<(), CollectiveError> {
        let operation = Operation::AllToAll;
        self.membership
            .check_exchange(operation, (input.len(), to), (output.len(), from))?;
        self.check_card(operation, input)?;
        self.check_card(operation, output)?;
        // Each rank has counts of its own: the others are told of those that are for them.
        let call = call_of::<T>(operation, 0);
        let told = to
            .iter()
            .zip(from)
            .map(|(to, from)| (*to as u64, *from as u64));
        let told = told.collect();
        if input.is_empty() && output.is_empty() {
            return self.note(call, told);
        }
        self.make(call, told, |comm, stream| {
            let (input, output) = (span(input, stream), span(output, stream));
            comm.group(|comm| {
                for (rank, (to, from)) in parts(to).zip(parts(from)).enumerate() {
                    if to.1 > 0 {
                        comm.send(input.part(to.0, to.1), rank)?;
                    }
                    if from.1 > 0 {
                        comm.receive(output.part(from.0, from.1), rank)?;
                    }
                }
                Ok(())
            })
        })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let token = Span {
            address: self.token.address(),
            count: 1,
            element: ElementType::F32,
            stream: 0,
        };
        let call = call_of::<f32>(Operation::Barrier, 0);
        self.make(call, vec![], |comm, stream| {
            comm.all_reduce(Span { stream, ..token }, Reduce::Max)
        })?;
        let mut held = self.shared.held.lock();
        loop {
            held.land(&self.cuda.card);
            // All were here, whatever has happened to one of them since.
            if held.landed == held.queued {
                return Ok(());
            }
            held.usable(&self.membership, &call)?;
            self.shared.changed.wait_for(&mut held, PAUSE);
        }
    }

    fn send<T: Element>(
        &mut self,
        data: &Elements<T, C>,
        to: usize,
    ) -> Result<(), CollectiveError> {
        let call = self.check_pair(Operation::Send, data, to)?;
        if data.is_empty() {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            comm.send(span(data, stream), to)
        })
    }

    fn receive<T: Element>(
        &mut self,
        data: &mut Elements<T, C>,
        from: usize,
    ) -> Result<(), CollectiveError> {
        let call = self.check_pair(Operation::Receive, data, from)?;
        if data.is_empty() {
            return self.note(call, vec![]);
        }
        self.make(call, vec![], |comm, stream| {
            comm.receive(span(data, stream), from)
        })
    }
}

/// Where each part begins, and how long it is.
fn parts(counts: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    counts.iter().scan(0, |start, count| {
        let part = (*start, *count);
        *start += count;
        Some(part)
    })
}

/// The one place where a call, or the thread that watches it, looks at the clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a call that blocks its thread has a real deadline"
)]
fn now() -> Instant {
    Instant::now()
}

impl<C: Card> Drop for Nccl<C> {
    fn drop(&mut self) {
        let until = now() + PARTING;
        let mut held = self.shared.held.lock();
        held.closing = true;
        self.shared.changed.notify_all();
        while !held.ended {
            if self.shared.changed.wait_until(&mut held, until).timed_out() {
                return;
            }
        }
    }
}
