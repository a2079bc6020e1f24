//! Versions of a job: `odeon update` and `odeon rollback`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use odeon::Clock;
use odeon_client::types::{Job, JobVersion, RollBackJob, UpdateJob};
use odeon_client::{Client, Submission};

use super::program::{self, Asked, Ranks, What};
use super::recipe::Kept;
use super::{cluster, ended, environment, files};
use crate::args::{RollbackArgs, UpdateArgs};
use crate::command::cluster::look;
use crate::print;

/// The pause between two looks at a job that goes over to another version.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn update(args: &UpdateArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let before = look(&client, || client.job(&args.job)).await?;
        let (submission, _kept) = submission(args, &before)?.unzip();
        let update = wanted(args, submission.as_ref())?;
        let mut bar = print::UploadBar::default();
        let updated = client.update(&before.id, &update, submission.as_ref(), |upload| {
            bar.show(upload.bytes - upload.known, upload.put);
        });
        let job = updated.await?;
        bar.end();
        // What was asked for is the newest, whatever has become of it meanwhile.
        let newest = job.versions.iter().map(|it| it.number).max();
        let version = newest.context("it was updated a moment ago")?;
        become_of(&client, job, version, args.no_wait, args.json).await
    })
}

pub(crate) fn roll_back(args: &RollbackArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let before = look(&client, || client.job(&args.job)).await?;
        let to = RollBackJob {
            to: args.to,
            why: args.why.clone(),
        };
        let job = client.roll_back(&before.id, &to).await?;
        let next = job.versions.iter().find(|it| it.next);
        let version = next.map_or(job.version, |it| it.number);
        become_of(&client, job, version, args.no_wait, args.json).await
    })
}

