//! Drivers of jobs, which join when they like; and processes that the program before this one has started.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::process::Pid;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{
    Forked, Greeting, Launch, Role, SharedWorker, Worker, WorkerHandoff, end_of, has_ended, io,
    is_process, unobserved,
};
use crate::actor::engine::Engine;
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::failure::{Failure, ProcessExit};
use crate::base::id::ProcessId;
use crate::net::link::{self, socket};
use crate::net::wire::Hello;
use crate::node::program::WorkerCommand;
use odeon_shm::take_open;

impl Engine {
    /// Starts the process that leads a job.
    pub(crate) fn launch_driver(
        self: &Arc<Self>,
        job: &str,
        role: &Role,
        command: &WorkerCommand,
    ) -> Result<(ProcessId, watch::Receiver<Option<ProcessExit>>), Failure> {
        self.check_room()?;
        let process = ProcessId::random();
        let launch = Launch {
            process,
            job,
            role,
            command,
            binding: None,
        };
        let forked = self.begin_process(&launch);
        if forked.is_err() {
            self.blobs().unshare(process);
        }
        let Forked { ended, stream } = forked?;
        let said = Hello {
            job: job.to_owned(),
            ..self.hello()
        };
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.follow_driver(process, stream, said).await });
        Ok((process, ended))
    }

    /// Greets a driver, when it joins, and sees its end.
    pub(super) async fn follow_driver(
        self: Arc<Self>,
        process: ProcessId,
        stream: UnixStream,
        said: Hello,
    ) {
        let Some(mut over) = self.workers().exit_seen(process) else {
            return;
        };
        let mut stream = stream;
        let greeting = async {
            link::say_hello(&mut stream, &said).await?;
            self.hear_driver(process, stream, said).await
        };
        tokio::select! {
            greeted = greeting => if let Err(error) = greeted {
                tracing::info!(%process, %error, "a driver did not join");
            },
            () = has_ended(&mut over) => {}
        }
        self.see_driver_out(process, over).await;
    }

    /// Hears the hello of a driver, whenever it says it, and links it.
    pub(super) async fn hear_driver(
        self: &Arc<Self>,
        process: ProcessId,
        stream: UnixStream,
        said: Hello,
    ) -> Result<(), SystemError> {
        let fd = stream.as_raw_fd();
        let greeting = |is_heard| {
            let said = said.clone();
            Some(Greeting {
                socket: fd,
                said,
                is_heard,
            })
        };
        self.workers().note_greeting(process, greeting(false));
        tokio::select! {
            biased;
            () = self.serving.stands_still() => return std::future::pending().await,
            readable = stream.readable() => readable.map_err(io("waiting for a driver"))?,
        }
        self.workers().note_greeting(process, greeting(true));
        let linked = self.link_driver(process, stream, said).await;
        self.workers().note_greeting(process, None);
        linked
    }

    /// Hears the hello of a driver that says it now, and links it.
    async fn link_driver(
        self: &Arc<Self>,
        process: ProcessId,
        stream: UnixStream,
        said: Hello,
    ) -> Result<(), SystemError> {
        let fd = stream.as_raw_fd();
        let (reader, writer) = socket::ends(stream).map_err(io("preparing a socket"))?;
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let greeted = link::greet_back(reader, writer, said, &self.limits).await?;
        let greeted = is_process(greeted, process)?.over_socket(fd);
        link::attach(&self.as_owner(), greeted, true);
        Ok(())
    }

    /// Takes a driver off the table when it has ended.
    pub(super) async fn see_driver_out(
        self: &Arc<Self>,
        process: ProcessId,
        mut over: watch::Receiver<Option<ProcessExit>>,
    ) {
        // One that never joined leaves no link whose end would tell, and the end of a link that was
        // left in order says nothing of the process. It may come after that of the process.
        has_ended(&mut over).await;
        while self.links.contains_key(&process) {
            Clock::sleep(self.limits.sweep_interval).await;
        }
        self.workers().exit_of(process).await;
        // The end of a link gives its part of the account back, and this one may have had none.
        self.blobs().unshare(process);
    }

    /// Goes on with processes that the program before this one has started, whose links are restored.
    pub(crate) async fn inherit_workers(
        self: &Arc<Self>,
        workers: Vec<WorkerHandoff>,
        shared: Vec<SharedWorker>,
    ) {
        let rows = shared.into_iter();
        let rows = rows.map(|(job, name, process)| ((job, name), process));
        self.workers().shared.lock().await.extend(rows);
        for handoff in workers {
            self.inherit_worker(handoff);
        }
    }

    pub(super) fn inherit_worker(self: &Arc<Self>, handoff: WorkerHandoff) {
        let WorkerHandoff {
            process,
            job,
            leads,
            pid,
            exit,
            retired,
            last_words,
            greeting,
        } = handoff;
        let is_over = exit.is_some();
        let (tell, exit) = watch::channel(exit);
        self.workers().table.lock().insert(
            process,
            Worker {
                job,
                leads,
                pid: Pid::from_raw(pid as i32),
                exit: exit.clone(),
                inside: None,
                retired,
                last_words,
                greeting: None,
                leaves: false,
            },
        );
        let engine = Arc::clone(self);
        if is_over {
            let over = Arc::clone(self);
            self.spawn_task(async move { over.end_link_of(process).await });
        } else {
            self.spawn_task(async move { engine.reap_inherited(process, pid, tell).await });
        }
        if !leads {
            return;
        }
        let row = (pid, exit.clone());
        self.workers().inherited.lock().insert(process, row);
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            let mut over = exit;
            if let Some(greeting) = greeting {
                tokio::select! {
                    greeted = engine.go_on_hearing(process, greeting) => if let Err(error) = greeted {
                        tracing::info!(%process, %error, "a driver did not join");
                    },
                    () = has_ended(&mut over) => {}
                }
            }
            engine.see_driver_out(process, over).await;
        });
    }

    /// Hears the hello of a driver that the program before this one has waited for.
    pub(super) async fn go_on_hearing(
        self: &Arc<Self>,
        process: ProcessId,
        greeting: Greeting,
    ) -> Result<(), SystemError> {
        let socket = take_open(greeting.socket).map_err(io("taking over a socket"))?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        let stream = socket
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(socket));
        let stream = stream.map_err(io("taking over a socket"))?;
        self.hear_driver(process, stream, greeting.said).await
    }

    /// Waits for the end of a process that the program before this one has started.
    pub(super) async fn reap_inherited(
        self: Arc<Self>,
        process: ProcessId,
        pid: u32,
        tell: watch::Sender<Option<ProcessExit>>,
    ) {
        // Before the first look, so that no end is missed.
        let mut children = signal(SignalKind::child());
        loop {
            {
                let left = self.workers().ends_left.lock();
                let seen = match &children {
                    // The next program of this process waits for it.
                    _ if *left => None,
                    Ok(_) => end_of(pid).unwrap_or_else(|error| Some(unobserved(&error))),
                    Err(error) => Some(unobserved(error)),
                };
                if let Some(end) = seen {
                    self.note_end_of(process, pid, end, &tell);
                    break;
                }
            }
            // More than one end may be told at once, so this only says when to look again.
            if let Ok(children) = &mut children {
                let _ = children.recv().await;
            }
        }
        self.end_link_of(process).await;
    }
}
