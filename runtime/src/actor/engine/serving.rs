//! Questions of other engines whose answers take a while: those under way, and those that an engine
//! which is about to become another program keeps for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::net::service::Question;

/// The questions of others that this engine is answering or holds back.
#[derive(Debug)]
pub(crate) struct Serving {
    held: AtomicBool,
    book: Mutex<Book>,
    /// The signal that this process is about to become another program.
    stands: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    under_way: BTreeMap<u64, &'static str>,
    /// Those that were not begun, or begun in vain, since the engine holds.
    kept: Vec<Question>,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            held: AtomicBool::new(false),
            book: Mutex::default(),
            stands: watch::channel(false).0,
        }
    }
}

impl Serving {
    /// Numbers a question to a service of this name, which is under way from now on; or gives it back,
    /// kept, while the engine holds.
    pub(super) fn begin(
        &self,
        service: &'static str,
        question: Question,
    ) -> Option<(u64, Question)> {
        let mut book = self.book.lock();
        if self.is_held() {
            book.kept.push(question);
            return None;
        }
        book.next += 1;
        let number = book.next;
        book.under_way.insert(number, service);
        Some((number, question))
    }

    /// A question is answered; gives it back, unless its answer says that nothing was done: it may
    /// have failed only because the engine holds, and is kept.
    pub(super) fn end(
        &self,
        number: u64,
        question: Question,
        is_refusal: bool,
    ) -> Option<Question> {
        let mut book = self.book.lock();
        book.under_way.remove(&number);
        if self.is_held() && is_refusal {
            book.kept.push(question);
            return None;
        }
        Some(question)
    }

    /// Returns true while questions that take a while are kept.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Keeps questions from now on.
    pub(crate) fn hold(&self) {
        let _book = self.book.lock();
        self.held.store(true, Ordering::Release);
    }

    /// Keeps no more questions, and gives those that it has kept.
    pub(crate) fn go_on(&self) -> Vec<Question> {
        let mut book = self.book.lock();
        self.held.store(false, Ordering::Release);
        std::mem::take(&mut book.kept)
    }

    /// Gives what was kept, and goes on keeping.
    pub(crate) fn take_kept(&self) -> Vec<Question> {
        std::mem::take(&mut self.book.lock().kept)
    }

    /// The names of the services whose answers are under way.
    pub(crate) fn under_way(&self) -> Vec<String> {
        let book = self.book.lock();
        let names: BTreeSet<&str> = book.under_way.values().copied().collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// The process is about to become another program.
    pub(crate) fn stand_still(&self) {
        self.stands.send_replace(true);
    }

    /// Resolves when it is.
    pub(crate) async fn stands_still(&self) {
        let mut stands = self.stands.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = stands.wait_for(|stands| *stands).await;
    }
}
