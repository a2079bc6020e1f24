//! Arguments of calls, checked before anything is moved, by communicators of every kind.

use super::error::{CollectiveError, Operation};
use super::transport::Membership;

impl Membership {
    /// The error of a call whose arguments do not fit.
    #[must_use]
    pub fn misuse(&self, operation: Operation, why: String) -> CollectiveError {
        CollectiveError::Misuse {
            rank: self.rank,
            operation,
            why,
        }
    }

    /// Refuses a call whose length is not what it should be.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn fit(
        &self,
        operation: Operation,
        what: &str,
        has: usize,
        needs: usize,
    ) -> Result<(), CollectiveError> {
        if has == needs {
            return Ok(());
        }
        let why = format!("the {what} has {has} elements and should have {needs}");
        Err(self.misuse(operation, why))
    }

    /// Refuses a call that names a rank that is not there.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn check_rank(
        &self,
        operation: Operation,
        what: &str,
        rank: usize,
    ) -> Result<(), CollectiveError> {
        let world = self.world();
        if rank < world {
            return Ok(());
        }
        let why = format!(
            "there is no rank {rank} to be the {what}, the ranks are 0 to {}",
            world - 1
        );
        Err(self.misuse(operation, why))
    }

    /// The sum of `counts`, one for each rank.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn check_counts(
        &self,
        operation: Operation,
        counts: &[usize],
    ) -> Result<usize, CollectiveError> {
        let world = self.world();
        if counts.len() != world {
            let why = format!("{} counts were given for {world} ranks", counts.len());
            return Err(self.misuse(operation, why));
        }
        let total = counts
            .iter()
            .try_fold(0usize, |sum, count| sum.checked_add(*count));
        total.ok_or_else(|| self.misuse(operation, "the counts are too large".to_owned()))
    }

    /// The counts of `len` elements in equal parts, one for each rank.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn shares(&self, operation: Operation, len: usize) -> Result<Vec<usize>, CollectiveError> {
        let world = self.world();
        if !len.is_multiple_of(world) {
            let why = format!("the input has {len} elements, which {world} ranks cannot share");
            return Err(self.misuse(operation, why));
        }
        Ok(vec![len / world; world])
    }

    /// Refuses an all-to-all whose lengths are not those of its parts.
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`].
    pub fn check_exchange(
        &self,
        operation: Operation,
        (input, to): (usize, &[usize]),
        (output, from): (usize, &[usize]),
    ) -> Result<(), CollectiveError> {
        let sent = self.check_counts(operation, to)?;
        let taken = self.check_counts(operation, from)?;
        self.fit(operation, "input", input, sent)?;
        self.fit(operation, "output", output, taken)?;
        let rank = self.rank;
        let what = "part of the output from this rank itself";
        self.fit(operation, what, from[rank], to[rank])
    }
}
