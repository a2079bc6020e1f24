//! The `odeon` command: run recipes, evaluate and talk to what they made.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `args`, `args/words`, `args/resources`, `args/ranks`, `args/training`, `args/faults`, `args/environment`, `args/versions`, `args/mistyped`, `command`, `command/*` | every flag, once; the words that some take; those of what a job asks for, numbers of ranks, plans of training, runs under faults, environments and versions; the answer to a command that does not exist; the commands, one a file |
//! | `self_check` | the check of a node that is not trusted |
//! | `recovery` | the desks of runs, where people order something about ranks |
//! | `demos` | the recordings in the binary |
//! | `command/job`, `command/job/*` | jobs: what a program is and what travels with it (`program`, `files`, `recipe`, `recipe/pretraining`), its variables (`environment`), the lines that it prints (`lines`), arrays of them (`array`), their versions (`versions`), their list (`table`) |
//! | `command/watched`, `command/pages` | what is looked at: found by the note that a run leaves in its folder |
//! | `api` | the HTTP API of a daemon, with routes by what they are about (`jobs`, `versions`, `recovery`, `cluster`, `group_test`) |
//! | `api/*` | what a request brings (`extract`), who may use them (`access`, by `key`, at one of our names, `host`), how often (`limits`), who did (`audit`), whether an answer may be old (`majority`), the way to a node that can answer (`forwarding`) |
//! | `inspect`, `inspect/inspection`, `inspect/refused` | the routes of inspection; what they share; why there is no answer |
//! | `inspect/view`, `inspect/problems`, `inspect/time`, `inspect/workload`, `inspect/jobs` | the pages |
//! | `inspect/mesh`, `inspect/pipeline`, `inspect/machines`, `inspect/stragglers` | the ranks of a workload on their mesh; the passes of a pipeline of them; its machines beside each other, and numbers of machines over time; the passes of a recording as a trace |
//! | `inspect/dto` | what is seen as records of the API, of which the pages are made |
//! | `inspect/stream`, `inspect/facts`, `inspect/lines` | live pages; what a catalog adds; the last lines of a log |
//! | `inspect/gate`, `inspect/actions`, `inspect/recovery` | who may look; what may be done, to actors and about ranks |
//! | `inspect/scrape`, `inspect/assets`, `inspect/export` | the numbers that are scraped; the files of the pages; a part of time as a file |
//! | `inspect/standalone`, `inspect/output_log`, `inspect/event_log`, `inspect/journal` | the pages of one program; its output and its events, kept in files that are bounded |
//! | `inspect/record`, `inspect/replay`, `inspect/recorded_catalog`, `inspect/page` | a recording as it is made; shown again in the place of a system, and of its catalog; the pages and their answers as one file, which `cli/ui/offline` gives in the browser |
//! | `top`, `top/*` | the same in a terminal: what is known and how keys and news change it (`model`), the rows of each page (`page`, `mesh`, `rows`), what stands beside it (`panel`, `signs`), how it is drawn (`draw`), all pure; `terminal` has the keys and the network |
//! | `plot`, `plot/*` | figures as SVG: `lines` and `bars` in one `frame` with its axes (`axis`), out of elements with one style (`svg`) |
//! | `figures`, `print` | numbers as people read them; output |
//! | `waiter`, `heap` | a runtime that a command waits on; free memory of a daemon, given back to the system |
//!
//! The pages are `cli/ui`: modules that a browser reads as they are, without a build. `cli/demo` holds
//! recordings that `tests/src/record` made.

#![deny(unsafe_code)]

mod api;
mod args;
mod command;
mod demos;
mod figures;
mod heap;
mod inspect;
mod plot;
mod print;
mod recovery;
mod self_check;
mod top;
mod waiter;

use std::process::ExitCode;

use crate::args::{Command, ModelCommand, mistyped};

fn main() -> ExitCode {
    let job = odeon_actors::job();
    print::start_log();
    odeon_bench::serve_if_child();
    command::bench::serve_if_hollow();
    // The same binary is every worker process of a run.
    job.serve_if_worker();
    let outcome = match mistyped::read_arguments().command {
        Command::Run(args) if args.cluster => command::job::recipe::submit(&args),
        Command::Run(args) => command::run::run(job, &args),
        Command::Eval(args) => done(command::eval::run(&args)),
        Command::Generate(args) => done(command::generate::run(&args)),
        Command::Chat(args) => done(command::chat::run(&args)),
        Command::Curves(args) => done(command::curves::run(&args)),
        Command::Simulate(args) => done(command::simulate::run(&args)),
        Command::Pipeline(args) => done(command::pipeline::run(&args)),
        Command::Diagnose(args) => done(command::diagnose::run(&args)),
        Command::Whatif(args) => done(command::whatif::run(&args)),
        Command::Merge(args) => done(command::merge::run(&args)),
        Command::Model(ModelCommand::Check(args)) => command::model::check::run(&args),
        Command::Ckpt(command) => done(command::ckpt::run(&command)),
        Command::Data(command) => command::data::run(&command),
        Command::Fetch(args) => done(command::fetch::run(&args)),
        Command::Ps(args) => done(command::ps::run(&args)),
        Command::Top(args) => command::top::run(&args),
        Command::Stack(args) => done(command::stack::run(&args)),
        Command::Trace(args) => done(command::trace::run(&args)),
        Command::Devices(args) => done(command::devices::run(&args)),
        Command::Doctor(args) => command::doctor::run(&args),
        Command::Plan(args) => done(command::plan::run(job, &args)),
        Command::Why(args) => done(command::why::run(&args)),
        Command::Recover(args) => done(command::recover::run(&args)),
        Command::Kill(args) => done(command::kill::run(&args)),
        Command::Up(args) => command::daemon::up(&args),
        Command::Join(args) => command::daemon::join(&args),
        Command::Down(args) => command::daemon::down(&args),
        Command::Status(args) => command::cluster::status(&args),
        Command::Voters(args) => done(command::cluster::voters(&args)),
        Command::Drain(args) => command::cluster::drain(&args),
        Command::Node(args) => command::cluster::node(&args),
        Command::Upgrade(args) => done(command::cluster::upgrade(&args)),
        Command::Forget(args) => done(command::cluster::forget(&args)),
        Command::Namespace(args) => done(command::cluster::namespace(&args)),
        Command::Token(args) => done(command::cluster::token(&args)),
        Command::Key(args) => done(command::cluster::key(&args)),
        Command::Events(args) => done(command::events::run(&args)),
        Command::Gang(args) => command::gang::run(job, &args),
        Command::Submit(args) => command::job::submit(&args),
        Command::Jobs(args) => done(command::job::jobs(&args)),
        Command::Job(args) => done(command::job::job(&args)),
        Command::Logs(args) => command::job::logs(&args),
        Command::Stop(args) => command::job::stop(&args),
        Command::Cancel(args) => command::job::cancel(&args),
        Command::Wait(args) => command::job::wait(&args),
        Command::Retry(args) => command::job::retry(&args),
        Command::Update(args) => command::job::versions::update(&args),
        Command::Rollback(args) => command::job::versions::roll_back(&args),
        Command::Attach(args) => command::job::attach(&args),
        Command::Ui(args) => done(command::ui::run(&args)),
        Command::Record(args) => done(command::record::run(&args)),
        Command::Replay(args) => command::replay::run(&args),
        Command::Demo(args) => command::demo::run(&args),
        Command::Bench(args) => done(command::bench::run(&args)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if print::is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn done(outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS)
}
