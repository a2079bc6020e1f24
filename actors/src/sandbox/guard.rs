//! The guard that ends programs when this process is killed: a shell that knows which run, and that
//! sees the pipe from this process end.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio::sync::Mutex;

use super::SandboxError;

/// Lives as long as its sandbox.
#[derive(Debug)]
pub(super) struct Guard {
    pipe: Mutex<ChildStdin>,
}

impl Guard {
    pub(super) fn start(folder: &Path) -> Result<Self, SandboxError> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", GUARD])
            .arg(folder)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // That of this process may be signalled as a whole.
            .process_group(0);
        let mut child = command.spawn().map_err(SandboxError::Unguarded)?;
        let pipe = child.stdin.take().expect("its input is a pipe");
        // When the pipe ends, so does the guard; tokio reaps it.
        drop(child);
        Ok(Self {
            pipe: Mutex::new(pipe),
        })
    }

    /// This process group has to be ended.
    pub(super) async fn watch(&self, group: i32) -> Result<(), SandboxError> {
        self.say(format!("+ {group}\n")).await
    }

    /// Nothing of it is left.
    pub(super) async fn forget(&self, group: i32) {
        // Without a guard there is nobody to forget.
        let _ = self.say(format!("- {group}\n")).await;
    }

    async fn say(&self, line: String) -> Result<(), SandboxError> {
        let mut pipe = self.pipe.lock().await;
        let said = pipe.write_all(line.as_bytes()).await;
        said.map_err(SandboxError::Unguarded)
    }
}

/// Removes the folder in the end, too. What is killed may write for a moment.
const GUARD: &str = r#"
groups=
while read -r what group; do
  others=
  for other in $groups; do [ "$other" = "$group" ] || others="$others $other"; done
  groups=$others
  [ "$what" = - ] || groups="$groups $group"
done
for group in $groups; do kill -s KILL -- "-$group"; done
PATH=/usr/bin:/bin
for pause in 0.1 0.3 1 3; do
  chmod -R u+rwx "$0"
  rm -rf "$0" && exit
  sleep "$pause"
done"#;
