//! Jobs of a cluster: `odeon submit`, `jobs`, `job`, `logs`, `stop`, `cancel`, `wait`, `retry`,
//! `attach`.

pub(crate) mod array;
mod beyond;
mod environment;
mod files;
mod lines;
mod program;
pub(crate) mod recipe;
mod table;
pub(crate) mod versions;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::trace::{SpanContext, TRACEPARENT};
use odeon_client::types::{ArrayAct, Job};
use odeon_client::{CONNECTION_FILE, Client, ClientError, Connection, Submission, default_folder};

pub(super) use self::program::check_line_ends;

use self::array::{Named, end_of_all, wait_all};
use self::lines::LinePrinter;
use self::program::{Asked, Ranks};
use self::recipe::Kept;
use super::cluster::look;
use crate::args::{
    JobArgs, JobsArgs, LineArgs, LogsArgs, OneJobArgs, StopArgs, SubmitArgs, WaitArgs,
};
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
    // What is made for it alone is there until it is sent.
    let (submission, _kept) = submission(args)?;
    send(&submission, args.cluster.dir.as_ref(), args.wait, args.json)
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
            print::say(table::submitted(&job));
        }
        if let Some(asked) = &job.resources
            // Nodes that cannot be asked for are no reason not to have submitted it.
            && let Ok(nodes) = client.nodes().await
            && let Some(note) = beyond::beyond(asked, &nodes)
        {
            print::say(note);
        }
        if !wait {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(task) = &job.array {
            return tokio::select! {
                code = see_through(&client, &task.first) => code,
                _ = tokio::signal::ctrl_c() => {
                    let name = &task.name;
                    print::say(format!(
                        "{name} goes on; wait for it with `odeon wait {name}`, end it with `odeon stop {name}`"
                    ));
                    Ok(ExitCode::from(130))
                }
            };
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

/// Waits for the end of an array; the exit code is the highest of its jobs.
async fn see_through(client: &Client, first: &str) -> Result<ExitCode> {
    let first = client.job(first).await?;
    let task = first.array.context("it was an array a moment ago")?;
    match Named::find(client, &task.name).await? {
        Named::Array(known, jobs) if known.first == task.first => {
            Ok(end_of_all(&task, &wait_all(client, jobs).await?))
        }
        _ => bail!(
            "another job has the name `{}` by now: wait for its jobs by their numbers",
            task.name
        ),
    }
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

/// A job as the command line has it, and what has to be there until it is sent.
fn submission(args: &SubmitArgs) -> Result<(Submission, Option<Kept>)> {
    args.each.check(args.gang).map_err(anyhow::Error::msg)?;
    let resources = args.resources.asked(args.gang, &args.each)?;
    let gpus = args.resources.gpus;
    let what = program::what(&Asked {
        words: &args.words,
        ranks: args.gang.map(|ranks| Ranks::Of(ranks, &args.each, gpus)),
        set: &args.set,
        installs: args.environment.is_asked(),
    })?;
    let mut notes = what.notes;
    let (mut files, mut links) = (what.files, BTreeMap::from_iter(what.links));
    let named = files::named(&args.file)?;
    // What is named stands in the place of what was only found.
    files.retain(|(known, _)| !named.has(known));
    links.retain(|known, _| !named.has(known));
    files.extend(named.files);
    links.extend(named.links);
    let (wanted, lock) = args.environment.asked()?.unzip();
    let lock = lock.unwrap_or_default();
    files::add_lock_files(&mut files, &lock)?;
    links.retain(|known, _| !lock.iter().any(|(name, _)| name == known));
    args.environment.check(&files)?;
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
    env.extend(what.env);
    env.extend(environment::variables(&args.env_file, &args.env)?);
    let submission = submission.with(|job| {
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
        job.idle_limit_s = args.resources.idle_limit.map(|limit| limit.as_secs());
        job.after.clone_from(&args.after);
        job.array = args.array.as_ref().map(ToString::to_string);
        job.grace_s = args.grace_s();
        job.links = links;
        job.environment = wanted;
    });
    Ok((submission, what.kept))
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

/// How a job has ended or where it is, in words.
fn ended(job: &Job) -> &str {
    job.why.as_deref().unwrap_or(&job.state)
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
    let most = args.limit.min(JOBS_MAX - 1);
    // One more tells that there are more. Those that are not over are all looked at, since many may share a
    // row.
    let asked = match args.all {
        true => most + 1,
        false => JOBS_MAX,
    };
    let mut jobs = runtime.block_on(look(&client, || client.jobs(asked, args.all)))?;
    let shown = match args.json {
        true => most,
        false => table::fitting(&jobs, most),
    };
    if shown < jobs.len() {
        print::say(format!(
            "the {most} newest jobs; older ones with --limit N, at most {}",
            JOBS_MAX - 1
        ));
    }
    jobs.truncate(shown);
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
    Ok(table::show(&jobs)?)
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
    rows.extend(bounds(&job));
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
    if !job.versions.is_empty() {
        rows.push(("version", job.version.to_string()));
    }
    for (name, value) in rows {
        print::line(format!("{name:<11}{value}"))?;
    }
    for row in versions::rows(&job) {
        print::line(row)?;
    }
    for earlier in &job.earlier {
        print::line(format!(
            "try {:<7}{} on {}",
            earlier.attempt, earlier.outcome, earlier.node
        ))?;
    }
    Ok(())
}

/// The rows of a job about when it begins and what ends it.
fn bounds(job: &Job) -> Vec<(&'static str, String)> {
    let mut rows = vec![];
    let limit = job.time_limit_s.map(Duration::from_secs);
    rows.extend(limit.map(|limit| ("time limit", print::ago(limit.as_millis() as u64))));
    let grace = job.grace_s.map(Duration::from_secs);
    rows.extend(grace.map(|grace| ("grace", print::ago(grace.as_millis() as u64))));
    let limit = job.idle_limit_s.map(Duration::from_secs);
    rows.extend(limit.map(|limit| ("idle limit", print::ago(limit.as_millis() as u64))));
    if !job.after.is_empty() {
        rows.push(("after", job.after.join(", ")));
    }
    rows.extend(job.array.as_ref().map(|it| {
        let most = it.at_once.map(|most| format!(", {most} at once"));
        let most = most.unwrap_or_default();
        (
            "array",
            format!(
                "index {} of {} ({} to {}){most}",
                it.index, it.name, it.first, it.last
            ),
        )
    }));
    rows
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
        let job = match look(&client, || client.named(&args.job)).await?.as_slice() {
            [] => client.job(&args.job).await?,
            [job] => job.clone(),
            jobs if args.follow => bail!(
                "`{}` is an array of {} jobs: follow one of them, such as {}",
                args.job,
                jobs.len(),
                jobs[0].name
            ),
            jobs => return logs_of_all(&client, jobs, args).await,
        };
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

/// The lines of the jobs of an array, one job after the other, each with its name in front.
async fn logs_of_all(client: &Client, jobs: &[Job], args: &LogsArgs) -> Result<ExitCode> {
    for job in jobs {
        let mut printer = LinePrinter::new(job, &args.lines, false, args.json).of(&job.name);
        let mut after = String::new();
        loop {
            let lines = client.logs(&job.id, &after, false).await?;
            let is_all = lines.lines.is_empty();
            after.clone_from(&lines.next);
            printer.show(lines)?;
            if is_all {
                break;
            }
        }
        printer.flush()?;
        if !args.json {
            say_unkept(job);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let job = match Named::find(&client, &args.job).await? {
            Named::One(job) => job,
            Named::Array(task, jobs) => {
                let act = match args.force {
                    true => ArrayAct::Kill,
                    false => ArrayAct::Stop,
                };
                client.act_on_array(&task.first, act).await?;
                if args.no_wait {
                    print::say(format!(
                        "the {} jobs of {} are told to end",
                        jobs.len(),
                        task.name
                    ));
                } else {
                    end_of_all(&task, &wait_all(&client, jobs).await?);
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        let job = client.stop(&job.id, args.force).await?;
        let job = match args.no_wait {
            true => job,
            false => client.wait(&job.id).await?,
        };
        print::say(format!("{} {}", job.id, ended(&job)));
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn cancel(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let job = match Named::find(&client, &args.job).await? {
            Named::One(job) => job,
            Named::Array(task, _) => {
                client.act_on_array(&task.first, ArrayAct::Cancel).await?;
                if let Named::Array(_, jobs) = Named::find(&client, &task.name).await? {
                    print::say(table::in_one_line(&task.name, &jobs));
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        if job.over {
            bail!("{} is over already: {}", job.id, ended(&job));
        }
        if job.state != "waiting" {
            bail!(
                "{} is {} on {}, and only a job that waits can be cancelled: end it with `odeon stop {0}`",
                job.id,
                job.state,
                job.node.as_deref().unwrap_or("a node")
            );
        }
        // It may have begun in this moment; then it ends in order.
        let job = client.stop(&job.id, false).await?;
        print::say(format!("{} {}", job.id, ended(&job)));
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn wait(args: &WaitArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let waiting = async {
            match Named::find(&client, &args.job).await? {
                Named::One(job) => {
                    let job = client.wait(&job.id).await;
                    let job = job.map_err(|error| unheard(error, &args.job))?;
                    Ok(end_of(&job, false))
                }
                Named::Array(task, jobs) => Ok(end_of_all(&task, &wait_all(&client, jobs).await?)),
            }
        };
        let Some(limit) = args.timeout else {
            return waiting.await;
        };
        match tokio::time::timeout(limit, waiting).await {
            Ok(code) => code,
            Err(_) => {
                let jobs = client.named(&args.job).await?;
                print::say(match jobs.as_slice() {
                    [job] => format!(
                        "{} is {} after {} of waiting; it goes on",
                        job.id,
                        job.state,
                        print::ago(limit.as_millis() as u64)
                    ),
                    jobs => format!(
                        "{} goes on after {} of waiting: {}",
                        args.job,
                        print::ago(limit.as_millis() as u64),
                        array::in_words(jobs)
                    ),
                });
                Ok(ExitCode::from(TIMED_OUT))
            }
        }
    })
}

/// The exit code of who has waited for as long as was said, as of `timeout`.
const TIMED_OUT: u8 = 124;

pub(crate) fn retry(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        match Named::find(&client, &args.job).await? {
            Named::One(job) => {
                let job = client.retry(&job.id).await?;
                print::say(format!("{} {}", job.id, job.state));
            }
            Named::Array(task, _) => {
                client.act_on_array(&task.first, ArrayAct::Retry).await?;
                if let Named::Array(_, jobs) = Named::find(&client, &task.name).await? {
                    print::say(table::in_one_line(&task.name, &jobs));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
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
