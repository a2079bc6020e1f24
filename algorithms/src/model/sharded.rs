//! Models of which ranks keep shards: layers are gathered before they are computed.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use odeon_gpu::{Backend, Param, PassParams, PassRanks, Resident, SetNeeds};
use thiserror::Error;

use super::network::BASE;
use super::own_gradient::{GradientLook, ShardGuard};
use super::part::{ModelPart, PartError, PassGroups};
use super::rank::{PartPlace, PartRanges, RankKind};
use super::rounded::Rounded;
use super::shard::{ModelShard, SetKind, ShardCopies, ShardPlace, ShardSet};
use super::shard_moves::{Halves, Moved, Mover, Moves, ShardMove};
use super::{ConfigError, Model, ModelConfig};

/// The sets that are gathered, and the memory of those that are not any more. Of a model that is no shard those that are
/// rounded.
#[derive(Debug)]
pub(crate) struct Gathered<B: Backend> {
    sets: Vec<Option<B::Buffer>>,
    spare: Vec<B::Buffer>,
    /// The unit whose operations run.
    unit: Option<usize>,
    /// Set where sets stay until the parameters change.
    stay: bool,
    /// Set where parameters are rounded to bf16: those of shards travel so, and stay so.
    rounds: bool,
    /// The whole sets as passes read them, where these are not gathered.
    whole: Rounded<B>,
    /// Sets that stay in bf16, two numbers in each.
    halves: Vec<Option<B::Buffer>>,
    /// The memory of those that do not any more, and for this rank's own.
    spare_halves: [Vec<B::Buffer>; 2],
    /// Units that are gathered while one is computed, and of which gradients are added up meanwhile.
    ahead: usize,
    /// Set where passes wait for each gather and sum.
    waits: bool,
    /// Since that was asked for.
    copies: ShardCopies,
    /// Set where gradients are looked at before they are added up.
    guard: Option<ShardGuard>,
    /// At this rank's own gradients, since that was asked for.
    look: GradientLook,
}

impl<B: Backend> Default for Gathered<B> {
    fn default() -> Self {
        Self {
            sets: vec![],
            spare: vec![],
            unit: None,
            stay: false,
            rounds: false,
            whole: Rounded::default(),
            halves: vec![],
            spare_halves: [vec![], vec![]],
            ahead: 1,
            waits: false,
            copies: ShardCopies::default(),
            guard: None,
            look: GradientLook::default(),
        }
    }
}

impl<B: Backend> Gathered<B> {
    /// Has sets stay where they are gathered, until the parameters change (ZeRO stage 2), or not.
    pub(crate) fn let_stay(&mut self, stay: bool) {
        self.stay = stay;
    }

    /// Has so many units gathered while one is computed, and the gradients of as many added up.
    pub(crate) fn look_ahead(&mut self, units: usize) {
        self.ahead = units;
    }

    /// Has parameters rounded to bf16 before operations read them, and sent like that.
    pub(crate) fn round(&mut self, rounds: bool) {
        self.rounds = rounds;
    }

    /// Forgets what is gathered: the parameters have changed.
    pub(crate) fn forget(&mut self) {
        let gathered = self.sets.iter_mut().filter_map(Option::take);
        self.spare.extend(gathered);
        let halves = self.halves.iter_mut().filter_map(Option::take);
        self.spare_halves[0].extend(halves);
        self.whole.forget();
        self.unit = None;
    }

