//! Tasks of one life of an actor: work that it has begun beside its handlers, and its timers.

use std::fmt;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};

use crate::actor::cell::{ActorCell, Control};
use crate::actor::replies::life::StreamLife;
use crate::actor::task_context::Current;
use crate::actor::user_code::UserCode;
use crate::base::clock::Clock;
use crate::base::failure::Reason;
use crate::base::id::Incarnation;
use crate::base::trace::SpanContext;

/// Work that an actor has begun beside its handlers, or a timer of it. It ends with the life of the actor
/// that has begun it. Dropping this lets it go on.
#[derive(Clone)]
pub struct ActorTask(AbortHandle);

impl fmt::Debug for ActorTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorTask")
            .field("is_over", &self.is_over())
            .finish()
    }
}

impl ActorTask {
    /// Ends it where it waits next. A message of a timer that waits in the mailbox is withdrawn.
    pub fn cancel(&self) {
        self.0.abort();
    }

    /// Returns true once it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

/// The tasks of an actor's present life, and the streams of replies that it writes.
#[derive(Default)]
pub(crate) struct Tasks {
    running: Mutex<Option<JoinSet<()>>>,
    pub(crate) streams: Streams,
}

/// The streams of replies of a life.
#[derive(Default)]
pub(crate) struct Streams(Mutex<Vec<Weak<StreamLife>>>);

impl Streams {
    pub(crate) fn add(&self, stream: &Arc<StreamLife>) {
        let mut streams = self.0.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// This life ends, and no more is written. Readers hear why.
    pub(crate) fn life_ends(&self, reason: &Reason) {
        let streams = std::mem::take(&mut *self.0.lock());
        for stream in streams.iter().filter_map(Weak::upgrade) {
            stream.life_ends(reason);
        }
    }
}

impl Tasks {
    /// Begins work of this life. It sends in the name of its actor, below a span. A panic in it ends the
    /// life as a failure.
    pub(crate) fn begin(
        &self,
        cell: &Arc<ActorCell>,
        life: Incarnation,
        span: SpanContext,
        work: BoxFuture<'static, ()>,
    ) -> ActorTask {
        let running = run(Arc::clone(cell), life, span, work);
        let mut tasks = self.running.lock();
        let tasks = tasks.get_or_insert_with(JoinSet::new);
        while tasks.try_join_next().is_some() {}
        ActorTask(tasks.spawn_on(running, cell.engine.runtime()))
    }

    /// Ends all of them, and waits until they are gone. One that holds its thread is left behind after
    /// the grace of a stop.
    pub(crate) async fn end(&self, cell: &ActorCell) {
        let Some(mut tasks) = self.running.lock().take() else {
            return;
        };
        let grace = cell.engine.limits.stop_grace;
        if Clock::timeout(grace, tasks.shutdown()).await.is_none() {
            tracing::warn!(actor = %cell.id, "a task holds its thread and was left behind");
        }
    }
}

async fn run(
    cell: Arc<ActorCell>,
    life: Incarnation,
    span: SpanContext,
    work: BoxFuture<'static, ()>,
) {
    let mut surroundings = Some(Current::Task {
        cell: Arc::clone(&cell),
        span,
    });
    let running = UserCode {
        future: work,
        surroundings: &mut surroundings,
        place: "a task",
        log: tracing::info_span!("task", actor = %cell.id),
    };
    if let Err(failure) = running.await {
        cell.order(Control::End {
            incarnation: life,
            reason: Reason::Failed(failure),
        });
    }
}
