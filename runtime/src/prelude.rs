//! The names that a program of actors uses: `use odeon::prelude::*`.

pub use std::time::Duration;

pub use crate::{
    Answer, AskError, Blob, BlobError, Clock, Context, Down, Effect, Failure, FailureKind,
    FakeDevices, Group, Host, Later, Limits, Mesh, Message, Needs, Orphans, Rank, Reason,
    Recipient, Ref, ReplySender, ReplyStream, Restart, Shape, Supervision, System, TellError,
    WorkerMode, actor, at, gib, handler, job, mesh, message, telemetry, wire,
};
