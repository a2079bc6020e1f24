//! A rank's end of a gang: checks the arguments, numbers the calls, and remembers the first fault.

use std::time::{Duration, Instant};

use super::Collective;
use super::board;
use super::cost::Costs;
use super::element::{Element, Reduce};
use super::error::{CollectiveCall, CollectiveError, Failed, Fault, Operation, Report};
use super::flow::{FlowRecorder, Recording};
use super::run::{Header, Run, Scratch};
use super::schedule::{Algorithm, CollectiveTask, Incoming, Outgoing, SentFrom, Then, schedule};
use super::transport::{Membership, Transport, Trouble};

/// The default time that a call waits for a missing rank, unless [`Collective::set_deadline`] says
/// otherwise.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// [`Collective`] in main memory, over any [`Transport`].
#[derive(Debug)]
pub struct Communicator<X> {
    transport: X,
    costs: Costs,
    algorithm: Option<Algorithm>,
    deadline: Duration,
    /// Calls of all ranks so far.
    sequence: u64,
    /// Sends to and receives from each rank so far.
    pairs: Vec<(u64, u64)>,
    broken: Option<Box<Failed>>,
    scratch: Scratch,
    flows: Option<Box<dyn FlowRecorder>>,
}

/// The elements of a call.
struct Buffers<'a, T> {
    input: Option<&'a [T]>,
    data: &'a mut [T],
}

impl<X: Transport> Communicator<X> {
    /// A communicator over a transport that nothing was sent on yet.
    #[must_use]
    pub fn new(transport: X) -> Self {
        let world = transport.membership().world();
        Self {
            transport,
            costs: Costs::default(),
            algorithm: None,
            deadline: DEADLINE,
            sequence: 0,
            pairs: vec![(0, 0); world],
            broken: None,
            scratch: Scratch::default(),
            flows: None,
        }
    }

    /// Tells this recorder of every call and how far it gets.
    #[must_use]
    pub fn with_flows(mut self, recorder: impl FlowRecorder + 'static) -> Self {
        self.flows = Some(Box::new(recorder));
        self
    }

    /// The same rank over another transport, made of this one: what is counted, chosen and recorded stays.
    #[must_use]
    pub fn over<Y: Transport>(self, wrap: impl FnOnce(X) -> Y) -> Communicator<Y> {
        Communicator {
            transport: wrap(self.transport),
            costs: self.costs,
            algorithm: self.algorithm,
            deadline: self.deadline,
            sequence: self.sequence,
            pairs: self.pairs,
            broken: self.broken,
            scratch: self.scratch,
            flows: self.flows,
        }
    }

    /// Sets the costs of messages, by which algorithms are chosen. The same on every rank.
    #[must_use]
    pub const fn with_costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Always this algorithm, over messages, where an operation knows it; also where ranks share
    /// memory. The same on every rank.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// The first failure, after which every call fails.
    #[must_use]
    pub fn broken(&self) -> Option<&Failed> {
        self.broken.as_deref()
    }

    /// The transport that moves the bytes.
    #[must_use]
    pub const fn transport(&self) -> &X {
        &self.transport
    }

    /// The transport, on which no bytes are under way after a call that succeeded, and the time
    /// that ranks wait for each other.
    #[must_use]
    pub fn into_parts(self) -> (X, Duration) {
        (self.transport, self.deadline)
    }

    fn world(&self) -> usize {
        self.transport.membership().world()
    }

    fn usable(&self) -> Result<(), CollectiveError> {
        match &self.broken {
            None => Ok(()),
            Some(first) => Err(CollectiveError::Broken {
                first: first.clone(),
            }),
        }
    }

    /// Returns true when a call goes over windows.
    fn by_board(&mut self) -> bool {
        self.algorithm.is_none() && self.transport.board().is_some()
    }

