//! A recording that is shown: where it is, how fast it goes, and who steers it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use odeon::inspect::MethodView;
use odeon::{ActorId, Clock, Timestamp};
use odeon_client::inspect as told;
use odeon_observe::recording::{End, Frame, Frames, RecordingError};
use odeon_observe::{Date, Observer, Recording};
use parking_lot::Mutex;
use serde::Deserialize;

use super::facts::Facts;
use super::inspection::{Inspect, Origin};
use super::recorded_catalog::RecordedCatalog;
use super::refused::Refused;

/// A recording on its way through an observer. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Replay(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    recording: Recording,
    name: String,
    observer: Observer,
    recorded: Arc<Mutex<RecordedCatalog>>,
    loops: bool,
    at: Mutex<Position>,
    /// Held while frames are told, so that they are in order.
    feed: Mutex<Feed>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    at: Date,
    speed: f64,
    paused: bool,
    /// When it was there.
    since: Timestamp,
    /// Where somebody wants it to be.
    wanted: Option<Date>,
}

/// The frames of the recording, and how far they were told.
#[derive(Debug)]
struct Feed {
    frames: Frames,
    next: Option<Frame<'static>>,
    told: Date,
}

/// Why a file cannot be shown, and where recordings come from when it is none.
fn not_opened(path: &Path, error: RecordingError) -> anyhow::Error {
    let what = match &error {
        RecordingError::Unread(why) if why.kind() == ErrorKind::NotFound => "there is no such file",
        RecordingError::Unread(why) if why.kind() == ErrorKind::IsADirectory => {
            "this is a folder, and a recording is a file"
        }
        _ => return anyhow::Error::new(error).context(path.display().to_string()),
    };
    anyhow!(
        "{}: {what}; `odeon run RECIPE --record FILE` records a run, `odeon record FILE` a cluster, and \
         `odeon demo` shows recordings that come with the command",
        path.display()
    )
}

/// A change of a recording's pace or place.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Steer {
    /// True to stand still, false to go on.
    paused: Option<bool>,
    /// The speed, as a multiple of the recorded one.
    speed: Option<f64>,
    /// The place to go to, in milliseconds since 1970.
    at: Option<f64>,
}

/// The interval at which it goes on.
const STEP: Duration = Duration::from_millis(100);
/// The time that one that begins again by itself stands at its end, by the watch of whoever looks.
const REST: Duration = Duration::from_secs(6);
/// The slowest and the fastest.
const SPEEDS: (f64, f64) = (0.05, 100.0);
/// Viewers at the same time.
const VIEWERS_MAX: usize = 16;

impl Replay {
    /// Reads a file.
    pub(crate) fn open(path: &Path, speed: f64, loops: bool) -> Result<Self> {
        let recording = Recording::open(path).map_err(|error| not_opened(path, error))?;
        let name = path.file_stem().map(|it| it.to_string_lossy().into_owned());
        Self::of(recording, &name.unwrap_or_default(), speed, loops)
    }

    /// Shows a recording from its begin on.
    pub(crate) fn of(recording: Recording, name: &str, speed: f64, loops: bool) -> Result<Self> {
        if !(SPEEDS.0..=SPEEDS.1).contains(&speed) {
            bail!("--speed {speed}: it goes from {} to {}", SPEEDS.0, SPEEDS.1);
        }
        let from = recording.from();
        let observer = Observer::of_the_past(&recording.head().name, VIEWERS_MAX, from);
        let feed = Feed {
            frames: recording.frames(),
            next: None,
            told: from,
        };
        let at = Position {
            at: from,
            speed,
            paused: false,
            since: Clock::now(),
            wanted: None,
        };
        Ok(Self(Arc::new(Shared {
            recording,
            name: name.to_owned(),
            observer,
            recorded: Arc::default(),
            loops,
            at: Mutex::new(at),
            feed: Mutex::new(feed),
        })))
    }

    /// Another one of the same recording, which stands at its begin.
    pub(super) fn again(&self) -> Result<Self> {
        let (recording, name) = (self.0.recording.clone(), &self.0.name);
        Self::of(recording, name, 1.0, false)
    }

    /// The routes that show it.
    pub(crate) fn inspect(&self) -> Inspect {
        let facts = Facts::Recorded(Arc::clone(&self.0.recorded));
        let observer = self.0.observer.clone();
        Inspect::new(observer, facts, Origin::Recorded(self.clone()), None)
    }

    /// The recording that is shown.
    pub(crate) fn recording(&self) -> &Recording {
        &self.0.recording
    }

