//! Every bound of the system in one place, each with its reason.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::trace::Sampling;

/// The bounds an engine lives within. Build one with [`Limits::default`] and change what you need.
/// The worker processes of a node live within its bounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// Messages that wait in one actor's mailbox before senders wait too. Enough to keep a fast
    /// sender and a fast handler both busy; few enough that a stuck actor is noticed.
    pub mailbox_messages_max: usize,
    /// Messages one process may have unhandled at one remote actor. The receiver returns credit as
    /// it handles them, so a slow actor stops its senders and nobody else on the link.
    pub credit_messages: u32,
    /// Largest encoded message or reply between processes. Bulk belongs in a `Blob`. A message to an
    /// actor of the sender's own process is not encoded but handed over as it is, in no time whatever
    /// its size: to count its bytes first would take longer than to handle it, so it has no bound.
    pub message_bytes_max: usize,
    /// Bytes of calls and answers that wait for one link's writer, or that the node at its other end
    /// has not said it has taken in, before senders wait. A few round trips of bandwidth. A link
    /// between nodes keeps what it has sent until then, to send it again over another connection:
    /// of calls this much and one message more, of bulk what its readers have asked for, and of
    /// control frames those of one heartbeat and 64 KiB.
    pub link_queue_bytes_max: usize,
    /// Messages kept for an actor that is being placed again.
    pub backlog_messages_max: usize,
    /// The time that an ask waits for an answer when the caller names no timeout. Long enough for a
    /// training step on a slow machine, short enough that nothing waits for ever.
    pub ask_timeout: Duration,
    /// The interval at which pending asks are checked against their deadlines, and leases of blobs
    /// against theirs; a hundred times longer while nobody waits for an answer.
    pub sweep_interval: Duration,
    /// The interval at which a runtime of several threads is nudged, so that sockets and timers
    /// stay attended when a handler blocks a thread. Well below the idle time-out of a link.
    pub pulse_interval: Duration,
    /// The time for which code of an actor has a thread of its runtime before that counts as blocked, is logged
    /// and is shown as a problem. The thread is left alone: [`Needs::hang_after`](crate::Needs::hang_after) is for
    /// actors that may not take so long.
    pub blocked_after: Duration,
    /// The time that `stop` waits for the handler that is running before the actor is killed.
    pub stop_grace: Duration,
    /// The longest time that a worker process may take to say hello.
    pub worker_start_timeout: Duration,
    /// The time that an actor waits for the resources that it needs when others hold them, unless
    /// it says otherwise. Long enough for another to end and its device memory to come back.
    /// Also the time that one that is bound to a node, and has lived there, waits for that node
    /// when it is away.
    pub placement_timeout: Duration,
    /// The time that a lease is held for an actor that does not come. Longer than a worker takes to
    /// start.
    pub claim_timeout: Duration,
    /// The time for which smaller demands may overtake one that was refused; then it would starve.
    pub overtaking_max: Duration,
    /// The interval at which a node that has leased devices looks at them. A fault is noticed as
    /// late as this.
    pub device_poll_interval: Duration,
    /// The longest time that a look at the devices may take before the driver counts as not
    /// answering.
    pub device_look_timeout: Duration,
    /// The interval between looks at the devices while memory of ended processes is awaited.
    pub device_settle_interval: Duration,
    /// The longest time that the driver may take to free the memory of a process that has ended,
    /// before its devices are out of service.
    pub device_release_timeout: Duration,
    /// A link that is silent this long is lost, and with it the node or process at its other end.
    pub link_idle_timeout: Duration,
    /// A connection between nodes that is silent this long is given up, and the link goes on over
    /// another. Two late beats; half the idle time-out of a link at most, so that there is time to
    /// dial again.
    pub connection_idle: Duration,
    /// The interval at which an idle link says that it lives. A fraction of the idle time-out, so
    /// that one late beat does not kill a link.
    pub heartbeat_interval: Duration,
    /// Worker processes one node runs at once.
    pub workers_max: usize,
    /// Notices of dead actors kept, so that a late ask learns why.
    pub obituaries_max: usize,
    /// Spans kept in a process until somebody has read them; 0 for no tracing. A second's worth of a
    /// busy process.
    pub trace_spans_max: usize,
    /// Which spans are kept.
    pub trace_sampling: Sampling,
    /// Failures, restarts and losses that a process keeps until somebody has read them.
    pub news_max: usize,
    /// Numbers that programs say about their work, kept until somebody has read them.
    pub points_max: usize,
    /// Bytes of shared memory one job may hold in blobs on a node.
    pub blob_bytes_quota: u64,
    /// The time that the owner keeps a blob for a handle that is on its way and does not arrive.
    /// Longer than any message should travel, or else memory of lost messages would stay for ever.
    /// As long is a stream of replies kept for a reader that does not come.
    pub blob_transit: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mailbox_messages_max: 1024,
            credit_messages: 1024,
            message_bytes_max: 4 << 20,
            link_queue_bytes_max: 8 << 20,
            backlog_messages_max: 4096,
            ask_timeout: Duration::from_secs(30),
            sweep_interval: Duration::from_millis(5),
            pulse_interval: Duration::from_millis(250),
            blocked_after: Duration::from_secs(5),
            stop_grace: Duration::from_secs(5),
            worker_start_timeout: Duration::from_secs(10),
            placement_timeout: Duration::from_secs(60),
            claim_timeout: Duration::from_secs(15),
            overtaking_max: Duration::from_secs(10),
            device_poll_interval: Duration::from_secs(1),
            device_look_timeout: Duration::from_secs(10),
            device_settle_interval: Duration::from_millis(50),
            device_release_timeout: Duration::from_secs(30),
            link_idle_timeout: Duration::from_secs(10),
            connection_idle: Duration::from_secs(4),
            heartbeat_interval: Duration::from_secs(2),
            workers_max: 256,
            obituaries_max: 4096,
            trace_spans_max: 16_384,
            trace_sampling: Sampling::default(),
            news_max: 4096,
            points_max: 16_384,
            blob_bytes_quota: 4 << 30,
            blob_transit: Duration::from_secs(30),
        }
    }
}
