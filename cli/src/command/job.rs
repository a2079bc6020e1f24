//! Jobs of a cluster: `odeon submit`, `jobs`, `job`, `logs`, `stop`, `cancel`, `wait`, `retry`,
//! `attach`.

mod files;
mod lines;
mod program;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::trace::{SpanContext, TRACEPARENT};
use odeon_client::types::Job;
use odeon_client::{CONNECTION_FILE, Client, ClientError, Connection, Submission, default_folder};

use self::lines::LinePrinter;
use super::cluster::look;
use crate::args::{JobArgs, JobsArgs, LineArgs, LogsArgs, OneJobArgs, StopArgs, SubmitArgs};
use crate::print;
use crate::waiter::Waiter;

/// The cluster that a command is about, and a runtime to reach it.
pub(crate) fn cluster(dir: Option<&PathBuf>) -> Result<(Client, Waiter)> {
    let connection = match dir {
        Some(folder) => Connection::read(&folder.join(CONNECTION_FILE))?,
        None => Connection::find(&default_folder())?,
    };
    let client = Client::new(connection)?;
    Ok((client, Waiter::alone()?))
}

pub(crate) fn submit(args: &SubmitArgs) -> Result<ExitCode> {
    send(
        &submission(args)?,
        args.cluster.dir.as_ref(),
        args.wait,
        args.json,
    )
}

/// Submits a job; shows what it prints and exits as it does, where it is waited for.
pub(crate) fn send(
    submission: &Submission,
    dir: Option<&PathBuf>,
    wait: bool,
    json: bool,
) -> Result<ExitCode> {
    let (client, runtime) = cluster(dir)?;
    runtime.block_on(async {
        let mut bar = print::UploadBar::default();
        let submitted = client.submit(submission, |upload| {
            bar.show(upload.bytes - upload.known, upload.put);
        });
        let job = submitted.await?;
        bar.end();
        if json {
            print::line(serde_json::to_string(&job)?)?;
        } else {
            print::say(format!("submitted {} ({})", job.id, job.name));
        }
        if !wait {
            return Ok(ExitCode::SUCCESS);
        }
        let mut printer = LinePrinter::new(&job, &LineArgs::default(), true, false);
        tokio::select! {
            code = follow(&client, &job.id, String::new(), &mut printer) => code,
            _ = tokio::signal::ctrl_c() => {
                print::say(format!(
                    "{} goes on; follow it with `odeon logs -f {0}`, end it with `odeon stop {0}`",
                    job.id
                ));
                Ok(ExitCode::from(130))
            }
        }
    })
}

/// The executable of this process, to be a job's.
pub(crate) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// A text as the name of a job.
pub(crate) fn plain(name: &str) -> String {
    let plain = |c: char| match c {
        '-' | '_' | '.' => c,
        c if c.is_alphanumeric() => c,
        _ => '-',
    };
    name.chars().take(NAME_CHARS_MAX).map(plain).collect()
}

/// Names of jobs have a bound in bytes; no character takes more than four.
const NAME_CHARS_MAX: usize = 25;

fn submission(args: &SubmitArgs) -> Result<Submission> {
    let resources = args.resources.asked(args.gang, &args.each)?;
    let what = program::what(args)?;
    let mut notes = what.notes;
    let mut files = what.files;
    for (name, path) in files::named(&args.file)? {
        // What is named stands in the place of what was only found.
        files.retain(|(known, _)| *known != name);
        files.push((name, path));
    }
    let here = std::env::current_dir().context("finding the current folder")?;
    notes.extend(program::unsent_packages(&files, &here));
    for note in notes {
        print::say(note);
    }
    let mut submission = Submission::of_program(&what.program)?.files(files)?;
    for arg in &what.words {
        submission = submission.arg(arg);
    }
    // Submitted in a trace, it belongs to that.
    let given = SpanContext::given();
    let given = given.map(|given| (TRACEPARENT.to_owned(), given.traceparent()));
    let mut env = Vec::from_iter(given);
    for variable in &args.env {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = std::env::var(variable).with_context(|| {
                    format!("`--env {variable}` passes on a variable that is not set here")
                })?;
                (variable.clone(), value)
            }
        };
        env.push((name, value));
    }
    Ok(submission.with(|job| {
        if let Some(name) = args.name.as_ref().or(what.name.as_ref()) {
            job.name.clone_from(name);
        }
        job.namespace.clone_from(&args.namespace);
        job.env.extend(env);
        job.priority = args.priority;
        job.retries = args.retries;
        job.node.clone_from(&args.node);
        job.resources = resources;
        job.time_limit_s = args.resources.time_limit.map(|limit| limit.as_secs());
    }))
}