    /// The sets that operations of a model read that is no shard: rounded ones in place of the model's own, which are the
    /// first, and the others as they are.
    pub(crate) fn read<'a>(
        &'a mut self,
        model: &'a Model<B>,
        sets: &[&'a B::Buffer],
    ) -> Vec<&'a B::Buffer> {
        if !self.rounds {
            return sets.to_vec();
        }
        let own = model.param_sets();
        let others = sets[own.len()..].iter().copied();
        let rounded = self.whole.of(model.backend(), &own);
        rounded.iter().chain(others).collect()
    }

    /// Has passes wait for each gather and sum.
    #[cfg(test)]
    pub(crate) fn wait_for_each(&mut self) {
        self.waits = true;
    }

    /// The copies since this was asked last.
    pub(crate) fn take_copies(&mut self) -> ShardCopies {
        mem::take(&mut self.copies)
    }

    /// Has gradients looked at before they are added up, or not.
    pub(crate) fn guard(&mut self, guard: Option<ShardGuard>) {
        self.guard = guard;
        self.look = GradientLook::default();
    }

    /// The look at this rank's own gradients since this was asked last.
    pub(crate) fn take_look(&mut self) -> GradientLook {
        mem::take(&mut self.look)
    }

    /// Numbers that it has memory for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let sets = self.sets.iter().chain(&self.halves).flatten();
        let spare = self.spare.iter().chain(self.spare_halves.iter().flatten());
        sets.chain(spare).map(B::len).sum::<usize>() + self.whole.len()
    }

    /// Numbers of the memory of sets that stay in bf16, two in each.
    #[cfg(test)]
    pub(crate) fn staying(&self) -> usize {
        self.halves.iter().flatten().map(B::len).sum()
    }

    /// Memory in which a set comes in bf16, or has come; `None` where it comes as it is kept.
    fn take_halves(&mut self, backend: &B, set: &ShardSet, number: usize) -> Option<Halves<B>> {
        if !self.rounds {
            return None;
        }
        if let Some(all) = self.halves[number].take() {
            return Some(Halves {
                all,
                own: B::Buffer::default(),
                is_here: true,
            });
        }
        let [all, own] = &mut self.spare_halves;
        Some(Halves {
            all: taken(all, backend, set.buffer.buffer_len() / 2),
            own: taken(own, backend, set.buffer.shard_len() / 2),
            is_here: false,
        })
    }

    /// Keeps a set that has come in bf16, where it stays; else its memory is for others.
    fn put_halves(&mut self, number: usize, halves: Halves<B>) {
        let Halves { all, own, .. } = halves;
        match self.stay {
            true => self.halves[number] = Some(all),
            false => self.spare_halves[0].push(all),
        }
        if B::len(&own) > 0 {
            self.spare_halves[1].push(own);
        }
    }

    /// A buffer of so many numbers at least.
    fn take(&mut self, backend: &B, len: usize) -> B::Buffer {
        taken(&mut self.spare, backend, len)
    }
}

/// A buffer of so many numbers at least: the shortest that is there.
fn taken<B: Backend>(spare: &mut Vec<B::Buffer>, backend: &B, len: usize) -> B::Buffer {
    let fit = (0..spare.len()).filter(|at| B::len(&spare[*at]) >= len);
    match fit.min_by_key(|at| B::len(&spare[*at])) {
        Some(at) => spare.swap_remove(at),
        None => {
            // A longer one comes in place of a short one, or each length would stay.
            spare.pop();
            backend.alloc(len)
        }
    }
}

/// The parameters of a shard in one pass.
///
/// While a layer is computed the next ones are gathered, and the gradients of those before are added up.
pub(crate) struct ShardPass<'a, B: Backend> {
    model: &'a Model<B>,
    shard: &'a ModelShard,
    gathered: &'a mut Gathered<B>,
    moves: Moves<'a, B>,
    /// Units that operations will read.
    units: VecDeque<usize>,
    /// Set for sets that are on their way.
    coming: Vec<bool>,
    /// Units whose gradients are being added up: the sets of each that still are.
    going: VecDeque<usize>,
}

/// Runs a pass over the parameter sets of a model: as they come to a shard, whose gradient is given, or those that are
/// here.
pub(crate) fn over_sets<B: Backend, R>(
    (model, gathered): (&Model<B>, &mut Gathered<B>),
    sets: &[&B::Buffer],
    gradient: Option<&mut B::Buffer>,
    pass: impl FnOnce(&mut dyn PassParams<B>) -> R,
) -> R {
    let Some(shard) = model.shard.as_ref() else {
        return pass(&mut Resident(&gathered.read(model, sets)));
    };
    gathered.sets.resize_with(shard.sets.len(), || None);
    gathered.halves.resize_with(shard.sets.len(), || None);
    // What lies on a card is moved in the order of its queue.
    let waits = gathered.waits || B::host(&model.params).is_none();
    let keepers = shard.sets.iter().map(|set| model.groups.keepers(set.kind));
    let mut mover = Mover {
        backend: model.backend(),
        params: &model.params,
        shard,
        keepers: keepers.map(|ranks| ranks.map(|it| &**it)).collect(),
        guard: gathered.guard.filter(|_| gradient.is_some()),
        gradient,
        layout: &model.layout,
    };
    if let Some(guard) = gathered.guard.as_mut().filter(|_| mover.guard.is_some()) {
        guard.drill = None;
    }
    let run = |moves| {
        pass(&mut ShardPass {
            model,
            shard,
            gathered,
            moves,
            units: VecDeque::new(),
            coming: vec![false; shard.sets.len()],
            going: VecDeque::new(),
        })
    };
    if waits {
        return run(Moves::Here {
            mover,
            to_move: VecDeque::new(),
        });
    }
    thread::scope(|scope| {
        let (to_move, begun) = channel();
        let (ended, moved) = channel();
        scope.spawn(move || {
            for set in begun {
                if ended.send(mover.carry_out(set)).is_err() {
                    break;
                }
            }
        });
        run(Moves::Beside { to_move, moved })
    })
}