/// Says what becomes of a version that was asked for, and waits for it unless that is not wanted.
async fn become_of(
    client: &Client,
    job: Job,
    version: u32,
    no_wait: bool,
    json: bool,
) -> Result<ExitCode> {
    let waits = version_of(&job, version).and_then(|it| it.due_ms);
    let job = match no_wait || waits.is_some() {
        true => job,
        false => awaited(client, job, version).await?,
    };
    if json {
        print::line(serde_json::to_string(&job)?)?;
    }
    let id = &job.id;
    let given_up = version_of(&job, version).filter(|it| !it.next);
    let failed = given_up.and_then(|it| it.failed.as_deref());
    if let Some(why) = failed {
        bail!(
            "version {version} of {id} {why}; {id} is {} with version {}",
            job.state,
            job.version
        );
    }
    if job.over && job.version != version {
        bail!("{id} {} before version {version} was there", ended(&job));
    }
    if job.over && job.state != "succeeded" {
        bail!("{id} {} with version {version}", ended(&job));
    }
    if !json {
        print::say(match (waits, job.version == version) {
            (Some(due), _) => format!(
                "version {version} of {id} waits for the next restart, and comes at {} UTC at the latest; it is \
                 taken back by `odeon rollback {id}`",
                odeon_cluster::unix::Unix(due)
            ),
            (None, true) => match &job.node {
                Some(node) => format!("{id} is {} on {node} with version {version}", job.state),
                None => format!("{id} is {} with version {version}", job.state),
            },
            (None, false) => format!("{id} is {}: version {version} is next", job.state),
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn version_of(job: &Job, version: u32) -> Option<&JobVersion> {
    job.versions.iter().find(|it| it.number == version)
}

/// Waits until a version runs, has been given up, or cannot come any more. A run of a recipe is waited for until it has
/// come to work, which it says.
async fn awaited(client: &Client, mut job: Job, version: u32) -> Result<Job> {
    loop {
        let it = version_of(&job, version);
        // One that has failed before may be on its way again.
        let is_given_up = it.is_some_and(|it| it.failed.is_some() && !it.next);
        let is_there = job.version == version && it.is_none_or(|it| !it.next);
        let says = job.args.first().is_some_and(|word| word == "run");
        // One that could not go back is not watched for that.
        let is_at_work = it.is_none_or(|it| it.state == "at work" || it.before.is_none());
        let waits = job.state == "waiting";
        let runs = job.state == "running" && (is_at_work || !says);
        if is_given_up || job.over || is_there && (waits || runs) {
            return Ok(job);
        }
        Clock::sleep(PAUSE).await;
        job = client.job(&job.id).await?;
    }
}

/// The update as the API takes it.
fn wanted(args: &UpdateArgs, submission: Option<&Submission>) -> Result<UpdateJob> {
    let mut env = submission.map_or_else(BTreeMap::new, |it| it.job().env.clone());
    env.extend(environment::variables(&args.env_file, &args.env)?);
    let set = match submission {
        // They stand in the recipe as it is sent.
        Some(_) => vec![],
        None => args.set.fields.clone(),
    };
    if submission.is_none() && set.is_empty() && env.is_empty() {
        bail!(
            "nothing changes: name a program or a recipe, fields of its recipe (--set), or variables (--env)"
        );
    }
    Ok(UpdateJob {
        bundle: submission.map(|it| it.job().bundle.clone()),
        args: submission.map(|it| it.job().args.clone()),
        links: submission.map_or_else(BTreeMap::new, |it| it.job().links.clone()),
        env,
        set,
        why: args.why.clone(),
        wait_s: args.lazy.map(|it| it.as_secs()),
        word: None,
    })
}

/// The files and words of the new program, where one is named, and what has to be there until they are sent.
fn submission(args: &UpdateArgs, before: &Job) -> Result<Option<(Submission, Option<Kept>)>> {
    if args.words.is_empty() {
        return Ok(None);
    }
    let head = gang_head(&before.args);
    let what = program::what(&Asked {
        words: &args.words,
        ranks: head.as_deref().map(Ranks::AsBefore),
        set: &args.set,
        installs: false,
    })?;
    let What {
        program,
        words,
        mut files,
        links,
        notes,
        env,
        kept,
        ..
    } = what;
    if words.first().is_some_and(|it| it == "run") && words.iter().any(|it| it == "--fresh") {
        bail!("--fresh begins a run anew, and an update goes on: submit it as another job");
    }
    let mut links = BTreeMap::from_iter(links);
    let named = files::named(&args.file)?;
    files.retain(|(known, _)| !named.has(known));
    links.retain(|known, _| !named.has(known));
    files.extend(named.files);
    links.extend(named.links);
    for note in notes {
        print::say(note);
    }
    let mut submission = Submission::of_program(&program)?.files(files)?;
    for word in words {
        submission = submission.arg(word);
    }
    let submission = submission.with(|job| {
        job.env.extend(env);
        job.links = links;
    });
    Ok(Some((submission, kept)))
}

/// The words by which a job runs a gang, up to its program.
fn gang_head(args: &[String]) -> Option<Vec<String>> {
    let behind = args.iter().position(|word| word == "--")?;
    (args.first()? == "gang").then(|| args[..=behind].to_vec())
}

/// The version that a job has, and the one that is to come, for people; nothing where it was never updated.
pub(crate) fn in_short(job: &Job) -> Option<String> {
    let told = |it: &JobVersion| format!("{} {}", it.number, told(job, it));
    let present = job.versions.iter().find(|it| it.number == job.version)?;
    let next = job.versions.iter().find(|it| it.next);
    Some(match next {
        Some(next) => format!("{}; {}", told(present), told(next)),
        None => told(present),
    })
}

/// The rows of a job about its versions.
pub(super) fn rows(job: &Job) -> Vec<String> {
    let row = |it: &JobVersion| format!("version {:<3}{}", it.number, told(job, it));
    job.versions.iter().map(row).collect()
}

/// The standing of a version, and who wanted it when and why.
fn told(job: &Job, it: &JobVersion) -> String {
    let moment = |ms: u64| odeon_cluster::unix::Unix(ms).to_string();
    let mut told = match (&it.failed, it.number == job.version) {
        (Some(why), _) => why.clone(),
        (None, true) => format!("the present one, {}", it.state),
        (None, false) => it.state.clone(),
    };
    if it.next {
        told += match it.due_ms {
            Some(_) => ", comes with the next restart",
            None => ", comes now",
        };
    }
    if let Some(due) = it.due_ms {
        told += &format!(", at {} at the latest", moment(due));
    }
    told += &format!("; by {} at {}", it.by, moment(it.at_ms));
    if !it.why.is_empty() {
        told += &format!(": {}", it.why);
    }
    told
}