/// Shows what a job prints until it is over; the exit code is the job's.
async fn follow(
    client: &Client,
    id: &str,
    mut after: String,
    printer: &mut LinePrinter,
) -> Result<ExitCode> {
    let from_the_first = after.is_empty();
    loop {
        let lines = client.logs(id, &after, true).await;
        let lines = lines.map_err(|error| unheard(error, id))?;
        after.clone_from(&lines.next);
        let over = lines.over;
        printer.show(lines)?;
        if over {
            break;
        }
    }
    printer.flush()?;
    let job = client.wait(id).await.map_err(|error| unheard(error, id))?;
    say_unkept(&job);
    Ok(end_of(&job, from_the_first))
}

/// Tells of output that is nowhere.
fn say_unkept(job: &Job) {
    if job.unkept_lines > 0 {
        print::say(format!(
            "... {} lines of {} were not kept when it ended: the disks of the voters did not take \
             them, or too few voters were up ...",
            job.unkept_lines, job.id
        ));
    }
}

/// The error for whoever watches a job when its cluster was ended, or is out of reach.
fn unheard(error: ClientError, id: &str) -> anyhow::Error {
    if !error.is_away() {
        return error.into();
    }
    anyhow!(
        "the cluster does not answer any more: its nodes were ended, or cannot be reached; what became \
         of {id} is known when it is back (odeon up, odeon job show {id})"
    )
}

/// Tells how a job has ended, whose last lines were shown or not; the exit code is the job's.
fn end_of(job: &Job, is_shown: bool) -> ExitCode {
    if job.state != "succeeded" {
        let why = job.why.as_ref().unwrap_or(&job.state);
        let why = match why.split_once("; it said last: ") {
            Some((how, _)) if is_shown => how,
            _ => why,
        };
        print::say(format!("{} {why}", job.id));
    }
    ExitCode::from(u8::try_from(job.exit_code.unwrap_or(0)).unwrap_or(1))
}

