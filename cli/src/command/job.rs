//! Jobs of a cluster: `odeon submit`, `jobs`, `job`, `logs`, `stop`, `cancel`, `wait`, `retry`,
//! `attach`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::trace::{SpanContext, TRACEPARENT};
use odeon_client::types::{Job, Line, Lines};
use odeon_client::{CONNECTION_FILE, Client, ClientError, Connection, Submission, default_folder};

use super::cluster::look;
use crate::args::{JobArgs, JobsArgs, LogsArgs, OneJobArgs, RankArgs, StopArgs, SubmitArgs};
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
        tokio::select! {
            code = follow(&client, &job.id, String::new()) => code,
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

/// The job's executable, its name where it is not that of the file, and the words that it is given.
struct What {
    program: PathBuf,
    name: Option<String>,
    words: Vec<String>,
    files: Vec<(String, PathBuf)>,
}

/// A program as it is named, or this one, which runs a gang of it.
fn what(args: &SubmitArgs) -> Result<What> {
    let Some(ranks) = args.gang else {
        let program = args.program.clone();
        return Ok(What {
            program: program.context("no program to submit")?,
            name: None,
            words: args.args.clone(),
            files: vec![],
        });
    };
    let here = std::env::current_dir().context("finding the current folder")?;
    let files = named_files(&args.args, |path| here.join(path).is_file());
    let script = files.first().map(String::as_str);
    let script = script.or_else(|| args.args.first().map(String::as_str));
    let stem = script.and_then(|script| Path::new(script).file_stem());
    Ok(What {
        program: this_program()?,
        name: stem.map(|stem| plain(&stem.to_string_lossy())),
        words: gang_words(ranks, &args.each, args.resources.gpus, &args.args),
        files: files
            .into_iter()
            .map(|file| (file.clone(), here.join(file)))
            .collect(),
    })
}

/// The words that name files below the current folder, each once, as the job is to find them.
fn named_files(words: &[String], is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut files: Vec<String> = vec![];
    for word in words {
        let path = Path::new(word);
        let parts: Option<Vec<_>> = path
            .components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| match part {
                Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .collect();
        let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
            continue;
        };
        let name = parts.join("/");
        if is_file(path) && !files.contains(&name) {
            files.push(name);
        }
    }
    files
}

/// The words by which this program runs a gang.
fn gang_words(ranks: u32, each: &RankArgs, gpus: Option<u32>, program: &[String]) -> Vec<String> {
    let mut words = vec!["gang".to_owned(), ranks.to_string()];
    let mut say = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name}={value}")));
    };
    say("max-restarts", Some(each.max_restarts.to_string()));
    let devices = each.devices_per_rank.or(gpus);
    say("devices-per-rank", devices.map(|count| count.to_string()));
    say("cpus", each.cpus.map(|cores| cores.to_string()));
    // A power of two less is exact.
    let kib = |bytes: u64| format!("{}KiB", bytes as f64 / 1024.0);
    say("memory", each.memory.map(kib));
    say("device-memory", each.device_memory.map(kib));
    say("grace", Some(each.grace.to_string()));
    words.push("--".to_owned());
    words.extend_from_slice(program);
    words
}

