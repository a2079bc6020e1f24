//! Tests of one's own actors: what `#[odeon::test]` makes of an `async fn`.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::base::id::ProcessId;
use crate::node::program::{Output, WorkerCommand, WorkerMode};
use crate::system::{Job, System};

/// A test as its macro describes it.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Test {
    /// The actors that worker processes can host.
    pub job: Job,
    /// Its module, as the compiler names that.
    pub module: &'static str,
    /// Its function.
    pub name: &'static str,
    /// Threads of the runtime.
    pub threads: usize,
}

impl Test {
    /// Runs a test with a system of its own, which is ended whatever the test does. In a process that
    /// the system has started as a worker, serves instead.
    ///
    /// # Panics
    /// With whatever the test panics with, or when no system could start.
    pub fn run<T, F>(self, test: impl FnOnce(System) -> F) -> T
    where
        F: Future<Output = T>,
    {
        self.job.serve();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .enable_all()
            .build()
            .expect("tokio starts");
        runtime.block_on(async {
            let workers = WorkerMode::Processes(self.worker());
            let system = System::builder().job(self.job).workers(workers).start();
            let system = system.await.expect("a system starts");
            let running = AssertUnwindSafe(system.scope(test(system.clone()))).catch_unwind();
            let outcome = running.await;
            system.shutdown().await;
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// The same executable with the one test in it, which serves.
    fn worker(self) -> WorkerCommand {
        let command = WorkerCommand::current_exe().expect("the path of the test is known");
        let ways = [
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ];
        let command = command.arg(self.path());
        let command = ways.into_iter().fold(command, WorkerCommand::arg);
        command.output(pass_on)
    }

    /// The name by which the harness knows the test: without that of its crate.
    fn path(self) -> String {
        match self.module.split_once("::") {
            Some((_, module)) => format!("{module}::{}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// Prints what a worker prints, but for what the harness says before its test runs.
fn pass_on(_: ProcessId, output: Output) {
    tokio::spawn(print(output.stdout, true));
    tokio::spawn(print(output.stderr, false));
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is what actors have printed"
)]
async fn print(from: impl AsyncRead + Unpin, by_harness: bool) {
    let mut lines = BufReader::new(from).lines();
    let mut begins = by_harness;
    while let Ok(Some(line)) = lines.next_line().await {
        begins &= line.is_empty() || line.starts_with("running ");
        match (begins, by_harness) {
            (true, _) => {}
            (false, true) => println!("{line}"),
            (false, false) => eprintln!("{line}"),
        }
    }
}