    /// Why it is not whole, in words; `None` where it is.
    pub(crate) fn flaw(&self) -> Option<&'static str> {
        match self.0.recording.end() {
            End::InOrder => None,
            End::Full => Some("it had no room for more: what was recorded until then is shown"),
            End::Cut => Some("it was cut short: what was recorded until then is shown"),
            End::Damaged => Some("it is damaged: what lies before the damage is shown"),
        }
    }

    /// The work of an actor by kind of message.
    pub(super) fn methods(&self, actor: ActorId) -> Vec<MethodView> {
        self.0.recorded.lock().methods(actor)
    }

    /// The state of the replay as every page tells it.
    pub(super) fn head(&self) -> told::Replay {
        let at = *self.0.at.lock();
        told::Replay {
            name: self.0.name.clone(),
            speed: at.speed,
            paused: at.paused,
            at: at.at.as_ms(),
            from: self.0.recording.from().as_ms(),
            to: self.0.recording.to().as_ms(),
        }
    }

    /// Plays it, until the future is dropped.
    pub(crate) async fn play(self) -> Result<()> {
        loop {
            let replay = self.clone();
            tokio::task::spawn_blocking(move || replay.step(Clock::now())).await??;
            Clock::sleep(STEP).await;
        }
    }

    /// Goes on to where it should be by now.
    fn step(&self, now: Timestamp) -> Result<()> {
        let shared = &self.0;
        let to = shared.recording.to();
        // From here on nobody else goes elsewhere.
        let mut feed = shared.feed.lock();
        let mut at = shared.at.lock();
        let passed = now.since(at.since);
        let wanted = match at.wanted.take() {
            Some(wanted) => {
                at.since = now;
                wanted
            }
            None if at.paused => return Ok(()),
            None if at.at >= to => {
                if !shared.loops {
                    at.paused = true;
                    to
                } else if passed < REST {
                    return Ok(());
                } else {
                    at.since = now;
                    shared.recording.from()
                }
            }
            None => {
                at.since = now;
                at.at.after(passed.mul_f64(at.speed))
            }
        };
        at.at = wanted.min(to);
        let position = at.at;
        drop(at);
        self.feed(&mut feed, position)
    }

    /// Stands still, and shows what was seen up to there.
    pub(crate) fn stand_at(&self, date: Date) -> Result<()> {
        let mut feed = self.0.feed.lock();
        let mut at = self.0.at.lock();
        (at.at, at.paused, at.wanted) = (date, true, None);
        drop(at);
        self.feed(&mut feed, date)
    }

    fn feed(&self, feed: &mut Feed, date: Date) -> Result<()> {
        let shared = &self.0;
        if date < feed.told {
            feed.frames = shared.recording.frames();
            feed.next = None;
            *shared.recorded.lock() = RecordedCatalog::default();
            shared.observer.begin_anew();
        }
        feed.told = date;
        let mut recorded = shared.recorded.lock();
        shared.observer.set_now(date);
        shared.observer.write(|seen| -> Result<()> {
            loop {
                let next = match feed.next.take() {
                    Some(next) => next,
                    None => match feed.frames.next() {
                        Some(next) => next?,
                        None => return Ok(()),
                    },
                };
                if next.date() > date {
                    feed.next = Some(next);
                    return Ok(());
                }
                next.tell(seen, |about, json| recorded.take(about, json));
            }
        })
    }

    /// Does what somebody wants.
    fn steer(&self, wish: &Steer) -> Result<(), Refused> {
        let (least, most) = SPEEDS;
        if wish.speed.is_some_and(|it| !(least..=most).contains(&it)) {
            return Err(Refused::Invalid(format!(
                "`speed` goes from {least} to {most}"
            )));
        }
        if wish.at.is_some_and(|at| !at.is_finite()) {
            return Err(Refused::Invalid(
                "`at` is a date in milliseconds".to_owned(),
            ));
        }
        let (from, to) = (self.0.recording.from(), self.0.recording.to());
        let mut at = self.0.at.lock();
        if at.wanted.is_none() && !at.paused && at.at < to {
            // What has passed until now went by the speed of until now.
            let now = Clock::now();
            at.wanted = Some(at.at.after(now.since(at.since).mul_f64(at.speed)).min(to));
        }
        at.speed = wish.speed.unwrap_or(at.speed);
        if let Some(paused) = wish.paused {
            if at.paused && !paused && at.at >= to {
                at.wanted = Some(from);
            }
            at.paused = paused;
        }
        if let Some(wanted) = wish.at {
            at.wanted = Some(Date::from_ms(wanted).clamp(from, to));
        }
        Ok(())
    }
}

/// Steers a recording that is shown.
#[utoipa::path(post, operation_id = "inspect_steer", path = "/api/v1/inspect/replay", request_body = Steer, responses((status = 200, body = told::Replay)))]
pub(super) async fn steer(
    State(inspect): State<Inspect>,
    wish: Result<axum::Json<Steer>, JsonRejection>,
) -> Result<axum::Json<told::Replay>, Refused> {
    let Origin::Recorded(replay) = &inspect.origin else {
        return Err(Refused::Unknown(
            "what is shown here is no recording: it cannot be steered".to_owned(),
        ));
    };
    let axum::Json(wish) = wish.map_err(|error| Refused::Invalid(error.body_text()))?;
    replay.steer(&wish)?;
    let stepping = replay.clone();
    let stepped = tokio::task::spawn_blocking(move || stepping.step(Clock::now())).await;
    let stepped = stepped.map_err(anyhow::Error::new).and_then(|it| it);
    stepped.map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    // Whoever looks on is told at once, also while it stands.
    inspect.observer.write(|_| {});
    Ok(axum::Json(replay.head()))
}

#[cfg(test)]
mod tests;