    /// One call of all ranks.
    fn together<T: Element>(
        &mut self,
        operation: Operation,
        task: CollectiveTask<'_>,
        reduce: Option<Reduce>,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CollectiveError> {
        self.usable()?;
        let by_board = self.by_board();
        let membership = self.transport.membership();
        let algorithm = match self.algorithm {
            _ if by_board => Algorithm::Direct,
            Some(algorithm) => algorithm,
            None => self
                .costs
                .choose(task, T::TYPE.bytes(), &membership.topology),
        };
        let (count, peer, layout) = match task {
            CollectiveTask::AllReduce { count } => (count, 0, 0),
            CollectiveTask::Broadcast { count, root } => (count, root, 0),
            CollectiveTask::AllGather { counts } | CollectiveTask::ReduceScatter { counts } => {
                (counts.iter().sum(), 0, CollectiveCall::layout_of(counts))
            }
            // Each rank has its own; every message says its length.
            CollectiveTask::AllToAll { .. } | CollectiveTask::Barrier => (0, 0, 0),
        };
        let call = CollectiveCall {
            operation,
            element: T::TYPE,
            reduce,
            algorithm,
            peer: peer as u32,
            count: count as u64,
            layout,
        };
        self.sequence += 1;
        let header = Header::new(membership, self.sequence, call);
        let until = now() + self.deadline;
        let Buffers { input, data } = buffers;
        let mut flows = self.flows.as_deref_mut();
        if let Some(flows) = &mut flows {
            let bytes = size_of_val(data).max(input.map_or(0, size_of_val));
            flows.begin(self.sequence, &call, bytes as u64);
        }
        let recording = Recording::new(flows);
        let done = if by_board && membership.world() > 1 {
            let (rank, world) = (membership.rank, membership.world());
            match self.transport.board() {
                Some(board) => board::Rounds {
                    board,
                    header: &header,
                    rank,
                    world,
                    until,
                    recording,
                }
                .carry_out(task, reduce, input, data),
                None => Ok(()),
            }
        } else {
            let steps = schedule(task, algorithm, &membership.topology, membership.rank);
            let mut run = Run::new(&mut self.transport, header.clone(), self.deadline, until)
                .with_buffers(&mut self.scratch, input, data, reduce)
                .with_recording(recording);
            run.carry_out(&steps)
        };
        if let Some(flows) = &mut self.flows {
            flows.end(done.is_ok());
        }
        done.map_err(|trouble| self.fail(&header, trouble))
    }

    /// Remembers the first fault, and tells the others.
    fn fail(&mut self, header: &Header, trouble: Trouble) -> CollectiveError {
        let membership = self.transport.membership();
        let (rank, generation) = (membership.rank, membership.generation);
        let (call, sequence) = (header.call, header.sequence);
        let report = match trouble {
            Trouble::Told(report) => report,
            Trouble::Found(fault) => Report {
                by: rank,
                sequence,
                call,
                fault,
            },
        };
        // Also what others told: they may be gone before it reaches everybody, and whoever sees them
        // go must have heard why.
        self.transport.abort(&report);
        let failed = Box::new(Failed {
            rank,
            generation,
            sequence,
            call,
            report,
        });
        self.broken = Some(failed.clone());
        CollectiveError::Failed(failed)
    }

    /// One message between two ranks.
    fn pairwise<T: Element>(
        &mut self,
        operation: Operation,
        other: usize,
        input: Option<&[T]>,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.membership()
            .check_rank(operation, "other side", other)?;
        let membership = self.transport.membership();
        if other == membership.rank {
            let why = "a rank cannot be its own other side".to_owned();
            return Err(self.membership().misuse(operation, why));
        }
        self.usable()?;
        let count = input.map_or(data.len(), <[T]>::len);
        let pair = &mut self.pairs[other];
        let sequence = match operation {
            Operation::Send => {
                pair.0 += 1;
                pair.0
            }
            _ => {
                pair.1 += 1;
                pair.1
            }
        };
        let call = CollectiveCall {
            operation,
            element: T::TYPE,
            reduce: None,
            algorithm: Algorithm::Direct,
            peer: other as u32,
            count: count as u64,
            layout: 0,
        };
        let header = Header::new(membership, sequence, call);
        let until = now() + self.deadline;
        let out = (operation == Operation::Send).then_some(Outgoing {
            to: other,
            place: SentFrom::Input,
            range: 0..count,
        });
        let incoming = (operation == Operation::Receive).then_some(Incoming {
            from: other,
            then: Then::Store,
            range: 0..count,
        });
        let mut flows = self.flows.as_deref_mut();
        if let Some(flows) = &mut flows {
            flows.begin(sequence, &call, (count * size_of::<T>()) as u64);
        }
        let done = Run::new(&mut self.transport, header.clone(), self.deadline, until)
            .with_buffers(&mut self.scratch, input, data, None)
            .with_recording(Recording::new(flows))
            .exchange(out.as_ref(), incoming.as_ref());
        if let Some(flows) = &mut self.flows {
            flows.end(done.is_ok());
        }
        done.map_err(|trouble| self.fail(&header, trouble))
    }
}

impl<X: Transport> Collective for Communicator<X> {
    type Buffer<T: Element> = [T];

