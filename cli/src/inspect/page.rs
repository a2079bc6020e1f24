//! The pages with what they show, as one file that opens without a server and asks nobody anything.
//!
//! It holds the files of the pages and the answers to what they ask: those of one moment and, of a
//! recording, what the pages showed at moments before it. The answers are those of the routes.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use odeon_observe::Date;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

use super::assets;
use super::inspection::{Inspect, Origin};
use super::replay::Replay;

/// Bytes of a file that mail and browsers still take.
const BYTES_MAX: usize = 20 << 20;
/// Moments of a recording.
const MOMENTS_MAX: usize = 120;
/// Actors whose details are in it; the worst first.
const DETAILS_MAX: usize = 300;
/// Spans that can be looked at one by one.
const SPANS_MAX: usize = 5_000;
/// Parts of the timeline that are laid out more finely than the whole.
const TILES: usize = 12;
/// The width of each of them, in points.
const TILE_WIDTH: usize = 1_600;
/// The room before and after what was asked for on a timeline, as a part of it.
const ROOM: f64 = 0.02;

/// Pages that are small, by their names.
const PAGES: [&str; 7] = [
    "now",
    "problems",
    "cluster",
    "jobs",
    "runs",
    "transfers",
    "events",
];

/// The amounts of each kind that go into a file.
#[derive(Clone, Copy, Debug)]
struct Plan {
    moments: usize,
    tiles: usize,
    details: usize,
    spans: usize,
}

/// From much to little: the first that fits is taken.
const PLANS: [Plan; 4] = [
    Plan {
        moments: MOMENTS_MAX,
        tiles: TILES,
        details: DETAILS_MAX,
        spans: SPANS_MAX,
    },
    Plan {
        moments: 40,
        tiles: TILES / 2,
        details: DETAILS_MAX,
        spans: SPANS_MAX,
    },
    Plan {
        moments: 10,
        tiles: 4,
        details: 100,
        spans: 2_000,
    },
    Plan {
        moments: 1,
        tiles: 0,
        details: 50,
        spans: 500,
    },
];

/// A file of what is seen from one moment to another.
pub(crate) async fn exported(inspect: &Inspect, from: Date, to: Date) -> Result<String> {
    // A recording is shown to whoever looks on meanwhile: the file is made of another copy of it.
    let own = match &inspect.origin {
        Origin::Living(_) => None,
        Origin::Recorded(replay) => Some(replay.again()?),
    };
    for plan in PLANS {
        let holds = match &own {
            Some(replay) => of_recording(replay, from, to, plan).await?,
            None => of_moment(inspect, from, to, plan).await?,
        };
        let page = written(&holds)?;
        if page.len() <= BYTES_MAX {
            return Ok(page);
        }
    }
    bail!(
        "what is seen there does not fit into {} MiB: choose a shorter part of time",
        BYTES_MAX >> 20
    )
}

/// Asks a route and reads its answer.
async fn ask(router: &Router, path: &str) -> Result<Value> {
    let request = Request::get(path).body(Body::empty())?;
    let response = router.clone().oneshot(request).await?;
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await?;
    if !status.is_success() {
        bail!("{path}: {status}");
    }
    serde_json::from_slice(&bytes).with_context(|| path.to_owned())
}

/// The data of a route's answer, without what every answer says.
async fn data(router: &Router, path: &str) -> Result<Value> {
    Ok(ask(router, path).await?["data"].take())
}

async fn of_moment(inspect: &Inspect, from: Date, to: Date, plan: Plan) -> Result<Value> {
    let router = inspect.clone().router::<()>();
    let mut shots = Shots::default();
    shots.take(&router).await?;
    let parts = parts(&router, from, to, plan).await?;
    whole(&router, shots, parts, from, to).await
}

async fn of_recording(replay: &Replay, from: Date, to: Date, plan: Plan) -> Result<Value> {
    let recording = replay.recording();
    let (first, last) = (recording.from(), recording.to());
    let (from, to) = (from.clamp(first, last), to.clamp(first, last));
    if from >= to {
        bail!("nothing of the recording lies between `from` and `to`");
    }
    let router = replay.inspect().router::<()>();
    let seconds = (to.since(from).as_secs_f64().ceil() as usize).max(1);
    let moments = seconds.min(plan.moments).max(1);
    let mut shots = Shots::default();
    for moment in 1..=moments {
        let share = moment as f64 / moments as f64;
        stand(replay, from.after(to.since(from).mul_f64(share))).await?;
        shots.take(&router).await?;
    }
    let parts = parts(&router, from, to, plan).await?;
    whole(&router, shots, parts, from, to).await
}