pub(crate) fn jobs(args: &JobsArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    // One more tells that there are more.
    let asked = args.limit.saturating_add(1);
    let mut jobs = runtime.block_on(look(&client, || client.jobs(asked, args.all)))?;
    let most = args.limit.min(JOBS_MAX - 1);
    let is_cut = jobs.len() > most;
    jobs.truncate(most);
    if is_cut {
        print::say(format!(
            "the {most} newest jobs; older ones with --limit N, at most {}",
            JOBS_MAX - 1
        ));
    }
    if args.json {
        for job in &jobs {
            print::line(serde_json::to_string(job)?)?;
        }
        return Ok(());
    }
    if jobs.is_empty() {
        print::say(match args.all {
            true => "no jobs",
            false => "no jobs that are not over; those are shown with --all",
        });
        return Ok(());
    }
    let now = odeon_cluster::unix::Unix::now().0;
    let head = [
        "job", "name", "state", "node", "since", "tries", "asks for", "by",
    ];
    let mut table = print::Table::new(head);
    for job in &jobs {
        table.row([
            job.id.clone(),
            job.name.clone(),
            job.state.clone(),
            job.node.clone().unwrap_or_else(|| "-".to_owned()),
            print::ago(now.saturating_sub(job.since_ms)),
            job.tries.to_string(),
            job.asks.clone().unwrap_or_else(|| "-".to_owned()),
            job.by.clone(),
        ]);
    }
    table.print()?;
    for job in &jobs {
        match (job.state.as_str(), &job.why) {
            ("waiting", Some(why)) => print::line(format!("{} waits: {why}", job.id))?,
            ("staging", Some(why)) => print::line(format!("{} is held up: {why}", job.id))?,
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn job(args: &JobArgs) -> Result<()> {
    let crate::args::JobCommand::Show(args) = &args.command;
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(look(&client, || client.job(&args.job)))?;
    if args.json {
        print::line(serde_json::to_string_pretty(&job)?)?;
        return Ok(());
    }
    let moment = |ms: u64| odeon_cluster::unix::Unix(ms).to_string();
    let mut rows = vec![
        ("job", job.id.clone()),
        ("name", job.name.clone()),
        ("namespace", job.namespace.clone()),
        ("state", job.state.clone()),
    ];
    let why = job.why.clone().filter(|why| *why != job.state);
    rows.extend(why.map(|why| ("why", why)));
    rows.extend(job.node.clone().map(|node| ("node", node)));
    rows.extend(job.pid.map(|pid| ("process", pid.to_string())));
    rows.extend(job.exit_code.map(|code| ("exit code", code.to_string())));
    rows.push((
        "submitted",
        format!("{} by {}", moment(job.submitted_ms), job.by),
    ));
    rows.push(("since", moment(job.since_ms)));
    if let Some(begun) = job.begun_ms {
        let until = match job.over {
            true => job.since_ms,
            false => odeon_cluster::unix::Unix::now().0,
        };
        rows.push(("took", print::ago(until.saturating_sub(begun))));
    }
    rows.extend(job.hosts.clone().map(|actor| ("actor", actor)));
    rows.push((
        "tries",
        match job.hosts {
            None => format!("{} of {}", job.tries, job.retries + 1),
            Some(_) => job.tries.to_string(),
        },
    ));
    rows.push(("priority", job.priority.to_string()));
    rows.extend(job.asks.clone().map(|asks| ("asks for", asks)));
    rows.extend(held(&job).map(|held| ("holds", held)));
    let limit = job.time_limit_s.map(Duration::from_secs);
    rows.extend(limit.map(|limit| ("time limit", print::ago(limit.as_millis() as u64))));
    if job.unkept_lines > 0 {
        rows.push((
            "unkept",
            format!("{} lines of its output", job.unkept_lines),
        ));
    }
    if !job.args.is_empty() {
        let words: Vec<String> = job.args.iter().map(|word| print::quoted(word)).collect();
        rows.push(("arguments", words.join(" ")));
    }
    if !job.env.is_empty() {
        rows.push(("variables", job.env.join(" ")));
    }
    rows.push(("files", job.bundle.clone()));
    for (name, value) in rows {
        print::line(format!("{name:<11}{value}"))?;
    }
    for earlier in &job.earlier {
        print::line(format!(
            "try {:<7}{} on {}",
            earlier.attempt, earlier.outcome, earlier.node
        ))?;
    }
    Ok(())
}

/// Jobs of one answer of a cluster.
const JOBS_MAX: usize = 10_001;

/// The parts of nodes that a job has to itself, by node: `2 cpu + 4 GiB memory on a; 2 x (1 gpu) on b`.
fn held(job: &Job) -> Option<String> {
    let mut parts: Vec<(String, u32)> = vec![];
    for it in &job.reserved {
        let part = format!("{} on {}", it.in_words, it.node);
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, count)) => *count += 1,
            None => parts.push((part, 1)),
        }
    }
    let told = parts.into_iter().map(|(part, count)| match count {
        1 => part,
        count => format!("{count} x {part}"),
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

pub(crate) fn logs(args: &LogsArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let job = look(&client, || client.job(&args.job)).await?;
        let mut printer = LinePrinter::new(&job, &args.lines, args.follow, args.json);
        let mut after = String::new();
        // Which are the last is known when all were read that there are.
        while !args.follow || args.lines.tail.is_some() {
            let lines = client.logs(&job.id, &after, false).await?;
            let is_all = lines.lines.is_empty();
            after.clone_from(&lines.next);
            printer.show(lines)?;
            if is_all {
                break;
            }
        }
        printer.flush()?;
        if args.follow {
            follow(&client, &job.id, after, &mut printer).await?;
        } else if !args.json {
            say_unkept(&job);
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(async {
        let job = client.stop(&args.job, args.force).await?;
        match args.no_wait {
            true => Ok(job),
            false => client.wait(&job.id).await,
        }
    })?;
    print::say(format!(
        "{} {}",
        job.id,
        job.why.as_deref().unwrap_or(&job.state)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn cancel(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(client.job(&args.job))?;
    if job.over {
        bail!(
            "{} is over already: {}",
            job.id,
            job.why.as_deref().unwrap_or(&job.state)
        );
    }
    if job.state != "waiting" {
        bail!(
            "{} is {}: only a job that waits can be cancelled; stop it with `odeon stop {}`",
            job.id,
            job.state,
            job.id
        );
    }
    // It may have begun in this moment; then it ends in order.
    let job = runtime.block_on(client.stop(&args.job, false))?;
    print::say(format!(
        "{} {}",
        job.id,
        job.why.as_deref().unwrap_or(&job.state)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn wait(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(async {
        let job = look(&client, || client.job(&args.job)).await?;
        anyhow::Ok(client.wait(&job.id).await)
    })?;
    let job = job.map_err(|error| unheard(error, &args.job))?;
    Ok(end_of(&job, false))
}

pub(crate) fn retry(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(client.retry(&args.job))?;
    print::say(format!("{} {}", job.id, job.state));
    Ok(ExitCode::SUCCESS)
}

/// From the next line on, to the end of the job; leaving does not end it.
pub(crate) fn attach(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let job = client.job(&args.job).await?;
        let mut printer = LinePrinter::new(&job, &LineArgs::default(), true, false);
        tokio::select! {
            code = follow(&client, &job.id, "end".to_owned(), &mut printer) => code,
            _ = tokio::signal::ctrl_c() => {
                print::say(format!("{} goes on; come back with `odeon attach {0}`", args.job));
                Ok(ExitCode::from(130))
            }
        }
    })
}