impl<B: Backend> ShardPass<'_, B> {
    /// The sets of a unit.
    fn sets_of(&self, unit: usize) -> Range<usize> {
        let sets = &self.shard.sets;
        sets.partition_point(|set| set.unit < unit)..sets.partition_point(|set| set.unit <= unit)
    }

    /// Has the sets of a unit gathered that are not here yet.
    fn begin_gather(&mut self, backend: &B, unit: usize) {
        for set in self.sets_of(unit) {
            if self.gathered.sets[set].is_some() || self.coming[set] {
                continue;
            }
            let of = &self.shard.sets[set];
            let all = self.gathered.take(backend, of.buffer.buffer_len());
            let halves = self.gathered.take_halves(backend, of, set);
            self.moves.begin(ShardMove::Gather(set, all, halves));
            self.coming[set] = true;
        }
    }

    /// Has so many of the next units gathered that operations will read.
    fn begin_ahead(&mut self, backend: &B, units: usize) {
        for at in 0..units.min(self.units.len()) {
            self.begin_gather(backend, self.units[at]);
        }
    }

    /// Waits for the sets of a unit, and has those of the next ones gathered meanwhile.
    fn gather(&mut self, backend: &B, unit: usize) {
        self.begin_gather(backend, unit);
        while let Some(next) = self.units.pop_front() {
            if next == unit {
                break;
            }
        }
        // Never more on their way than are ahead: there is memory for these.
        self.begin_ahead(backend, self.gathered.ahead - 1);
        while self.sets_of(unit).any(|set| self.coming[set]) {
            self.settle();
        }
        self.begin_ahead(backend, self.gathered.ahead);
    }

    /// Waits for the first set that is on its way.
    fn settle(&mut self) {
        let ranks = self.model.widest_shard_ranks();
        let Moved {
            moved,
            copies,
            look,
        } = self.moves.next(ranks.map(|it| &**it));
        self.gathered.copies.gathers += copies.gathers;
        self.gathered.copies.sums += copies.sums;
        if let Some(look) = look {
            let before = mem::take(&mut self.gathered.look);
            self.gathered.look = before.and_then(look);
        }
        match moved {
            ShardMove::Gather(set, all, halves) => {
                self.gathered.sets[set] = Some(all);
                self.coming[set] = false;
                if let Some(halves) = halves {
                    self.gathered.put_halves(set, halves);
                }
            }
            ShardMove::Sum(_, all) => {
                self.gathered.spare.push(all);
                let first = self.going.front_mut().expect("a unit that is added up");
                *first -= 1;
                if *first == 0 {
                    self.going.pop_front();
                }
            }
        }
    }

    /// Gives the memory of a unit back, if it is not to stay; in bf16 it does.
    fn release(&mut self, unit: usize) {
        if !self.gathered.stay || self.gathered.rounds {
            for set in self.sets_of(unit) {
                let gathered = self.gathered.sets[set].take();
                self.gathered.spare.extend(gathered);
            }
        }
    }

    /// Has the gradients of a unit added up over the ranks that keep it, behind those of the ones before.
    fn begin_sum(&mut self, unit: usize, gradients: &mut [Option<B::Buffer>]) {
        while self.going.len() >= self.gathered.ahead {
            self.settle();
        }
        let mut sets = 0;
        for set in self.sets_of(unit) {
            if let Some(all) = gradients[set].take() {
                self.moves.begin(ShardMove::Sum(set, all));
                sets += 1;
            }
        }
        if sets > 0 {
            self.going.push_back(sets);
        }
    }

    /// Leaves the unit that operations of a forward pass have read.
    fn leave(&mut self) {
        if let Some(unit) = mem::take(&mut self.gathered.unit) {
            self.release(unit);
        }
    }

    /// The same of a backward pass.
    fn leave_back(&mut self, gradients: &mut [Option<B::Buffer>]) {
        if let Some(unit) = mem::take(&mut self.gathered.unit) {
            self.begin_sum(unit, gradients);
            self.release(unit);
        }
    }

    /// Waits for all that is on its way. What came and was not read goes again.
    fn end_moves(&mut self) {
        while !self.going.is_empty() || self.coming.contains(&true) {
            self.settle();
        }
        for unit in mem::take(&mut self.units) {
            self.release(unit);
        }
    }
}

