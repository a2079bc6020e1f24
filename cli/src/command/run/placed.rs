//! A run whose models are placed: one program drives them, step by step.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use odeon::{Failure, System};
use odeon_actors::engine::Progress;
use odeon_actors::hybrid::{self, Desk, HybridPlan, Member};
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::store::Counts;
use tokio::sync::{mpsc, watch};

use super::folder::RunFolder;
use super::metrics::{Metrics, reports};
use super::notes::Notes;
use super::progress::Display;
use super::{LOOK, Signals, Standalone, stopped, tell};
use crate::print;

/// Runs it to its end, or until somebody asks it to stop.
pub(super) async fn follow(
    system: &System,
    plan: &HybridPlan,
    recipe: &Recipe,
    folder: RunFolder,
    pages: Option<&Standalone>,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let told = reports(&folder.path);
    let reserves = !plan.needs.0.is_empty() || !plan.needs.1.is_empty();
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, mut member) = watch::channel(vec![]);
    let (halt, halted) = watch::channel(false);
    let desk = Desk {
        reports: report,
        members,
        halt: halted,
    };
    let mut book = Book {
        notes: Notes::new(&folder.path, reserves, plan.sharing),
        metrics: Metrics::open(&folder.path)?,
        display: Display::new(recipe, &told),
        counts: Counts::default(),
        replies: plan.groups * u64::from(plan.group_size),
    };
    tell(pages);
    let mut run = std::pin::pin!(hybrid::run(system, plan, desk));
    let mut looking = tokio::time::interval(LOOK);
    let mut asked = None;
    let ended: Result<Progress, Failure> = loop {
        tokio::select! {
            biased;
            // Whoever wants to kill a rank finds it as soon as it is there.
            Ok(()) = member.changed() => {
                let members: Vec<Member> = member.borrow_and_update().clone();
                book.notes.write(system, members).await?;
            }
            Some(report) = news.recv() => book.hear(&report)?,
            ended = &mut run => break ended,
            code = signals.asked() => {
                if asked.is_some() {
                    book.display.end();
                    return Ok(stopped(code, &folder));
                }
                asked = Some(code);
                halt.send_replace(true);
                print::say(
                    "stopping after the step under way, with a checkpoint; once more stops at once",
                );
            }
            _ = looking.tick() => {
                let members: Vec<Member> = member.borrow().clone();
                book.notes.write(system, members).await?;
            }
        }
    };
    while let Ok(report) = news.try_recv() {
        book.hear(&report)?;
    }
    book.display.end();
    match ended {
        Err(failure) => Err(folder.failed(&anyhow!("{failure}"))),
        Ok(progress) if progress.version < plan.train.steps => {
            Ok(stopped(asked.unwrap_or_default(), &folder))
        }
        Ok(_) => {
            let shown = book.display.table(book.counts);
            folder.say_where();
            shown?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Everything that is written down of a run, and shown.
struct Book {
    notes: Notes,
    metrics: Metrics,
    display: Display,
    counts: Counts,
    /// Of a step.
    replies: u64,
}

impl Book {
    fn hear(&mut self, report: &Report) -> Result<()> {
        if let Report::Step(step) = report {
            self.counts.accepted += self.replies;
            self.counts.uniform += step.uniform_groups;
        }
        self.metrics.write(report)?;
        self.display.show(report);
        Ok(())
    }
}