    fn membership(&self) -> &Membership {
        self.transport.membership()
    }

    fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    fn all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let task = CollectiveTask::AllReduce { count: data.len() };
        self.together(
            Operation::AllReduce,
            task,
            Some(reduce),
            Buffers { input: None, data },
        )
    }

    fn broadcast<T: Element>(
        &mut self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.membership()
            .check_rank(Operation::Broadcast, "root", root)?;
        let task = CollectiveTask::Broadcast {
            count: data.len(),
            root,
        };
        self.together(
            Operation::Broadcast,
            task,
            None,
            Buffers { input: None, data },
        )
    }

    fn all_gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.all_gather_v(input, &vec![input.len(); self.world()], output)
    }

    fn all_gather_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let operation = Operation::AllGather;
        let total = self.membership().check_counts(operation, counts)?;
        self.membership().fit(
            operation,
            "input",
            input.len(),
            counts[self.membership().rank],
        )?;
        self.membership()
            .fit(operation, "output", output.len(), total)?;
        let buffers = Buffers {
            input: Some(input),
            data: output,
        };
        self.together(
            operation,
            CollectiveTask::AllGather { counts },
            None,
            buffers,
        )
    }

    fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.reduce_scatter_v(input, &vec![output.len(); self.world()], output, reduce)
    }

    fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let operation = Operation::ReduceScatter;
        let total = self.membership().check_counts(operation, counts)?;
        self.membership()
            .fit(operation, "input", input.len(), total)?;
        self.membership().fit(
            operation,
            "output",
            output.len(),
            counts[self.membership().rank],
        )?;
        let buffers = Buffers {
            input: Some(input),
            data: output,
        };
        self.together(
            operation,
            CollectiveTask::ReduceScatter { counts },
            Some(reduce),
            buffers,
        )
    }

    fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let counts = self.membership().shares(Operation::AllToAll, input.len())?;
        self.all_to_all_v(input, &counts, output, &counts)
    }

    fn all_to_all_v<T: Element>(
        &mut self,
        input: &[T],
        to: &[usize],
        output: &mut [T],
        from: &[usize],
    ) -> Result<(), CollectiveError> {
        let operation = Operation::AllToAll;
        self.membership()
            .check_exchange(operation, (input.len(), to), (output.len(), from))?;
        let buffers = Buffers {
            input: Some(input),
            data: output,
        };
        self.together(
            operation,
            CollectiveTask::AllToAll { to, from },
            None,
            buffers,
        )
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let buffers = Buffers::<f32> {
            input: None,
            data: &mut [],
        };
        self.together(Operation::Barrier, CollectiveTask::Barrier, None, buffers)
    }

    fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        self.pairwise(Operation::Send, to, Some(data), &mut [])
    }

    fn receive<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        self.pairwise(Operation::Receive, from, None, data)
    }
}

/// The one place where a blocking call looks at the clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a call that blocks its thread has a real deadline"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

impl Fault {
    pub(super) const fn found(self) -> Trouble {
        Trouble::Found(self)
    }
}