async fn stand(replay: &Replay, date: Date) -> Result<()> {
    let replay = replay.clone();
    tokio::task::spawn_blocking(move || replay.stand_at(date)).await?
}

/// The pages at some moments, each as far as it differs from the one before.
#[derive(Debug, Default)]
struct Shots {
    heads: Vec<Value>,
    pages: Vec<Value>,
    actors: Vec<Value>,
    last: Map<String, Value>,
    rows: Map<String, Value>,
}

impl Shots {
    async fn take(&mut self, router: &Router) -> Result<()> {
        let mut changed = Map::new();
        for name in PAGES {
            let mut page = ask(router, &format!("/view?view={name}&limit=500")).await?;
            if name == "now" {
                let mut head = page.clone();
                head["data"] = Value::Null;
                self.heads.push(head);
            }
            let shot = json!({
                "data": page["data"].take(), "shown": page["shown"], "total": page["total"],
            });
            if self.last.get(name) != Some(&shot) {
                self.last.insert(name.to_owned(), shot.clone());
                changed.insert(name.to_owned(), shot);
            }
        }
        self.pages.push(Value::Object(changed));
        let mut page = data(router, "/view?view=actors&filter=system:any").await?;
        let rows = match page["rows"].take() {
            Value::Array(rows) => rows,
            _ => vec![],
        };
        let (mut now, mut upsert) = (Map::new(), vec![]);
        for row in rows {
            let id = row["id"].as_str().unwrap_or_default().to_owned();
            if self.rows.get(&id) != Some(&row) {
                upsert.push(row.clone());
            }
            now.insert(id, row);
        }
        let gone = self.rows.keys().filter(|id| !now.contains_key(*id));
        let remove: Vec<_> = gone.cloned().collect();
        self.rows = now;
        self.actors
            .push(json!({ "upsert": upsert, "remove": remove }));
        Ok(())
    }

    /// Ids of actors, the worst first.
    fn ids(&self) -> Vec<String> {
        let rank = |row: &Value| match row["state"].as_str() {
            Some("failed") => 0,
            Some("restarting") => 1,
            Some("waiting") => 2,
            Some("busy") => 3,
            _ => 4,
        };
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(_, row)| (row["system"] == true, rank(row)));
        rows.into_iter().map(|(id, _)| id.clone()).collect()
    }
}

/// Parts that are laid out, listed and told in detail, as of the last moment.
#[derive(Debug)]
struct Parts {
    tiles: Vec<Value>,
    spans: Value,
    spans_of: u64,
    details: usize,
}

async fn parts(router: &Router, from: Date, to: Date, plan: Plan) -> Result<Parts> {
    let open = every_lane(router, from, to).await?;
    let (from_ms, to_ms) = (from.as_ms(), to.as_ms());
    let room = (to_ms - from_ms) * ROOM;
    let mut tiles = vec![];
    let tile = async |from: f64, to: f64| {
        let path = format!("/timeline?from={from}&to={to}&px={TILE_WIDTH}&open={open}");
        data(router, &path).await
    };
    tiles.push(tile(from_ms - room, to_ms + room).await?);
    let wide = (to_ms - from_ms) / plan.tiles.max(1) as f64;
    for at in 0..plan.tiles {
        let from = from_ms + wide * at as f64;
        tiles.push(tile(from, from + wide).await?);
    }
    let mut spans = ask(
        router,
        &format!("/spans?from={from_ms}&to={to_ms}&limit={}", plan.spans),
    )
    .await?;
    Ok(Parts {
        tiles,
        spans_of: spans["total"].as_u64().unwrap_or(0),
        spans: spans["data"]["spans"].take(),
        details: plan.details,
    })
}

/// The ids of all lanes, opened level by level, as a query has them.
async fn every_lane(router: &Router, from: Date, to: Date) -> Result<String> {
    let mut open = "-".to_owned();
    for _ in 0..3 {
        let (from, to) = (from.as_ms(), to.as_ms());
        let path = format!("/timeline?from={from}&to={to}&px=50&open={open}");
        let line = data(router, &path).await?;
        let lanes = line["lanes"].as_array().cloned().unwrap_or_default();
        let above = lanes.iter().filter(|lane| lane["kind"] != "actor");
        let ids: Vec<_> = above
            .filter_map(|lane| lane["id"].as_str())
            .map(|id| id.replace(' ', "%20"))
            .collect();
        open = ids.join(",");
    }
    Ok(open)
}

