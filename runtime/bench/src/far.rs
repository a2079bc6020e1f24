//! The far end of a measurement: another process of this executable.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

/// The variable that tells a process started by a measurement what it is.
pub(crate) const ROLE: &str = "ODEON_BENCH_ROLE";

/// A process in some role, ended when this is dropped.
pub(crate) struct Far {
    child: Child,
}

impl Far {
    /// Starts one with these for its standard input and output.
    pub(crate) fn start(role: &str, stdin: Stdio, stdout: Stdio) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .env(ROLE, role)
            .stdin(stdin)
            .stdout(stdout)
            .spawn()
            .with_context(|| format!("starting the process `{role}`"))?;
        Ok(Self { child })
    }

    /// Starts one that calls [`serve`], tells it what it needs and hears what it has begun. It ends
    /// by itself when this process does.
    pub(crate) fn serving<T: DeserializeOwned>(
        role: &str,
        needs: impl Serialize,
    ) -> anyhow::Result<(Self, T)> {
        let mut far = Self::start(role, Stdio::piped(), Stdio::piped())?;
        let (stdin, stdout) = (far.child.stdin.as_mut(), far.child.stdout.take());
        write_line(stdin.context("it is piped")?, &needs)?;
        let mut said = String::new();
        BufReader::new(stdout.context("it is piped")?).read_line(&mut said)?;
        let begun: Result<T, String> = serde_json::from_str(&said)
            .with_context(|| format!("the process `{role}` said {said:?}"))?;
        Ok((far, begun.map_err(anyhow::Error::msg)?))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process that [`Far::serving`] started: lives until the near process is gone. `begin` gives
/// what that has to know, and what lives as long.
pub(crate) fn serve<N: DeserializeOwned, T: Serialize, K>(
    runtime: fn() -> std::io::Result<Runtime>,
    begin: impl AsyncFnOnce(N) -> anyhow::Result<(T, K)>,
) -> ! {
    let serving = || {
        let mut needs = String::new();
        std::io::stdin().read_line(&mut needs)?;
        let needs = serde_json::from_str(&needs)?;
        runtime()?.block_on(async {
            let (begun, _kept) = match begin(needs).await {
                Ok((begun, kept)) => (Ok(begun), Some(kept)),
                Err(error) => (Err(format!("{error:#}")), None),
            };
            write_line(&mut std::io::stdout(), &begun)?;
            let gone = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            tokio::task::spawn_blocking(gone).await??;
            anyhow::Ok(())
        })
    };
    std::process::exit(i32::from(serving().is_err()));
}

/// A tokio runtime of two threads, as nodes have it here.
pub(crate) fn two_threads() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// A tokio runtime of the thread that drives it.
pub(crate) fn one_thread() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn write_line(to: &mut impl Write, what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    Ok(to.flush()?)
}
