//! The last things of a kind, for readers who come by now and then: bounded, and what went missing
//! between two visits is counted.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The last `most` of what was added.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    most: usize,
    kept: Mutex<Kept<T>>,
}

#[derive(Debug)]
struct Kept<T> {
    items: VecDeque<T>,
    /// The number of items that were ever added.
    added: u64,
}

impl<T: Clone> Recent<T> {
    pub(crate) fn new(most: usize) -> Self {
        let kept = Kept {
            items: VecDeque::new(),
            added: 0,
        };
        Self {
            most,
            kept: Mutex::new(kept),
        }
    }

    pub(crate) fn add(&self, item: T) {
        let mut kept = self.kept.lock();
        kept.added += 1;
        if kept.items.len() >= self.most {
            kept.items.pop_front();
        }
        if self.most > 0 {
            kept.items.push_back(item);
        }
    }

    /// Up to `most` items after the first `seen`, and how many of those are gone.
    pub(crate) fn after(&self, seen: &mut u64, most: usize) -> (Vec<T>, u64) {
        let kept = self.kept.lock();
        let first = kept.added - kept.items.len() as u64;
        let lost = first.saturating_sub(*seen);
        let skip = seen.saturating_sub(first) as usize;
        let items: Vec<_> = kept.items.iter().skip(skip).take(most).cloned().collect();
        *seen += lost + items.len() as u64;
        (items, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_what_is_new_and_hear_what_is_gone() {
        let recent = Recent::new(2);
        let mut seen = 0;
        recent.add('a');
        assert_eq!(recent.after(&mut seen, 9), (vec!['a'], 0));
        ['b', 'c', 'd'].into_iter().for_each(|it| recent.add(it));
        assert_eq!(recent.after(&mut seen, 1), (vec!['c'], 1));
        assert_eq!(recent.after(&mut seen, 9), (vec!['d'], 0));
        assert_eq!(recent.after(&mut seen, 9), (vec![], 0));
    }
}
