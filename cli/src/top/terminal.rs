//! The thin part that touches the world: a terminal, keys, signals, and what is heard of pages.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, Event as Input, EventStream, KeyCode, KeyEvent,
    KeyEventKind, KeyModifiers,
};
use futures::StreamExt;
use odeon::Clock;
use odeon_client::{Asked, ClientError, Inspector};
use parking_lot::Mutex;
use ratatui::DefaultTerminal;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::draw;
use super::model::{Effect, Event, Key, Loss, Model};
use super::signs::Colours;
use crate::command::signals::Signals;
use crate::command::watched::Watched;

/// The interval at which what is shown grows older.
const TICK: Duration = Duration::from_millis(250);
/// The most events that are heard and were not shown yet.
const HEARD_MAX: usize = 16;

/// A terminal that is drawn on. It is as it was before when this is dropped, and when anything panics.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self> {
        let terminal = ratatui::try_init().context("this terminal cannot be drawn on")?;
        let screen = Self(terminal);
        crossterm::execute!(std::io::stdout(), EnableBracketedPaste)?;
        Ok(screen)
    }

    fn draw(&mut self, model: &Model, colours: Colours) -> Result<()> {
        let drawn = self.0.draw(|frame| {
            let area = frame.area();
            draw::draw(model, colours, area, frame.buffer_mut());
        });
        drawn.context("drawing on the terminal")?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // What a terminal that is gone does not take is of no use to anybody.
        let _ = crossterm::execute!(std::io::stdout(), DisableBracketedPaste);
        let _ = ratatui::try_restore();
    }
}

/// Now, in milliseconds since 1970.
pub(crate) fn now() -> f64 {
    Clock::unix_time().as_secs_f64() * 1e3
}

/// Decides if this terminal is to have colours.
fn colours() -> Colours {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    match refused || dumb {
        true => Colours::None,
        false => Colours::Some,
    }
}

/// The page that is followed, and what is asked beside that.
struct Feed {
    watched: Watched,
    heard: mpsc::Sender<Event>,
    tasks: JoinSet<()>,
    following: Option<AbortHandle>,
    /// The connection that is good now.
    inspector: Arc<Mutex<Option<Inspector>>>,
}

impl Feed {
    fn follow(&mut self, number: u64, asked: Asked) {
        self.leave();
        let (watched, heard) = (self.watched.clone(), self.heard.clone());
        let inspector = self.inspector.clone();
        let following = self.tasks.spawn(async move {
            let loss = listen(&watched, &inspector, number, &asked, &heard).await;
            // Nobody hears it when the screen is gone.
            let _ = heard.send(Event::Lost(number, loss)).await;
        });
        self.following = Some(following);
    }

    fn leave(&mut self) {
        if let Some(following) = self.following.take() {
            following.abort();
        }
    }

    fn look(&mut self, id: String) {
        let Some(inspector) = self.inspector.lock().clone() else {
            return;
        };
        let (watched, heard) = (self.watched.clone(), self.heard.clone());
        self.tasks.spawn(async move {
            let detail = inspector.actor(&id).await.map(Box::new);
            let detail = detail.map_err(|error| in_words(&watched.why_not(error)));
            // As above.
            let _ = heard.send(Event::Detail(id, detail)).await;
        });
    }
}

fn in_words(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

/// Passes on what is said of a page, until nothing more is. Gives why.
async fn listen(
    watched: &Watched,
    shared: &Mutex<Option<Inspector>>,
    number: u64,
    asked: &Asked,
    heard: &mpsc::Sender<Event>,
) -> Loss {
    let lost = |error: ClientError| {
        // A run that began again has another key, which is read anew.
        let is_key = matches!(error, ClientError::Refused { status: 401, .. });
        let refused = match &error {
            ClientError::Refused { status, .. } => [400, 401, 403, 404].contains(status),
            _ => false,
        };
        Loss {
            is_final: refused && !(is_key && watched.run().is_some()),
            why: in_words(&watched.why_not(error)),
        }
    };
    // It may be elsewhere by now.
    let inspector = match watched.inspector() {
        Ok(inspector) => inspector,
        Err(error) => {
            return Loss {
                why: in_words(&error),
                is_final: false,
            };
        }
    };
    *shared.lock() = Some(inspector.clone());
    let mut live = match inspector.live(asked).await {
        Ok(live) => live,
        Err(error) => return lost(error),
    };
    loop {
        match live.next().await {
            Ok(Some(update)) => {
                if heard.send(Event::Told(number, update)).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => return lost(error),
        }
    }
    Loss {
        why: "the connection was closed at the other end".to_owned(),
        is_final: false,
    }
}

/// Looks on until somebody ends it. Gives the exit code.
pub(crate) async fn look_on(watched: Watched, mut model: Model) -> Result<u8> {
    let mut signals = Signals::listen()?;
    let (heard, mut hearing) = mpsc::channel(HEARD_MAX);
    let mut feed = Feed {
        watched,
        heard,
        tasks: JoinSet::new(),
        following: None,
        inspector: Arc::default(),
    };
    let colours = colours();
    let mut screen = Screen::take()?;
    let mut keys = EventStream::new();
    let mut ticking = tokio::time::interval(TICK);
    let size = screen
        .0
        .size()
        .context("asking how large the terminal is")?;
    let mut effects = model.apply(Event::Size(size.width, size.height));
    effects.push(model.follow());
    loop {
        for effect in effects.drain(..) {
            match effect {
                Effect::Follow(number, asked) => feed.follow(number, asked),
                Effect::Leave => feed.leave(),
                Effect::Look(id) => feed.look(id),
                Effect::Quit => return Ok(0),
            }
        }
        screen.draw(&model, colours)?;
        let event = tokio::select! {
            biased;
            code = signals.asked() => return Ok(code),
            input = keys.next() => match input {
                Some(input) => event_of(input.context("reading keys")?),
                // Nobody is at the terminal any more.
                None => return Ok(0),
            },
            event = hearing.recv() => event,
            Some(ended) = feed.tasks.join_next() => match ended {
                // The screen is given back already.
                Err(error) if error.is_panic() => bail!("a part of this program has failed: {error}"),
                _ => continue,
            },
            _ = ticking.tick() => None,
        };
        effects.extend(model.apply(Event::Tick(now())));
        if let Some(event) = event {
            effects.extend(model.apply(event));
        }
    }
}

/// The event that an input means, if any.
fn event_of(input: Input) -> Option<Event> {
    match input {
        Input::Key(key) if key.kind != KeyEventKind::Release => key_of(key).map(Event::Key),
        Input::Paste(text) => Some(Event::Paste(text)),
        Input::Resize(width, height) => Some(Event::Size(width, height)),
        _ => None,
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char(c) if control => Key::Control(c.to_ascii_lowercase()),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
