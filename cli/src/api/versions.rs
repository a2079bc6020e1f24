//! Routes about the versions of a job: another program on the places that it has, and the way back.

#![allow(
    unused_qualifications,
    reason = "the descriptions of the routes expand to them"
)]

use std::path::Path as FilePath;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use odeon_actors::recipe::Source;
use odeon_client::types::{Job, RollBackJob, UpdateJob};
use odeon_cluster::fact::Fact;
use odeon_cluster::job::version::Program;
use odeon_cluster::job::{self, Event};
use odeon_cluster::submit::NewVersion;

use super::access::Submitter;
use super::cluster::Answer;
use super::extract::{Path, Sent};
use super::jobs::{digest_of, id_of};
use super::problem::No;
use super::{Api, dto};
use crate::command::run::change;

/// Has a job that goes on go over to another program, on the places that it has: its present processes end in order, and
/// those of the new version begin. A version that fails before it was at work goes back by itself.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/update", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name.")), request_body = UpdateJob,
    responses((status = 200, body = Job)))]
pub(super) async fn update(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
    Sent(update): Sent<UpdateJob>,
) -> Answer<Job> {
    let id = id_of(&api, &job)?;
    let row = api.row(id)?;
    let latest = latest(&row);
    let program = asked(&latest, &update)?;
    // Of a job that is over the catalog says so.
    if !row.is_over() {
        check_recipe(&api, &row, &program).await?;
    }
    let wanted = NewVersion {
        by: caller.name,
        why: update.why,
        wait_s: update.wait_s,
        word: update.word,
    };
    api.daemon.update(id, program, wanted).await?;
    Ok(Json(dto::job(&api.row(id)?, None)))
}

/// Has a job go back to a version on the places that it has, or takes back one that waits for a restart.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/rollback", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name.")), request_body = RollBackJob,
    responses((status = 200, body = Job)))]
pub(super) async fn roll_back(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
    Sent(RollBackJob { to, why }): Sent<RollBackJob>,
) -> Answer<Job> {
    let job = id_of(&api, &job)?;
    let by = caller.name;
    let event = Event::RollBack { to, by, why };
    let fact = Fact::Job { job, event };
    api.daemon.catalog().write_for(fact).await?;
    Ok(Json(dto::job(&api.row(job)?, None)))
}

/// The program of the version that a job has, or is about to have.
fn latest(row: &job::Job) -> Program {
    let next = row.versions.next().map(|turn| turn.to);
    let next = next.and_then(|to| row.versions.get(to));
    next.map_or_else(|| Program::of(&row.spec), |it| it.program.clone())
}

/// That program with what is to change.
fn asked(latest: &Program, update: &UpdateJob) -> Result<Program, No> {
    let mut program = latest.clone();
    if let Some(bundle) = &update.bundle {
        program.bundle = digest_of(bundle)?;
        program.links.clone_from(&update.links);
    }
    if let Some(args) = &update.args {
        program.args.clone_from(args);
    }
    program.env.extend(update.env.clone());
    if update.set.is_empty() {
        return Ok(program);
    }
    if recipe_of(&program).is_none() {
        return Err(No::invalid(format!(
            "--set {}: the job runs no recipe, whose fields that changes; give its program with other words",
            update.set[0]
        )));
    }
    for field in &update.set {
        let key = |assigned: &str| assigned.split('=').next().map(|it| it.trim().to_owned());
        let same = |word: &String| key(word) == key(field);
        // In the place of what an earlier version has set.
        while let Some(at) = program.args.iter().position(same)
            && at > 0
            && program.args[at - 1] == "--set"
        {
            program.args.drain(at - 1..=at);
        }
        program.args.extend(["--set".to_owned(), field.clone()]);
    }
    Ok(program)
}

/// The recipe that a program runs, by its path, and the fields that its words set.
fn recipe_of(program: &Program) -> Option<(&str, Vec<&str>)> {
    let (command, rest) = program.args.split_first()?;
    let (recipe, rest) = rest.split_first()?;
    if command != "run" || !recipe.ends_with(".toml") {
        return None;
    }
    let mut fields = vec![];
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("--set=") {
            Some(field) => fields.push(field),
            None if word == "--set" => fields.extend(words.next().map(String::as_str)),
            None => {}
        }
    }
    Some((recipe, fields))
}

/// Refuses what cannot change while a run goes on, before anything of it stops.
async fn check_recipe(api: &Api, row: &job::Job, program: &Program) -> Result<(), No> {
    if recipe_of(program).is_none() {
        return Ok(());
    }
    let Some(now) = read_recipe(api, program).await? else {
        return Ok(());
    };
    let now = now.map_err(No::invalid)?;
    // One that has never begun has nothing that must stay.
    if row.tries == 0 {
        return Ok(());
    }
    let present = Program::of(&row.spec);
    let before = read_recipe(api, &present).await?;
    // What cannot be read of another release is no reason: the run looks again when it begins.
    let Some(Ok(before)) = before else {
        return Ok(());
    };
    let reserves = !row.spec.resources.is_empty();
    change::check(&before, &now, reserves).map_err(No::invalid)
}

/// The recipe of a program, with the fields that its words set; nothing where it runs none that is among its files.
async fn read_recipe(api: &Api, program: &Program) -> Result<Option<Result<Source, String>>, No> {
    let Some((path, fields)) = recipe_of(program) else {
        return Ok(None);
    };
    let Some(text) = api.daemon.file_of(program.bundle, path).await? else {
        return Ok(None);
    };
    let Ok(text) = String::from_utf8(text) else {
        return Ok(Some(Err(format!("{path} is no text"))));
    };
    let source = Source::new(FilePath::new(path), &text);
    let mut fields = fields.into_iter();
    let source = fields.try_fold(source, Source::with);
    Ok(Some(source.map_err(|error| error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use odeon_artifacts::Digest;

    use super::*;

    fn program(args: &[&str]) -> Program {
        Program {
            bundle: Digest::of(b"files"),
            args: args.iter().map(|it| (*it).to_owned()).collect(),
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            links: BTreeMap::new(),
            environment: None,
        }
    }

    #[test]
    fn what_is_missing_of_an_update_stays_and_a_field_is_set_once() {
        let before = program(&["run", "r.toml", "--set", "pretrain.lr=1", "--fresh"]);
        let update = UpdateJob {
            set: vec!["pretrain.lr=2".to_owned(), "eval.every=3".to_owned()],
            env: BTreeMap::from([("B".to_owned(), "2".to_owned())]),
            ..UpdateJob::default()
        };
        let now = asked(&before, &update).unwrap();
        assert_eq!(
            now.args.join(" "),
            "run r.toml --fresh --set pretrain.lr=2 --set eval.every=3"
        );
        assert_eq!((now.bundle, now.env.len()), (before.bundle, 2));
        let (recipe, fields) = recipe_of(&now).unwrap();
        assert_eq!(recipe, "r.toml");
        assert_eq!(fields, ["pretrain.lr=2", "eval.every=3"]);
        assert!(asked(&program(&["gang", "4"]), &update).is_err());
    }
}
