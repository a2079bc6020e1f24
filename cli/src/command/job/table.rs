//! The list of jobs: a row for each, one for all jobs of an array that wait, and why those wait.

use odeon_client::types::Job;

use super::array;
use crate::print::{self, Unshown};

/// Shows jobs, the newest first.
pub(super) fn show(jobs: &[Job]) -> Result<(), Unshown> {
    let now = odeon_cluster::unix::Unix::now().0;
    let head = [
        "job", "name", "state", "node", "since", "tries", "version", "asks for", "by",
    ];
    let mut table = print::Table::new(head);
    let rows = rows(jobs);
    for row in &rows {
        let job = row[0];
        let first = row.last().unwrap_or(&job);
        let (id, name) = match (&job.array, row.len()) {
            (Some(array), 2..) => (
                format!("{}..{}", first.id, job.id),
                format!("{} ({} of {})", array.name, row.len(), array.count),
            ),
            _ => (job.id.clone(), job.name.clone()),
        };
        table.row([
            id,
            name,
            job.state.clone(),
            job.node.clone().unwrap_or_else(|| "-".to_owned()),
            print::ago(now.saturating_sub(first.since_ms)),
            job.tries.to_string(),
            job.version.to_string(),
            job.asks.clone().unwrap_or_else(|| "-".to_owned()),
            job.by.clone(),
        ]);
    }
    table.print()?;
    for told in whys(&rows) {
        print::line(told)?;
    }
    Ok(())
}

/// The number of jobs, from the newest on, that so many rows have room for.
pub(super) fn fitting(jobs: &[Job], rows_max: usize) -> usize {
    if rows(jobs).len() <= rows_max {
        return jobs.len();
    }
    let (mut fits, mut more) = (0, jobs.len());
    // Of more jobs there are never fewer rows.
    while fits + 1 < more {
        let middle = fits.midpoint(more);
        match rows(&jobs[..middle]).len() <= rows_max {
            true => fits = middle,
            false => more = middle,
        }
    }
    fits
}

/// The jobs of each row: those of one array that wait without a try share one.
fn rows(jobs: &[Job]) -> Vec<Vec<&Job>> {
    let mut rows: Vec<Vec<&Job>> = vec![];
    let shares = |job: &Job| job.state == "waiting" && job.tries == 0;
    for job in jobs {
        let array = job.array.as_ref().filter(|_| shares(job));
        let known = array.and_then(|array| {
            rows.iter_mut().find(|row| {
                let of = row[0].array.as_ref();
                shares(row[0]) && of.is_some_and(|it| it.first == array.first)
            })
        });
        match known {
            Some(row) => row.push(job),
            None => rows.push(vec![job]),
        }
    }
    rows
}

/// Why jobs wait or are held up, each reason once and in short.
fn whys(rows: &[Vec<&Job>]) -> Vec<String> {
    let mut told: Vec<(String, Vec<&str>)> = vec![];
    for job in rows.iter().flatten() {
        let Some(why) = &job.why else { continue };
        let how = match job.state.as_str() {
            "waiting" => "waits",
            "staging" => "is held up",
            _ => continue,
        };
        let what = format!("{how}: {}", in_short(why));
        match told.iter_mut().find(|(known, _)| *known == what) {
            Some((_, jobs)) => jobs.push(&job.id),
            None => told.push((what, vec![&job.id])),
        }
    }
    let more = told.len().saturating_sub(WHYS_MAX);
    let mut lines: Vec<String> = told
        .into_iter()
        .take(WHYS_MAX)
        .map(|(what, jobs)| match &jobs[..] {
            [one] => format!("{one} {what}"),
            [newest, .., oldest] => {
                let (count, what) = (jobs.len(), what.replacen("waits", "wait", 1));
                let what = what.replacen("is held up", "are held up", 1);
                format!("{count} of {oldest} to {newest} {what}")
            }
            [] => what,
        })
        .collect();
    if more > 0 {
        lines.push(format!(
            "others wait for {more} more reasons: `odeon why JOB` says each in full"
        ));
    }
    lines
}

/// The first part of a reason: who asks `odeon why` hears the rest.
fn in_short(why: &str) -> String {
    let first = why.split("; ").next().unwrap_or(why);
    let end = first.char_indices().nth(SHORT_CHARS_MAX).map(|(at, _)| at);
    match end {
        Some(end) => format!("{} ...", &first[..end]),
        None if first.len() < why.len() => format!("{first} ..."),
        None => first.to_owned(),
    }
}

/// Reasons that are told below the list.
const WHYS_MAX: usize = 8;
/// The longest of them, in characters.
const SHORT_CHARS_MAX: usize = 200;

/// Says that jobs were submitted.
pub(super) fn submitted(job: &Job) -> String {
    match &job.array {
        Some(array) => {
            let most = array.at_once.map(|most| format!(", {most} at once"));
            format!(
                "submitted {}: {} jobs, {} to {}{}",
                array.name,
                array.count,
                array.first,
                array.last,
                most.unwrap_or_default()
            )
        }
        None => format!("submitted {} ({})", job.id, job.name),
    }
}

/// The jobs of an array as one line of its own.
pub(super) fn in_one_line(name: &str, jobs: &[Job]) -> String {
    format!("{name}: {}", array::in_words(jobs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, state: &str, why: &str) -> Job {
        let text = format!(
            r#"{{"id":"j{id}","name":"n","namespace":"default","by":"ann","state":"{state}","why":"{why}",
            "over":false,"submitted_ms":0,"since_ms":0,"tries":0,"retries":0,"priority":0,"bundle":"",
            "args":[],"earlier":[]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_reason_is_told_once_and_in_short() {
        let room = "it waits for room; a: full; b: full";
        let mut jobs = vec![job(9, "running", "")];
        jobs.extend((1..=8).rev().map(|n| job(n, "waiting", room)));
        jobs.push(job(0, "staging", "node `a` does not answer"));
        let told = whys(&rows(&jobs));
        assert_eq!(
            told,
            [
                "8 of j1 to j8 wait: it waits for room ...",
                "j0 is held up: node `a` does not answer"
            ]
        );
        assert_eq!(fitting(&jobs, 3), 3);
        assert_eq!(fitting(&jobs, 100), jobs.len());
        let many: Vec<Job> = (0..20)
            .map(|n| job(n, "waiting", &format!("for {n}")))
            .collect();
        let told = whys(&rows(&many));
        assert_eq!(told.len(), WHYS_MAX + 1);
        assert!(told[WHYS_MAX].contains("12 more reasons"), "{told:?}");
    }
}
