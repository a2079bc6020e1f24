//! The account of what a source has left out.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::fault::Skipped;

/// The account of what was left out: how much, and the first of it with file, place and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(default)]
pub struct LeftOut {
    /// Files of which nothing can be read, or not their ends.
    pub files: u64,
    /// Things beside them that are not of the source's format, such as files of other names.
    pub others: u64,
    /// Records that became no sample.
    pub records: u64,
    /// Those of them that cannot be read; the others have no text, or are longer than the context.
    pub bad: u64,
    /// The first few.
    pub first: Vec<Skipped>,
}

impl LeftOut {
    /// Returns true where nothing was left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files == 0 && self.others == 0 && self.records == 0
    }

    /// A file, or a part of one, is left out.
    pub(crate) fn file(&mut self, skipped: Skipped) {
        match skipped.reason.is_bad() {
            true => self.files += 1,
            false => self.others += 1,
        }
        self.tell(skipped);
    }

    /// A record is left out.
    pub(crate) fn record(&mut self, skipped: Skipped) {
        self.records += 1;
        self.bad += u64::from(skipped.reason.is_bad());
        self.tell(skipped);
    }

    /// Adds what was left out elsewhere, which comes behind this.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.others += other.others;
        self.records += other.records;
        self.bad += other.bad;
        let room = FIRST.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }

    /// The first that cannot be read.
    #[must_use]
    pub fn first_bad(&self) -> Option<&Skipped> {
        self.first.iter().find(|skipped| skipped.reason.is_bad())
    }

    fn tell(&mut self, skipped: Skipped) {
        if self.first.len() < FIRST {
            self.first.push(skipped);
        } else if skipped.reason.is_bad() && self.first_bad().is_none() {
            // Whoever asks for the first that is bad finds it, however many are not bad before it.
            self.first[FIRST - 1] = skipped;
        }
    }
}

/// One sentence, without the first of them.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: u64, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        let parts = [
            (self.records, "record", "left out"),
            (self.files, "file", "not read whole"),
            (self.others, "other", "beside, not read"),
        ];
        let said = parts.iter().filter(|(number, ..)| *number > 0);
        let said: Vec<String> = said
            .map(|(number, one, what)| format!("{} {what}", count(*number, one)))
            .collect();
        match said.is_empty() {
            true => f.write_str("nothing left out"),
            false => f.write_str(&said.join(", ")),
        }
    }
}

/// As many are told with file, place and reason.
const FIRST: usize = 8;

#[cfg(test)]
mod tests {
    use super::super::fault::SkipReason;
    use super::*;

    #[test]
    fn an_account_counts_all_and_tells_the_first() {
        let skipped = |offset, reason| Skipped::at("a", offset, reason);
        let mut account = LeftOut::default();
        assert_eq!(account.to_string(), "nothing left out");
        for offset in 0..20 {
            account.record(skipped(offset, SkipReason::Empty));
        }
        account.record(skipped(20, SkipReason::Bad("torn".into())));
        account.file(skipped(7, SkipReason::Other("of another kind".into())));
        account.file(skipped(9, SkipReason::Bad("cut off".into())));
        assert_eq!((account.records, account.bad), (21, 1));
        assert_eq!((account.files, account.others), (1, 1));
        assert_eq!(account.first.len(), FIRST);
        assert_eq!(account.first_bad().map(|bad| bad.offset), Some(20));
        let mut all = LeftOut::default();
        all.add(&account);
        all.add(&account);
        assert_eq!((all.records, all.first.len()), (42, FIRST));
        assert_eq!(
            all.to_string(),
            "42 records left out, 2 files not read whole, 2 others beside, not read"
        );
    }
}