impl<B: Backend> PassParams<B> for ShardPass<'_, B> {
    fn buffer(&self, set: usize) -> &B::Buffer {
        let gathered = self.gathered.sets[set].as_ref();
        gathered.expect("a set that has been brought")
    }

    fn announce(&mut self, sets: &mut dyn Iterator<Item = usize>) {
        self.units.clear();
        for set in sets {
            let unit = self.shard.sets[set].unit;
            if self.units.back() != Some(&unit) {
                self.units.push_back(unit);
            }
        }
        let backend = self.model.backend();
        self.begin_ahead(backend, self.gathered.ahead);
    }

    fn bring(&mut self, backend: &B, set: usize) {
        let unit = self.shard.sets[set].unit;
        if self.gathered.unit == Some(unit) {
            return;
        }
        self.leave();
        self.gather(backend, unit);
        self.gathered.unit = Some(unit);
    }

    fn bring_back(
        &mut self,
        backend: &B,
        set: usize,
        needs: SetNeeds,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let unit = self.shard.sets[set].unit;
        if self.gathered.unit != Some(unit) {
            self.leave_back(gradients);
            self.gathered.unit = Some(unit);
            if needs.reads {
                self.gather(backend, unit);
            }
        }
        if needs.adds && gradients[set].is_none() {
            // Of all sets: some ranks have tensors that others lack, and all add up the same sets.
            for set in self.sets_of(unit) {
                let len = self.shard.sets[set].buffer.buffer_len();
                let mut zeros = self.gathered.take(backend, len);
                backend.fill(B::view_mut(&mut zeros, 0..len), 0.0);
                gradients[set] = Some(zeros);
            }
        }
    }

    fn end(&mut self, _: &B) {
        self.leave();
        self.end_moves();
    }

    fn end_back(&mut self, _: &B, gradients: &mut [Option<B::Buffer>]) {
        self.leave_back(gradients);
        self.end_moves();
    }
}

/// Why a rank cannot have its part of a model.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RankModelError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot be shared out.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// The part of a model that a rank keeps: of a part the shard, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankKeeps {
    /// Its part of the model.
    pub part: PartPlace,
    /// The place of its shard of that, and the rows of each matrix that stay together there.
    pub shard: Option<(ShardPlace, usize)>,
}

impl RankKeeps {
    /// All of it.
    pub const ALL: Self = Self {
        part: PartPlace::WHOLE,
        shard: None,
    };
}

impl<B: Backend> Model<B> {
    /// The part of a model that a rank keeps, all zero, to be [filled](Self::fill). Its device never has more of it.
    ///
    /// # Errors
    /// The configuration contradicts itself, or cannot be shared out like this.
    ///
    /// # Panics
    /// If blocks of a shard have no rows.
    pub fn of_rank(
        backend: B,
        config: ModelConfig,
        keeps: RankKeeps,
    ) -> Result<Self, RankModelError> {
        config.check()?;
        let own = config.part(keeps.part)?;
        let (layout, places) = Self::describe(&own);
        let (of_whole, _) = Self::describe(&config);
        let mut model = Self::without_parameters(backend, own, (layout, places));
        model.part = (keeps.part != PartPlace::WHOLE)
            .then(|| ModelPart::new(config, &of_whole, &model.layout, keeps.part));
        if let Some((place, rows)) = keeps.shard {
            assert!(rows > 0, "blocks have rows");
            let ranks = place.data.ranks;
            model.config.check_shards(ranks)?;
            model.outline_shard(Some(place), rows);
        }
        let kept = model.shard.as_ref().map_or(&model.layout, |it| it.layout());
        model.params = model.backend.parameters(kept.len());
        Ok(model)
    }

    /// Replaces all parameters that it keeps, tensor by tensor; adapters stay. `read` gives the values of a box of a whole
    /// tensor, row by row, by the tensor's name and the interval of each dimension. It is asked for what is kept alone.
    ///
    /// # Errors
    /// Those of `read`; tensors before that are replaced then.
    ///
    /// # Panics
    /// If it gives another number of values.
    pub fn fill<E>(
        &mut self,
        mut read: impl FnMut(&str, &[Range<usize>]) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        for (number, entry) in self.layout.entries().iter().enumerate() {
            let shard = self.shard.as_ref();
            let held = shard.map_or_else(|| entry.range.clone(), |shard| shard.held(number));
            if held.is_empty() {
                continue;
            }
            let row: usize = entry.shape[1..].iter().product();
            let row_of = |flat: usize| (flat - entry.range.start) / row;
            let mut own: Vec<Range<usize>> = match &self.part {
                Some(part) => part.tensors()[number].part.clone(),
                None => entry.shape.iter().map(|length| 0..*length).collect(),
            };
            let first = own[0].start;
            own[0] = first + row_of(held.start)..first + row_of(held.end);
            let values = read(&entry.name, &own)?;
            assert_eq!(
                values.len(),
                held.len(),
                "{}: values of {own:?}",
                entry.name
            );
            let at = shard.map_or(held.start, |shard| shard.kept_at(held.start));
            let place = B::view_mut(&mut self.params, at..at + held.len());
            self.backend.write(place, &values);
        }
        Ok(())
    }
}

