//! Jobs of a cluster: `odeon submit`, `jobs`, `job`, `logs`, `stop`, `cancel`, `wait`, `retry`,
//! `attach`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use odeon_client::types::{Job, Line};
use odeon_client::{CONNECTION_FILE, Client, Connection, Submission, default_folder};

use crate::args::{JobArgs, JobsArgs, LogsArgs, OneJobArgs, StopArgs, SubmitArgs};
use crate::print;

/// The cluster that a command is about, and a runtime to reach it.
pub(crate) fn cluster(dir: Option<&PathBuf>) -> Result<(Client, tokio::runtime::Runtime)> {
    let connection = match dir {
        Some(folder) => Connection::read(&folder.join(CONNECTION_FILE))?,
        None => Connection::find(&default_folder())?,
    };
    let client = Client::new(connection)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting tokio")?;
    Ok((client, runtime))
}

pub(crate) fn submit(args: &SubmitArgs) -> Result<ExitCode> {
    let submission = submission(args)?;
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let mut bar = print::UploadBar::default();
        let submitted = client.submit(&submission, |upload| {
            bar.show(upload.bytes - upload.known, upload.put);
        });
        let job = submitted.await?;
        bar.end();
        if args.json {
            print::line(serde_json::to_string(&job)?)?;
        } else {
            print::say(format!("submitted {} ({})", job.id, job.name));
        }
        if !args.wait {
            return Ok(ExitCode::SUCCESS);
        }
        follow(&client, &job.id, 0).await
    })
}

fn submission(args: &SubmitArgs) -> Result<Submission> {
    let mut files = vec![];
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
        files.push((name, path));
    }
    let mut submission = Submission::of_program(&args.program)?.files(files)?;
    for arg in &args.args {
        submission = submission.arg(arg);
    }
    let mut env = vec![];
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
        if let Some(name) = &args.name {
            job.name.clone_from(name);
        }
        job.namespace.clone_from(&args.namespace);
        job.env.extend(env);
        job.priority = args.priority;
        job.retries = args.retries;
        job.node.clone_from(&args.node);
    }))
}

/// Shows what a job prints until it is over; the exit code is the job's.
async fn follow(client: &Client, id: &str, mut from: u64) -> Result<ExitCode> {
    loop {
        let lines = client.logs(id, from, true).await?;
        if lines.first > from {
            print::say(format!(
                "{} lines are not kept any more",
                lines.first - from
            ));
        }
        for line in &lines.lines {
            show_line(line)?;
        }
        from = lines.next;
        if lines.over {
            break;
        }
    }
    let job = client.wait(id).await?;
    Ok(end_of(&job))
}

/// A line of a job goes where the job has written it.
fn show_line(line: &Line) -> Result<()> {
    let text = match line.process.as_str() {
        "driver" => line.text.clone(),
        process => format!("[{process} on {}] {}", line.node, line.text),
    };
    if line.stream == "err" {
        let mut err = std::io::stderr().lock();
        writeln!(err, "{text}")?;
        return Ok(());
    }
    print::line(text)?;
    Ok(())
}

fn end_of(job: &Job) -> ExitCode {
    if job.state != "succeeded" {
        let why = job.why.clone().unwrap_or_else(|| job.state.clone());
        print::say(format!("{} {why}", job.id));
    }
    ExitCode::from(u8::try_from(job.exit_code.unwrap_or(0)).unwrap_or(1))
}

pub(crate) fn jobs(args: &JobsArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let jobs = runtime.block_on(client.jobs(args.limit, args.all))?;
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
    let mut table = print::Table::new(["job", "name", "state", "node", "since", "tries", "by"]);
    for job in &jobs {
        table.row([
            job.id.clone(),
            job.name.clone(),
            job.state.clone(),
            job.node.clone().unwrap_or_else(|| "-".to_owned()),
            print::ago(now.saturating_sub(job.since_ms)),
            job.tries.to_string(),
            job.by.clone(),
        ]);
    }
    table.print()?;
    for job in jobs.iter().filter(|job| job.state == "waiting") {
        if let Some(why) = &job.why {
            print::line(format!("{} waits: {why}", job.id))?;
        }
    }
    Ok(())
}

pub(crate) fn job(args: &JobArgs) -> Result<()> {
    let crate::args::JobCommand::Show(args) = &args.command;
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(client.job(&args.job))?;
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
    rows.push(("tries", format!("{} of {}", job.tries, job.retries + 1)));
    rows.push(("priority", job.priority.to_string()));
    if !job.args.is_empty() {
        rows.push(("arguments", job.args.join(" ")));
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

pub(crate) fn logs(args: &LogsArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        if args.follow {
            follow(&client, &args.job, args.from).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut from = args.from;
        loop {
            let lines = client.logs(&args.job, from, false).await?;
            for line in &lines.lines {
                if args.json {
                    print::line(serde_json::to_string(line)?)?;
                } else {
                    show_line(line)?;
                }
            }
            if lines.lines.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            from = lines.next;
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
    let job = runtime.block_on(client.stop(&args.job, true))?;
    print::say(format!(
        "{} {}",
        job.id,
        job.why.as_deref().unwrap_or(&job.state)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn wait(args: &OneJobArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let job = runtime.block_on(client.wait(&args.job))?;
    Ok(end_of(&job))
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
        let mut from = 0;
        loop {
            let lines = client.logs(&args.job, from, false).await?;
            if lines.lines.is_empty() {
                break;
            }
            from = lines.next;
        }
        tokio::select! {
            code = follow(&client, &args.job, from) => code,
            _ = tokio::signal::ctrl_c() => {
                print::say(format!("{} goes on; come back with `odeon attach {0}`", args.job));
                Ok(ExitCode::from(130))
            }
        }
    })
}
