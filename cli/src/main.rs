//! The `odeon` command: run recipes, evaluate and talk to what they made.

#![forbid(unsafe_code)]

mod args;
mod command;
mod print;

use std::process::ExitCode;

use clap::Parser;
use odeon_actors::rl::critic::Critic;
use odeon_actors::rl::reference::Reference;
use odeon_actors::rl::relay::Relay;
use odeon_actors::rl::report::Monitor;
use odeon_actors::rl::reward::Reward;
use odeon_actors::rl::rollout::Rollout;
use odeon_actors::rl::store::SampleStore;
use odeon_actors::rl::trainer::Trainer;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let job = odeon::job![
        Critic,
        Monitor,
        Reference,
        Relay,
        Reward,
        Rollout,
        SampleStore,
        Trainer
    ];
    print::start_log();
    odeon_bench::serve_if_child();
    // The same binary is every worker process of a run.
    job.serve_if_worker();
    let outcome = match Args::parse().command {
        Command::Run(args) => command::run::run(job, &args),
        Command::Eval(args) => done(command::eval::run(&args)),
        Command::Generate(args) => done(command::generate::run(&args)),
        Command::Chat(args) => done(command::chat::run(&args)),
        Command::Fetch(args) => done(command::fetch::run(&args)),
        Command::Ps(args) => done(command::ps::run(&args)),
        Command::Kill(args) => done(command::kill::run(&args)),
        Command::Bench(args) => done(command::bench::run(&args)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            print::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn done(outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS)
}
