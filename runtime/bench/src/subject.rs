//! The actor that is measured, and the systems it lives in.

use odeon::{
    Actor, Blob, Context, Failure, Handler, Job, Message, Shape, System, SystemBuilder,
    WorkerCommand, WorkerMode,
};
use serde::{Deserialize, Serialize};

use crate::far::ROLE;
use crate::together::Member;

/// A small message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Add(pub(crate) u64);

/// 64 bytes there and back.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Echo(pub(crate) [u64; 8]);

/// 64 bytes there, nothing back.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Note(pub(crate) [u64; 8]);

/// Opens a blob and reads its ends, or a byte of each page. The answer is its length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Touch {
    pub(crate) blob: Blob,
    pub(crate) all: bool,
}

macro_rules! message {
    ($name:ident -> $reply:ty) => {
        impl Shape for $name {
            const SHAPE: u64 = odeon::shape::name(concat!("bench.", stringify!($name)));
        }
        impl Message for $name {
            const NAME: &'static str = stringify!($name);
            type Reply = $reply;
        }
    };
}
message!(Add -> u64);
message!(Echo -> [u64; 8]);
message!(Note -> ());
message!(Touch -> u64);

/// Counts and echoes: handlers that cost nothing.
pub(crate) struct Subject(u64);

impl Actor for Subject {
    const NAME: &'static str = "bench.Subject";
    type Args = ();
    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self(0))
    }
}
impl Handler<Add> for Subject {
    async fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u64 {
        self.0 += n;
        self.0
    }
}
impl Handler<Echo> for Subject {
    async fn handle(&mut self, Echo(words): Echo, _: &mut Context<Self>) -> [u64; 8] {
        words
    }
}
impl Handler<Note> for Subject {
    async fn handle(&mut self, Note(words): Note, _: &mut Context<Self>) {
        self.0 += words[0];
    }
}
impl Handler<Touch> for Subject {
    async fn handle(&mut self, Touch { blob, all }: Touch, _: &mut Context<Self>) -> u64 {
        let Ok(view) = blob.open().await else {
            // The length that it answers with says so.
            return 0;
        };
        let step = if all { 4096 } else { view.len().max(2) - 1 };
        self.0 += view
            .iter()
            .step_by(step)
            .map(|byte| u64::from(*byte))
            .sum::<u64>();
        view.len() as u64
    }
}
odeon::register!(Subject: Add, Echo, Note, Touch);

/// The job whose workers can host what is measured.
#[must_use]
pub fn job() -> Job {
    odeon::job![Subject, Member]
}

/// A system whose workers are processes of the running executable.
pub(crate) async fn system() -> anyhow::Result<System> {
    Ok(builder()?.start().await?)
}

pub(crate) fn builder() -> anyhow::Result<SystemBuilder> {
    let worker = WorkerCommand::current_exe()?.env(ROLE, "worker");
    let workers = WorkerMode::Processes(worker);
    Ok(System::builder().job(job()).workers(workers))
}
