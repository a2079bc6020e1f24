//! Versions on trial: a driver is told which version it is, and tells when that has come to work.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use odeon::{Clock, WorkerCommand};

use super::Agent;
use crate::job::{Event, Job, JobId};

/// The variable by which a driver knows its version.
const VERSION_VARIABLE: &str = "ODEON_VERSION";
/// That of the version to which its job would go back.
const BEFORE_VARIABLE: &str = "ODEON_VERSION_BEFORE";
/// That of the moment since which it is the present one, in milliseconds since 1970.
const SINCE_VARIABLE: &str = "ODEON_VERSION_SINCE";
/// That of the file which a driver makes when its version has come to work; where that is of interest.
const AT_WORK_VARIABLE: &str = "ODEON_AT_WORK";
/// That file, in the folder of the try.
const AT_WORK_FILE: &str = ".odeon-at-work";
/// The pause between two looks for it.
const PAUSE: Duration = Duration::from_millis(200);

impl Agent {
    /// Tells a driver of its version.
    pub(super) fn with_version(
        &self,
        command: WorkerCommand,
        job: &Job,
        attempt: u32,
    ) -> WorkerCommand {
        let mut command = command.env(VERSION_VARIABLE, job.version().to_string());
        if let Some(before) = job.version_before() {
            let since = job.version_since();
            command = command
                .env(BEFORE_VARIABLE, before.to_string())
                .env(SINCE_VARIABLE, since.0.to_string());
        }
        match job.is_on_trial() {
            true => command.env(AT_WORK_VARIABLE, self.at_work_file((job.id, attempt))),
            false => command,
        }
    }

    /// Follows a driver to its end, and tells the catalog when its version has come to work.
    pub(super) async fn beside_trial<T>(
        &self,
        job: &Job,
        attempt: u32,
        following: impl Future<Output = T>,
    ) -> T {
        if !job.is_on_trial() {
            return following.await;
        }
        let file = self.at_work_file((job.id, attempt));
        let told = AtomicBool::new(false);
        let telling = async {
            while !file.exists() {
                Clock::sleep(PAUSE).await;
            }
            self.tell(job.id, Event::AtWork { attempt }).await;
            told.store(true, Ordering::Relaxed);
            std::future::pending().await
        };
        let ended = tokio::select! {
            biased;
            ended = following => ended,
            ended = telling => ended,
        };
        // It counts, too, when its driver has ended right behind it.
        if !told.load(Ordering::Relaxed) && file.exists() {
            self.tell(job.id, Event::AtWork { attempt }).await;
        }
        ended
    }

    fn at_work_file(&self, (job, attempt): (JobId, u32)) -> PathBuf {
        let folder = self.inner.staging.folder_of(job, attempt);
        folder.join(AT_WORK_FILE)
    }
}
