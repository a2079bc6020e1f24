//! Recording of experts of which each rank has some (expert parallelism): rows travel to the rank of their expert, and
//! what it makes of them travels back. No expert has a bound on its rows, so how many come is known only when the
//! recording runs; memory for them is kept from pass to pass.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::exchange::add_rows;
use super::ranks::PassRanks;
use super::run::Run;
use super::{Op, Param, Routed, Tape, Var};
use crate::backend::{Backend, MatMul, Store};

/// The matrices of the experts that a rank has, each a SwiGLU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnExperts {
    /// Of each expert gate and up, `[2 * inner, cols]`.
    pub gate_up: Vec<Param>,
    /// Of each expert the way back, `[cols, inner]`.
    pub down: Vec<Param>,
    /// Elements of a row inside an expert.
    pub inner: usize,
}

/// The rows that have come to the experts of a rank, and what the backward pass needs of them.
#[derive(Debug)]
pub(super) struct Arrived<B: Backend> {
    /// Numbers that go to each rank, and that come from each.
    sends: Vec<usize>,
    receives: Vec<usize>,
    /// For each row, expert by expert, its number among those that came; and the other way round.
    order: Vec<u32>,
    back: Vec<u32>,
    /// One more than there are own experts.
    bounds: Vec<usize>,
    /// Rows, expert by expert, and what the first product and the gate made of them. Behind a backward pass the first of
    /// these two has its gradient.
    rows: B::Buffer,
    both: B::Buffer,
    gated: B::Buffer,
    /// Rows as they travel.
    travelling: B::Buffer,
}

impl<B: Backend> Default for Arrived<B> {
    fn default() -> Self {
        Self {
            sends: vec![],
            receives: vec![],
            order: vec![],
            back: vec![],
            bounds: vec![],
            rows: B::Buffer::default(),
            both: B::Buffer::default(),
            gated: B::Buffer::default(),
            travelling: B::Buffer::default(),
        }
    }
}

impl<B: Backend> Arrived<B> {
    /// Numbers that it holds of so many rows.
    pub(super) const fn len((rows, cols): (usize, usize), inner: usize) -> usize {
        rows * (2 * cols + 3 * inner)
    }

    /// Number of rows.
    fn count(&self) -> usize {
        self.order.len()
    }

    /// Own experts with rows, and which these are.
    fn experts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let bounds = self.bounds.windows(2).enumerate();
        bounds
            .map(|(expert, ends)| (expert, ends[0]..ends[1]))
            .filter(|(_, rows)| !rows.is_empty())
    }

    /// Learns how many rows come for each own expert, by what each rank has told: `told[rank][expert]`.
    fn sort(&mut self, told: &[u32], ranks: usize, cols: usize) {
        let experts = told.len() / ranks;
        let of = |rank: usize| told[rank * experts..][..experts].iter();
        let rows = (0..ranks).map(|rank| of(rank).sum::<u32>() as usize);
        self.receives = rows.map(|rows| rows * cols).collect();
        // Where the run of each rank and expert begins among the rows that come.
        let mut end = 0;
        let begins = told.iter().map(|count| {
            end += count;
            end - count
        });
        let begins: Vec<u32> = begins.collect();
        self.order.clear();
        self.bounds.clear();
        self.bounds.push(0);
        for expert in 0..experts {
            for rank in 0..ranks {
                let run = rank * experts + expert;
                self.order.extend(begins[run]..begins[run] + told[run]);
            }
            self.bounds.push(self.order.len());
        }
        self.back.clear();
        self.back.resize(self.order.len(), 0);
        for (at, came) in self.order.iter().enumerate() {
            self.back[*came as usize] = at as u32;
        }
    }
}

/// Makes room for so many numbers; what was there is lost where that was too little. A buffer of none lies on no device
/// yet.
pub(super) fn room<B: Backend>(backend: &B, buffer: &mut B::Buffer, len: usize) {
    let len = len.max(1);
    if B::len(buffer) < len {
        *buffer = B::Buffer::default();
        *buffer = backend.alloc(len);
    }
}

impl<B: Backend> Tape<B> {
    /// Has experts of several ranks compute the [taken](Self::dispatch) rows `x`: each rank has the next of all
    /// experts, as many as any other. The outcome has a row for each taken one, whoever made it.
    ///
    /// # Panics
    /// If there are not as many experts on each rank, or their matrices do not fit.
    pub fn experts_of_ranks(
        &mut self,
        x: Var,
        routed: &Routed,
        experts: OwnExperts,
        ranks: Arc<dyn PassRanks<B>>,
    ) -> Var {
        let (rows, cols) = self.shape(x);
        assert_eq!(rows, routed.taken(), "rows that experts take");
        let own = experts.gate_up.len();
        assert_eq!(own * ranks.count(), routed.shape.experts, "all experts");
        assert_eq!(experts.down.len(), own, "two matrices an expert");
        let (set, len) = (experts.gate_up[0].set, experts.inner * cols);
        let fits = |params: &[Param], len| {
            let fits = |it: &Param| it.range.len() == len && it.set == set;
            params.iter().all(fits)
        };
        let all_fit = fits(&experts.gate_up, 2 * len) && fits(&experts.down, len);
        assert!(all_fit, "matrices of inner by outer elements");
        self.read_by(x);
        let out = self.var(rows, cols);
        self.ops.push(Op::Spread {
            x,
            experts,
            list: routed.list,
            ranks,
            out,
        });
        out
    }
}

