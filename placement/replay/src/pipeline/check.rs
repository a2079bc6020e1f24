//! The check of a schedule, which knows nothing of how schedules are made, priced or replayed.

use super::{Pass, PassKind, PipelineSchedule, ScheduleError};

impl PipelineSchedule {
    /// Checks that each rank has each pass once, in an order in which all ranks can go on.
    ///
    /// Messages are not waited for by who sends them. Takes time in proportion to passes times ranks at worst.
    ///
    /// # Errors
    /// The first flaw, by rank and by its pass: see [`ScheduleError`].
    pub fn check(&self) -> Result<(), ScheduleError> {
        if self.ranks.is_empty() || self.micro_batches == 0 || self.chunks == 0 {
            return Err(ScheduleError::Empty {
                stages: self.ranks.len(),
                micro_batches: self.micro_batches,
                chunks: self.chunks,
            });
        }
        for rank in 0..self.ranks.len() {
            self.check_rank(rank)?;
        }
        self.check_progress()
    }

    /// Checks as [`check`](Self::check) does, and that no rank holds the activations of more passes at once.
    ///
    /// # Errors
    /// Those of `check`, and [`ScheduleError::TooManyInFlight`].
    pub fn check_within(&self, in_flight_max: usize) -> Result<(), ScheduleError> {
        self.check()?;
        for (rank, in_flight) in self.in_flight_max().into_iter().enumerate() {
            if in_flight > in_flight_max {
                return Err(ScheduleError::TooManyInFlight {
                    rank,
                    in_flight,
                    in_flight_max,
                });
            }
        }
        Ok(())
    }

    /// The most forward passes of each rank whose activations it holds at once. Those are held until the
    /// backward pass, or until the weight gradient where that is a pass of its own.
    #[must_use]
    pub fn in_flight_max(&self) -> Vec<usize> {
        let of_rank = |passes: &Vec<Pass>| {
            let (mut held, mut most) = (0_usize, 0);
            for pass in passes {
                match pass.kind {
                    PassKind::Forward => held += 1,
                    PassKind::Backward | PassKind::BackwardWeight => held = held.saturating_sub(1),
                    PassKind::BackwardInput => {}
                }
                most = held.max(most);
            }
            most
        };
        self.ranks.iter().map(of_rank).collect()
    }

    /// Checks what can be seen in the list of one rank.
    fn check_rank(&self, rank: usize) -> Result<(), ScheduleError> {
        let mut places = vec![[None; 4]; self.micro_batches * self.chunks];
        for (place, pass) in self.ranks[rank].iter().enumerate() {
            if pass.micro_batch >= self.micro_batches || pass.chunk >= self.chunks {
                return Err(ScheduleError::UnknownPass {
                    rank,
                    pass: *pass,
                    micro_batches: self.micro_batches,
                    chunks: self.chunks,
                });
            }
            let at = pass.chunk * self.micro_batches + pass.micro_batch;
            if let Some(first) = places[at][pass.kind as usize].replace(place) {
                return Err(ScheduleError::Repeated {
                    rank,
                    pass: *pass,
                    first,
                    second: place,
                });
            }
        }
        for (at, places) in places.into_iter().enumerate() {
            let pass = |kind| Pass::new(kind, at % self.micro_batches, at / self.micro_batches);
            check_one(rank, places, &pass)?;
        }
        Ok(())
    }

    /// Runs all ranks as far as they come, whatever passes cost.
    fn check_progress(&self) -> Result<(), ScheduleError> {
        let stages = self.stages();
        // For each stage and micro-batch the forward pass, and the gradient for the stage before.
        let mut done = vec![[false; 2]; stages * self.micro_batches];
        let mut next = vec![0; self.ranks.len()];
        loop {
            let (mut waiting, mut moved) = (vec![], false);
            for (rank, passes) in self.ranks.iter().enumerate() {
                while let Some(pass) = passes.get(next[rank]) {
                    let stage = pass.chunk * self.ranks.len() + rank;
                    let at = stage * self.micro_batches + pass.micro_batch;
                    let (kind, waits_on) = match pass.kind {
                        PassKind::Forward if stage > 0 => (0, Some(stage - 1)),
                        PassKind::Forward => (0, None),
                        PassKind::BackwardWeight => (1, None),
                        PassKind::Backward | PassKind::BackwardInput => {
                            (1, Some(stage + 1).filter(|it| *it < stages))
                        }
                    };
                    let made = |on: usize| done[on * self.micro_batches + pass.micro_batch][kind];
                    if let Some(on) = waits_on.filter(|on| !made(*on)) {
                        waiting.push((rank, *pass, on % self.ranks.len()));
                        break;
                    }
                    done[at][kind] = true;
                    next[rank] += 1;
                    moved = true;
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if !moved {
                return Err(ScheduleError::Deadlock { waiting });
            }
        }
    }
}

/// Checks the places of the passes of one micro-batch through one chunk, by their kinds.
fn check_one(
    rank: usize,
    places: [Option<usize>; 4],
    pass: &dyn Fn(PassKind) -> Pass,
) -> Result<(), ScheduleError> {
    use PassKind::{Backward, BackwardInput, BackwardWeight, Forward};
    let place = |kind: PassKind| places[kind as usize];
    let missing = |kind| ScheduleError::Missing {
        rank,
        pass: pass(kind),
    };
    let forward = place(Forward).ok_or_else(|| missing(Forward))?;
    let gradients = match (place(Backward), place(BackwardInput), place(BackwardWeight)) {
        (Some(both), None, None) => vec![(Forward, forward, Backward, both)],
        (None, Some(input), Some(weight)) => vec![
            (Forward, forward, BackwardInput, input),
            (BackwardInput, input, BackwardWeight, weight),
        ],
        (None, None, None) => return Err(missing(Backward)),
        (None, Some(_), None) => return Err(missing(BackwardWeight)),
        (None, None, Some(_)) => return Err(missing(BackwardInput)),
        (Some(_), input, _) => {
            let kind = input.map_or(BackwardWeight, |_| BackwardInput);
            return Err(ScheduleError::GradientTwice {
                rank,
                pass: pass(kind),
            });
        }
    };
    for (first, at, then, place) in gradients {
        if place < at {
            return Err(ScheduleError::OutOfOrder {
                rank,
                pass: pass(then),
                after: pass(first),
            });
        }
    }
    Ok(())
}