async fn whole(router: &Router, shots: Shots, parts: Parts, from: Date, to: Date) -> Result<Value> {
    let mut answers = Map::new();
    let mut told = 0;
    let ids = shots.ids();
    for id in ids.iter().take(parts.details) {
        if let Ok(detail) = data(router, &format!("/actors/{id}")).await {
            answers.insert(format!("actors/{id}"), detail);
            told += 1;
        }
    }
    for path in below(&shots.last) {
        // What is not there any more has no details.
        if let Ok(detail) = data(router, &format!("/{path}")).await {
            answers.insert(path, detail);
        }
    }
    let about = ask(router, "/about").await?;
    let listed = parts.spans.as_array().map_or(0, Vec::len);
    let holds = format!(
        "{} of the pages, lanes of {}, {listed} of {} spans one by one, details of {told} of {} \
         actors as of the last moment. Critical paths are left out, and nothing is live.",
        match shots.heads.len() {
            1 => "one moment".to_owned(),
            many => format!("{many} moments"),
        },
        seconds(to.since(from)),
        parts.spans_of,
        ids.len(),
    );
    Ok(json!({
        "about": about,
        "holds": holds,
        "from": from.as_ms(),
        "to": to.as_ms(),
        "heads": shots.heads,
        "pages": shots.pages,
        "actors": shots.actors,
        "answers": answers,
        "tiles": parts.tiles,
        "spans": parts.spans,
    }))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Paths of the details that the pages lead to.
fn below(pages: &Map<String, Value>) -> Vec<String> {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let text = |of: &Value| of.as_str().unwrap_or_default().replace(' ', "%20");
    let page = |name: &str| pages.get(name).map_or(&Value::Null, |page| &page["data"]);
    let mut paths = vec![];
    for node in list(&page("cluster")["nodes"]) {
        let name = text(&node["name"]);
        for device in list(&node["devices"]) {
            paths.push(format!("devices/{name}/{}", device["index"]));
        }
        for process in list(&node["processes"]) {
            paths.push(format!("processes/{}", text(&process["id"])));
        }
        paths.push(format!("nodes/{name}"));
    }
    // Those of a run that is alone; of a cluster they are asked for job by job.
    paths.push("logs?limit=500".to_owned());
    for job in list(&page("jobs")["jobs"]) {
        let id = text(&job["id"]);
        paths.push(format!("logs?job={id}&limit=500"));
        paths.push(format!("jobs/{id}"));
    }
    for copy in list(&page("transfers")["copies"]).iter().take(200) {
        paths.push(format!("transfers/{}", text(&copy["id"])));
    }
    for board in list(&page("transfers")["boards"]) {
        paths.push(format!("transfers/{}", text(&board["id"])));
    }
    paths
}

/// The file.
fn written(holds: &Value) -> Result<String> {
    let text = |path: &str| assets::text(path).with_context(|| format!("no file {path}"));
    let (mut styles, mut sources) = (String::new(), Map::new());
    for path in assets::paths() {
        if path.ends_with(".js") && path != BOOT {
            sources.insert(path.to_owned(), text(path)?.into());
        }
    }
    let shell = text("index.html")?;
    for part in shell.split("rel=\"stylesheet\" href=\"").skip(1) {
        let path = part.split('"').next().unwrap_or_default();
        styles.push_str(&text(path)?);
    }
    let boot = text(BOOT)?;
    let mut deflated = DeflateEncoder::new(vec![], Compression::best());
    serde_json::to_writer(&mut deflated, holds)?;
    deflated.flush()?;
    let holds_deflated = STANDARD.encode(deflated.finish()?);
    // Inside of a script element only this could end it.
    let sources = serde_json::to_string(&sources)?.replace('<', "\\u003c");
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}' blob:; style-src 'sha256-{}'; img-src data:; \
         connect-src 'none'; base-uri 'none'; form-action 'none'",
        hash(&boot),
        hash(&styles)
    );
    let said = holds["holds"].as_str().unwrap_or_default();
    Ok(format!(
        "<!doctype html>\n\
         <!-- Pages of Odeon with what they showed, for looking on without a server. It holds {said} -->\n\
         <html lang=\"en\" data-theme=\"system\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Odeon</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{styles}</style>\n</head>\n<body>\n\
         <div id=\"root\"></div>\n<noscript>This page draws with JavaScript.</noscript>\n\
         <script type=\"application/json\" id=\"sources\">{sources}</script>\n\
         <script type=\"text/plain\" id=\"holds\">{holds_deflated}</script>\n\
         <script>{boot}</script>\n</body>\n</html>\n"
    ))
}

/// The script that makes modules of the sources.
const BOOT: &str = "offline/boot.js";