impl<B: Backend> Run<'_, B> {
    /// Tells the others how many rows come to each of their experts, and learns it of the own ones.
    fn announce(
        &self,
        arrived: &mut Arrived<B>,
        list: usize,
        cols: usize,
        ranks: &dyn PassRanks<B>,
    ) {
        let lists = &self.arena.lists[list];
        let mut counts = vec![0; lists.all_experts()];
        for (expert, taken) in lists.experts() {
            counts[expert] = taken.len() as u32;
        }
        let own = counts.len() / ranks.count();
        let told = ranks.tell(self.backend, &counts);
        arrived.sends = counts
            .chunks(own)
            .map(|of_rank| of_rank.iter().sum::<u32>() as usize * cols)
            .collect();
        arrived.sort(&told, ranks.count(), cols);
    }

    pub(super) fn spread(
        &mut self,
        x: Var,
        experts: &OwnExperts,
        list: usize,
        ranks: &dyn PassRanks<B>,
        out: Var,
    ) {
        let (backend, cols, inner) = (self.backend, self.tape.vars[x.0].cols, experts.inner);
        let mut arrived = self.take_arrived(list);
        self.announce(&mut arrived, list, cols, ranks);
        let count = arrived.count();
        for (buffer, cols) in [
            (&mut arrived.rows, cols),
            (&mut arrived.both, 2 * inner),
            (&mut arrived.gated, inner),
            (&mut arrived.travelling, cols),
        ] {
            room(backend, buffer, count * cols);
        }
        let from = self.value_buffer(x);
        let (sends, receives) = (arrived.sends.clone(), arrived.receives.clone());
        ranks.exchange(backend, from, &sends, &mut arrived.travelling, &receives);
        if count > 0 {
            let came = B::view(&arrived.travelling, 0..count * cols);
            let dst = B::view_mut(&mut arrived.rows, 0..count * cols);
            backend.gather(cols, &arrived.order, came, dst);
            for (expert, rows) in arrived.experts().collect::<Vec<_>>() {
                let of = |cols: usize| rows.start * cols..rows.end * cols;
                let call = MatMul::linear(rows.len(), 2 * inner, cols);
                let (src, weight) = (B::view(&arrived.rows, of(cols)), &experts.gate_up[expert]);
                let dst = B::view_mut(&mut arrived.both, of(2 * inner));
                backend.matmul(call, src, self.param(weight), dst);
            }
            let both = B::view(&arrived.both, 0..count * 2 * inner);
            let dst = B::view_mut(&mut arrived.gated, 0..count * inner);
            backend.swiglu(inner, both, dst);
            let mut made = backend.alloc(count * cols);
            for (expert, rows) in arrived.experts() {
                let of = |cols: usize| rows.start * cols..rows.end * cols;
                let call = MatMul::linear(rows.len(), cols, inner);
                let (src, weight) = (B::view(&arrived.gated, of(inner)), &experts.down[expert]);
                let dst = B::view_mut(&mut made, of(cols));
                backend.matmul(call, src, self.param(weight), dst);
            }
            let dst = B::view_mut(&mut arrived.travelling, 0..count * cols);
            let made = B::view(&made, 0..count * cols);
            backend.gather(cols, &arrived.back, made, dst);
        }
        let (slot, mut dst) = self.take_value(out);
        ranks.exchange(backend, &arrived.travelling, &receives, &mut dst, &sends);
        self.put_value(slot, dst);
        self.put_arrived(list, arrived);
    }

    pub(super) fn spread_backward(
        &mut self,
        at: usize,
        x: Var,
        (experts, list): (&OwnExperts, usize),
        ranks: &dyn PassRanks<B>,
        (out, gradients): (Var, &mut [Option<B::Buffer>]),
    ) {
        let (backend, cols) = (self.backend, self.tape.vars[x.0].cols);
        let mut made_later = None;
        let mut arrived = self.take_arrived(list);
        let (sends, receives) = (arrived.sends.clone(), arrived.receives.clone());
        let count = arrived.count();
        let from = self.grad_buffer(out);
        ranks.exchange(backend, from, &sends, &mut arrived.travelling, &receives);
        if count > 0 {
            let mut dmade = backend.alloc(count * cols);
            let came = B::view(&arrived.travelling, 0..count * cols);
            let dst = B::view_mut(&mut dmade, 0..count * cols);
            backend.gather(cols, &arrived.order, came, dst);
            let drows = self.experts_of_rank_backward(experts, &mut arrived, &dmade);
            if self.plan.order.later[at].is_none() {
                self.experts_of_rank_weights(experts, &arrived, &dmade, gradients);
            } else {
                made_later = Some(dmade);
            }
            let dst = B::view_mut(&mut arrived.travelling, 0..count * cols);
            let drows = B::view(&drows, 0..count * cols);
            backend.gather(cols, &arrived.back, drows, dst);
        }
        // Others wait for these rows, whether their gradient is wanted here or not.
        let mut dx = self.rows_grad(x);
        let len = sends.iter().sum();
        let mut back = backend.alloc(len);
        ranks.exchange(backend, &arrived.travelling, &receives, &mut back, &sends);
        add_rows(backend, B::view(&back, 0..len), dx.dst());
        self.put_rows(dx);
        if let Some(dmade) = made_later {
            // Nothing travels any more.
            arrived.travelling = dmade;
        }
        self.put_arrived(list, arrived);
    }

    /// Adds the gradients of own experts that were left.
    pub(super) fn spread_weights(
        &mut self,
        experts: &OwnExperts,
        list: usize,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let arrived = self.take_arrived(list);
        self.experts_of_rank_weights(experts, &arrived, &arrived.travelling, gradients);
        self.put_arrived(list, arrived);
    }

    /// The gradient of the rows of own experts, in their order, from that of what they made. What the first products
    /// made gives way to its gradient.
    fn experts_of_rank_backward(
        &self,
        experts: &OwnExperts,
        arrived: &mut Arrived<B>,
        dmade: &B::Buffer,
    ) -> B::Buffer {
        let (backend, inner, count) = (self.backend, experts.inner, arrived.count());
        let cols = B::len(dmade) / count;
        let mut dgated = backend.alloc(count * inner);
        for (expert, rows) in arrived.experts() {
            let (weight, len) = (&experts.down[expert], rows.len());
            let of = |cols: usize| rows.start * cols..rows.end * cols;
            let dy = B::view(dmade, of(cols));
            let call = MatMul::linear_dx(len, cols, inner);
            let dst = B::view_mut(&mut dgated, of(inner));
            backend.matmul(call, dy, self.param(weight), dst);
        }
        let mut dboth = backend.alloc(count * 2 * inner);
        backend.swiglu_backward(
            inner,
            B::view(&arrived.both, 0..count * 2 * inner),
            B::view(&dgated, 0..count * inner),
            B::view_mut(&mut dboth, 0..count * 2 * inner),
        );
        arrived.both = dboth;
        let mut drows = backend.alloc(count * cols);
        for (expert, rows) in arrived.experts() {
            let (weight, len) = (&experts.gate_up[expert], rows.len());
            let of = |cols: usize| rows.start * cols..rows.end * cols;
            let dy = B::view(&arrived.both, of(2 * inner));
            let call = MatMul::linear_dx(len, 2 * inner, cols);
            let dst = B::view_mut(&mut drows, of(cols));
            backend.matmul(call, dy, self.param(weight), dst);
        }
        drows
    }

    /// Adds the gradients of the matrices of own experts.
    fn experts_of_rank_weights(
        &self,
        experts: &OwnExperts,
        arrived: &Arrived<B>,
        dmade: &B::Buffer,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let (backend, inner) = (self.backend, experts.inner);
        for (expert, rows) in arrived.experts() {
            let cols = experts.down[expert].range.len() / inner;
            let of = |cols: usize| rows.start * cols..rows.end * cols;
            if let Some(dw) = self.param_grad(gradients, &experts.down[expert]) {
                let call = MatMul::linear_dw(rows.len(), cols, inner).stored(Store::Add);
                let (dy, gated) = (B::view(dmade, of(cols)), B::view(&arrived.gated, of(inner)));
                backend.matmul(call, dy, gated, dw);
            }
            if let Some(dw) = self.param_grad(gradients, &experts.gate_up[expert]) {
                let call = MatMul::linear_dw(rows.len(), 2 * inner, cols).stored(Store::Add);
                let dy = B::view(&arrived.both, of(2 * inner));
                backend.matmul(call, dy, B::view(&arrived.rows, of(cols)), dw);
            }
        }
    }

    fn take_arrived(&mut self, list: usize) -> Arrived<B> {
        let (arrived, place) = (&mut self.arena.arrived, self.plan.arrivals[list]);
        if arrived.len() <= place {
            arrived.resize_with(place + 1, Arrived::default);
        }
        mem::take(&mut arrived[place])
    }

    fn put_arrived(&mut self, list: usize, arrived: Arrived<B>) {
        self.arena.arrived[self.plan.arrivals[list]] = arrived;
    }
}