fn submission(args: &SubmitArgs) -> Result<Submission> {
    let resources = args.resources.asked(args.gang, &args.each)?;
    let what = what(args)?;
    let mut files = what.files;
    let mut named = BTreeSet::new();
    for file in &args.file {
        let (name, path) = match file.split_once('=') {
            Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
            None => {
                let path = PathBuf::from(file);
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| anyhow!("`{file}` names no file"))?;
                (name.to_owned(), path)
            }
        };
        if !named.insert(name.clone()) {
            bail!("--file names two files `{name}`: a job finds one under each name");
        }
        // What is named stands in the place of what was only found.
        files.retain(|(known, _)| *known != name);
        files.push((name, path));
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
async fn follow(client: &Client, id: &str, mut after: String) -> Result<ExitCode> {
    let from_the_first = after.is_empty();
    loop {
        let lines = client.logs(id, &after, true).await;
        let lines = lines.map_err(|error| unheard(error, id))?;
        show_lines(&lines)?;
        after = lines.next;
        if lines.over {
            break;
        }
    }
    let job = client.wait(id).await.map_err(|error| unheard(error, id))?;
    Ok(end_of(&job, from_the_first))
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

/// Shows lines of a job, and what is missing among them.
fn show_lines(lines: &Lines) -> Result<()> {
    for line in &lines.lines {
        for missing in missing_before(line, &lines.silent) {
            print::say(missing);
        }
        show_line(line)?;
    }
    Ok(())
}

/// Notes about the lines that are missing before one.
fn missing_before(line: &Line, silent: &[String]) -> Vec<String> {
    let node = &line.node;
    let mut said = vec![];
    if line.gone > 0 {
        let gone = line.gone;
        said.push(format!(
            "... {gone} lines from {node} are not kept any more ..."
        ));
    }
    if line.lost > 0 {
        let lost = line.lost;
        said.push(match silent {
            [] => format!("... {lost} lines from {node} lost ..."),
            silent => {
                let silent = silent.join(", ");
                format!("... {lost} lines from {node} lost, unless {silent} has them, which does not answer ...")
            }
        });
    }
    said
}

/// A line of a job goes where the job has written it.
fn show_line(line: &Line) -> Result<()> {
    let text = match (line.process.as_str(), rank_of(&line.text)) {
        ("driver", _) => line.text.clone(),
        (_, Some((rank, text))) => format!("[{rank} on {}] {text}", line.node),
        (process, None) => format!("[{process} on {}] {}", line.node, line.text),
    };
    if line.stream == "err" {
        let mut err = std::io::stderr().lock();
        writeln!(err, "{text}")?;
        return Ok(());
    }
    print::line(text)?;
    Ok(())
}

/// The rank that a line of a gang begins with, and what follows.
fn rank_of(text: &str) -> Option<(&str, &str)> {
    let (rank, text) = text.strip_prefix('[')?.split_once("] ")?;
    let number = rank.strip_prefix("rank ")?;
    number.parse::<u32>().ok()?;
    Some((rank, text))
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
    let jobs = runtime.block_on(look(&client, || client.jobs(args.limit, args.all)))?;
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
        look(&client, || client.job(&args.job)).await?;
        if args.follow {
            follow(&client, &args.job, String::new()).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut after = String::new();
        loop {
            let lines = client.logs(&args.job, &after, false).await?;
            if args.json {
                for line in &lines.lines {
                    print::line(serde_json::to_string(line)?)?;
                }
            } else {
                show_lines(&lines)?;
            }
            if lines.lines.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            after = lines.next;
        }
    })
}

pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(async {
        let job = client.stop(&args.job, args.force).await?;
        match args.no_wait {
            true => Ok(job),
            false => client.wait(&args.job).await,
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
        look(&client, || client.job(&args.job)).await?;
        anyhow::Ok(client.wait(&args.job).await)
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
        tokio::select! {
            code = follow(&client, &args.job, "end".to_owned()) => code,
            _ = tokio::signal::ctrl_c() => {
                print::say(format!("{} goes on; come back with `odeon attach {0}`", args.job));
                Ok(ExitCode::from(130))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn files_below_this_folder_are_found_among_the_words() {
        let there = ["train.py", "./src/net.py", "/etc/passwd", "../up", "data"];
        let is_file = |path: &Path| there.iter().any(|it| Path::new(it) == path);
        let line = "python3 train.py ./src/net.py /etc/passwd ../up --x=data train.py data .";
        let found = named_files(&words(line), is_file);
        assert_eq!(found, ["train.py", "src/net.py", "data"]);
    }

    #[test]
    fn a_line_of_a_rank_says_which_and_others_do_not() {
        assert_eq!(rank_of("[rank 12] step 3"), Some(("rank 12", "step 3")));
        for text in [
            "step",
            "[rank] x",
            "[rank x] y",
            "[a] rank 1] x",
            "[rank 1]",
        ] {
            assert_eq!(rank_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_gang_is_submitted_with_what_was_said_of_it() {
        let each = RankArgs {
            max_restarts: 2,
            devices_per_rank: None,
            cpus: Some(0.5),
            memory: Some(3 << 29),
            device_memory: Some((20 << 30) + 1),
            grace: 5,
        };
        let line = gang_words(4, &each, None, &words("python3 train.py --max-restarts 9"));
        let expect = "gang 4 --max-restarts=2 --cpus=0.5 --memory=1572864KiB --device-memory=20971520.000976563KiB --grace=5 -- python3 train.py --max-restarts 9";
        assert_eq!(line.join(" "), expect);
    }
}