/// The ranks that keep shards of the same tensors, in the order of [`SetKind::ALL`], where there are others.
pub(crate) type Keepers<B> = [Option<Arc<dyn PassRanks<B>>>; 3];

impl<B: Backend> PassGroups<B> {
    /// The ranks that keep shards of the same tensors of a kind, where there are others.
    pub(crate) fn keepers(&self, kind: SetKind) -> Option<&Arc<dyn PassRanks<B>>> {
        let ranks = match kind {
            SetKind::Everywhere => &self.shards.everywhere,
            SetKind::Data => &self.shards.data,
            SetKind::Experts => &self.shards.experts,
        };
        ranks.as_ref()
    }
}

impl ModelConfig {
    /// Checks that ranks can keep shards of this model.
    ///
    /// # Errors
    /// It reads pictures.
    pub fn check_shards(&self, ranks: usize) -> Result<(), PartError> {
        self.sees_no_pictures(RankKind::Shard, ranks)
    }
}

impl<B: Backend> Model<B> {
    /// The shard of this model, or of this part of one, that a rank keeps. It computes with the other ranks from
    /// [`meet`](Self::meet) on.
    ///
    /// # Errors
    /// It cannot be sharded.
    ///
    /// # Panics
    /// If this is a shard already.
    pub fn into_shard(self, place: ShardPlace) -> Result<Self, PartError> {
        self.into_shard_of_rows(place, 1)
    }

    /// The same of tensors that are cut between blocks of so many rows alone, as the
    /// [optimiser](crate::train::Optimizer::rows_together) asks for.
    ///
    /// # Errors
    /// It cannot be sharded.
    ///
    /// # Panics
    /// If this is a shard already, or blocks have no rows.
    pub fn into_shard_of_rows(self, place: ShardPlace, rows: usize) -> Result<Self, PartError> {
        assert!(rows > 0, "blocks have rows");
        assert!(self.shard.is_none(), "a shard is not cut again");
        let ranks = place.data.ranks;
        self.config.check_shards(ranks)?;
        if self.has_adapters() {
            let kind = RankKind::Shard;
            return Err(PartError::Adapters { kind, ranks });
        }
        let shard = self.shard_at(place, rows);
        let kept = shard.cut(&self.to_flat());
        let mut own = self;
        // Never both on the device at once.
        own.params = B::Buffer::default();
        own.params = own.backend.parameters(kept.len());
        own.backend
            .write(B::view_mut(&mut own.params, 0..kept.len()), &kept);
        own.shard = Some(shard);
        Ok(own)
    }

    /// The shard of a rank, without its parameters.
    fn shard_at(&self, place: ShardPlace, rows: usize) -> ModelShard {
        let part = self.part.as_ref().map(ModelPart::ranges);
        let whole = PartRanges::whole(self.layout.len());
        let ranges = part.unwrap_or(&whole);
        ModelShard::new(&self.layout, ranges, self.config.layers, (place, rows))
    }

    /// Has an outline read the sets of a rank that keeps this shard, where it keeps one.
    pub(crate) fn outline_shard(&mut self, place: Option<ShardPlace>, rows: usize) {
        self.shard = place.map(|place| self.shard_at(place, rows));
    }

    /// The ranks that keep shards of the same tensors, by their kind.
    pub(crate) fn shard_keepers(&self) -> Keepers<B> {
        SetKind::ALL.map(|kind| self.groups.keepers(kind).cloned())
    }

    /// The shard that this rank keeps; `None` where it has all.
    #[must_use]
    pub fn shard(&self) -> Option<&ModelShard> {
        self.shard.as_ref()
    }

    /// Flat parameters as a recording reads them.
    pub(crate) fn param(&self, range: &Range<usize>) -> Param {
        match &self.shard {
            None => Param::new(BASE, range.clone()),
            Some(shard) => shard.param(range),
        }
    }
}
