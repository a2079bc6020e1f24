//! The model of the screen: what is known while somebody looks on, and how keys, news and time
//! change it.

use std::collections::BTreeMap;

use odeon_client::inspect::{ActorDetail, Envelope};
use odeon_client::{Asked, Page, Update, View};

use super::draw;
use super::page;
use super::rows::{self, Opens, Row, Section};

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// With Ctrl.
    Control(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// An event that happens to whoever looks on.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Key(Key),
    /// Text that was put in at once.
    Paste(String),
    /// Time passes: milliseconds since 1970, by the clock of this machine.
    Tick(f64),
    /// The columns and rows of the terminal.
    Size(u16, u16),
    /// Something was said of the page that is followed with this number.
    Told(u64, Update),
    /// That page is not heard any more.
    Lost(u64, Loss),
    /// All about an actor, or why not.
    Detail(String, Result<Box<Envelope<ActorDetail>>, String>),
}

/// Why a page is not heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) why: String,
    /// To ask again would be of no use.
    pub(crate) is_final: bool,
}

/// An effect that is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Follow a page under this number, and no other.
    Follow(u64, Asked),
    /// Follow none.
    Leave,
    /// Ask for all about an actor.
    Look(String),
    Quit,
}

/// The state of the connection: if what is shown is now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    Connecting,
    Live,
    Paused,
    /// Nothing is heard since then; it is asked again.
    Stale {
        since: f64,
        again_at: f64,
        why: String,
    },
    /// The page that was asked for is refused.
    Refused(String),
}

/// The panel beside the page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    pub(crate) of: Opens,
    /// The row that it is of.
    pub(crate) key: String,
    pub(crate) scroll: usize,
    /// Of an actor.
    pub(crate) detail: Option<Result<Box<Envelope<ActorDetail>>, String>>,
    asked_at: f64,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) view: View,
    filters: BTreeMap<View, String>,
    pub(crate) order: Order,
    pub(crate) shown: Option<Envelope<Page>>,
    /// When that was heard.
    pub(crate) heard_at: f64,
    pub(crate) phase: Phase,
    /// The row that is chosen, on each page.
    chosen: BTreeMap<View, String>,
    /// A filter while it is written.
    pub(crate) input: Option<String>,
    pub(crate) help: bool,
    pub(crate) panel: Option<Panel>,
    pub(crate) now: f64,
    /// Columns and rows of the terminal.
    pub(crate) size: (u16, u16),
    number: u64,
    failures: usize,
}

/// The order of actors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// The worst first.
    #[default]
    State,
    Rate,
    Mailbox,
    Busy,
    Age,
    Restarts,
    Name,
    Type,
    Node,
}

impl Order {
    const ALL: [Self; 9] = [
        Self::State,
        Self::Rate,
        Self::Mailbox,
        Self::Busy,
        Self::Age,
        Self::Restarts,
        Self::Name,
        Self::Type,
        Self::Node,
    ];

    /// The heading of its column.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Rate => "rate",
            Self::Mailbox => "mailbox",
            Self::Busy => "busy",
            Self::Age => "for",
            Self::Restarts => "restarts",
            Self::Name => "name",
            Self::Type => "type",
            Self::Node => "node",
        }
    }

    /// As the API takes it.
    const fn asked(self) -> &'static str {
        match self {
            Self::State => "",
            Self::Rate => "-rate",
            Self::Mailbox => "-mailbox",
            Self::Busy => "-busy",
            Self::Age => "-age",
            Self::Restarts => "-restarts",
            Self::Name => "name",
            Self::Type => "type",
            Self::Node => "node",
        }
    }

    /// The next one, so many further.
    fn next(self, further: usize) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + further) % Self::ALL.len()]
    }
}

/// Rows of actors that are followed.
pub(crate) const ACTORS_MAX: usize = 2_000;
/// The pauses after somebody did not answer, by how often that has been so; milliseconds.
const WAITS: [f64; 5] = [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0];
/// The interval at which an actor that is looked at is asked for again, in milliseconds.
const LOOK_AGAIN: f64 = 1_000.0;
/// A filter is not longer.
const FILTER_MAX: usize = 500;

impl Model {
    pub(crate) fn new(view: View, filter: &str, now: f64) -> Self {
        let filters = match filter {
            "" => BTreeMap::new(),
            filter => BTreeMap::from([(view, filter.to_owned())]),
        };
        Self {
            view,
            filters,
            order: Order::default(),
            shown: None,
            heard_at: now,
            phase: Phase::Connecting,
            chosen: BTreeMap::new(),
            input: None,
            help: false,
            panel: None,
            now,
            size: (80, 24),
            number: 0,
            failures: 0,
        }
    }

    /// The page that is asked for.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            view: self.view,
            filter: match self.view.is_filtered() {
                true => self.filter().to_owned(),
                false => String::new(),
            },
            sort: match self.view {
                View::Actors => self.order.asked().to_owned(),
                _ => String::new(),
            },
            limit: (self.view == View::Actors).then_some(ACTORS_MAX),
        }
    }

    /// The filter of this page.
    pub(crate) fn filter(&self) -> &str {
        self.filters.get(&self.view).map_or("", String::as_str)
    }

    /// Now, by the clock of whoever is looked at.
    pub(crate) fn there(&self) -> f64 {
        let heard = self
            .shown
            .as_ref()
            .map_or(self.now, |page| page.captured_at);
        match self.phase {
            Phase::Paused => heard,
            _ => heard + (self.now - self.heard_at).max(0.0),
        }
    }

    /// The sections of the page.
    pub(crate) fn sections(&self) -> Vec<Section> {
        match &self.shown {
            Some(page) => page::sections(page, self),
            None => vec![],
        }
    }

    /// The place of the chosen row among all rows.
    pub(crate) fn chosen(&self, sections: &[Section]) -> Option<usize> {
        let key = self.chosen.get(&self.view)?;
        rows::all(sections).position(|row| row.key == *key)
    }

    /// Begins to follow the page that is shown.
    pub(crate) fn follow(&mut self) -> Effect {
        self.number += 1;
        if self.phase != Phase::Paused {
            self.phase = Phase::Connecting;
        }
        Effect::Follow(self.number, self.asked())
    }

    /// Takes something in.
    pub(crate) fn apply(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Key(key) => self.key(key),
            Event::Paste(text) => {
                let text = text.chars().filter(|c| !c.is_control());
                text.for_each(|c| self.write(c));
                vec![]
            }
            Event::Tick(now) => self.tick(now),
            Event::Size(width, height) => {
                self.size = (width, height);
                vec![]
            }
            Event::Told(number, update) if number == self.number => self.told(update),
            Event::Lost(number, loss) if number == self.number => {
                self.lost(loss);
                vec![]
            }
            // Of a page that is not shown any more.
            Event::Told(..) | Event::Lost(..) => vec![],
            Event::Detail(id, detail) => {
                if let Some(panel) = &mut self.panel
                    && panel.of == Opens::Actor(id)
                {
                    panel.detail = Some(detail);
                }
                vec![]
            }
        }
    }

    fn told(&mut self, update: Update) -> Vec<Effect> {
        self.shown = match (self.shown.take(), update) {
            (_, Update::Whole(page)) => Some(*page),
            (Some(page), update) => Some(page.after(update)),
            (None, _) => None,
        };
        if let Some(Page::Actors(actors)) = self.shown.as_mut().map(|page| &mut page.data) {
            page::sort(&mut actors.rows, self.order);
        }
        self.heard_at = self.now;
        self.failures = 0;
        if self.phase == Phase::Paused {
            return vec![Effect::Leave];
        }
        self.phase = Phase::Live;
        let again = self.now - LOOK_AGAIN;
        match &mut self.panel {
            Some(panel) if panel.asked_at <= again => panel.look(self.now).into_iter().collect(),
            _ => vec![],
        }
    }

    fn lost(&mut self, loss: Loss) {
        if loss.is_final {
            self.phase = Phase::Refused(loss.why);
            return;
        }
        let wait = WAITS[self.failures.min(WAITS.len() - 1)];
        self.failures += 1;
        let since = match self.phase {
            Phase::Stale { since, .. } => since,
            _ => self.heard_at,
        };
        self.phase = Phase::Stale {
            since,
            again_at: self.now + wait,
            why: loss.why,
        };
    }

    fn tick(&mut self, now: f64) -> Vec<Effect> {
        self.now = now;
        match self.phase {
            Phase::Stale { again_at, .. } if now >= again_at => {
                self.number += 1;
                // What was said stays in sight until something is heard.
                if let Phase::Stale { again_at, .. } = &mut self.phase {
                    *again_at = f64::MAX;
                }
                vec![Effect::Follow(self.number, self.asked())]
            }
            _ => vec![],
        }
    }

    fn key(&mut self, key: Key) -> Vec<Effect> {
        if key == Key::Control('c') {
            return vec![Effect::Quit];
        }
        if self.input.is_some() {
            return self.written(key);
        }
        if self.help {
            self.help = false;
            return match key {
                Key::Char('q') => vec![Effect::Quit],
                _ => vec![],
            };
        }
        match key {
            Key::Char('q') => vec![Effect::Quit],
            Key::Char('?') => {
                self.help = true;
                vec![]
            }
            Key::Char(digit @ '1'..='8') => {
                let at = usize::from(digit as u8 - b'1');
                self.go(View::ALL[at])
            }
            Key::Tab => self.go(self.beside(1)),
            Key::BackTab => self.go(self.beside(View::ALL.len() - 1)),
            Key::Char('p' | ' ') => self.pause(),
            Key::Char('r') => {
                self.failures = 0;
                vec![self.follow()]
            }
            Key::Char('/') => {
                let effects = match self.view.is_filtered() {
                    true => vec![],
                    false => self.go(View::Actors),
                };
                self.input = Some(self.filter().to_owned());
                effects
            }
            Key::Char('s') if self.view == View::Actors => self.sort(1),
            Key::Char('S') if self.view == View::Actors => self.sort(Order::ALL.len() - 1),
            Key::Char('a') if self.view == View::Actors => {
                let filter = with_system(self.filter());
                self.choose_by(filter)
            }
            Key::Enter => self.open(),
            Key::Escape => self.back(),
            _ => self.scroll(key),
        }
    }

    /// The page so many further.
    fn beside(&self, further: usize) -> View {
        let at = View::ALL.iter().position(|view| *view == self.view);
        View::ALL[(at.unwrap_or(0) + further) % View::ALL.len()]
    }

    fn go(&mut self, view: View) -> Vec<Effect> {
        if view == self.view {
            return vec![];
        }
        self.view = view;
        self.panel = None;
        self.shown = None;
        vec![self.follow()]
    }

    fn sort(&mut self, further: usize) -> Vec<Effect> {
        self.order = self.order.next(further);
        if let Some(Page::Actors(actors)) = self.shown.as_mut().map(|page| &mut page.data) {
            page::sort(&mut actors.rows, self.order);
        }
        vec![self.follow()]
    }

    fn pause(&mut self) -> Vec<Effect> {
        if self.phase == Phase::Paused {
            self.phase = Phase::Connecting;
            return vec![self.follow()];
        }
        self.phase = Phase::Paused;
        match self.shown {
            Some(_) => vec![Effect::Leave],
            None => vec![],
        }
    }

    /// Chooses rows by a filter.
    fn choose_by(&mut self, filter: String) -> Vec<Effect> {
        self.filters.insert(self.view, filter);
        self.chosen.remove(&self.view);
        self.shown = None;
        vec![self.follow()]
    }

    /// A key while a filter is written.
    fn written(&mut self, key: Key) -> Vec<Effect> {
        match key {
            Key::Char(c) => self.write(c),
            Key::Backspace => {
                self.input.as_mut().and_then(String::pop);
            }
            Key::Control('u') => self.input = Some(String::new()),
            Key::Escape => self.input = None,
            Key::Enter => {
                let text = self.input.take().unwrap_or_default();
                let text = text.trim();
                if text != self.filter() {
                    return self.choose_by(text.to_owned());
                }
            }
            _ => {}
        }
        vec![]
    }

    fn write(&mut self, c: char) {
        if let Some(input) = self.input.as_mut().filter(|it| it.len() < FILTER_MAX) {
            input.push(c);
        }
    }

    /// Opens what the chosen row leads to.
    fn open(&mut self) -> Vec<Effect> {
        let sections = self.sections();
        let Some(at) = self.chosen(&sections).or(Some(0)) else {
            return vec![];
        };
        let Some(row) = rows::all(&sections).nth(at) else {
            return vec![];
        };
        self.chosen.insert(self.view, row.key.clone());
        match row.opens.clone() {
            Opens::Page(view, filter) => {
                self.filters.insert(view, filter);
                self.chosen.remove(&view);
                self.go(view)
            }
            _ if self
                .panel
                .as_ref()
                .is_some_and(|panel| panel.key == row.key) =>
            {
                self.panel = None;
                vec![]
            }
            _ => self.beside_the_page(row),
        }
    }

    /// Shows more of a row.
    fn beside_the_page(&mut self, row: &Row) -> Vec<Effect> {
        let mut panel = Panel {
            of: row.opens.clone(),
            key: row.key.clone(),
            scroll: 0,
            detail: None,
            asked_at: 0.0,
        };
        let effect = panel.look(self.now);
        self.panel = Some(panel);
        effect.into_iter().collect()
    }

    /// Closes what was opened last.
    fn back(&mut self) -> Vec<Effect> {
        if self.panel.take().is_some() || self.chosen.remove(&self.view).is_some() {
            return vec![];
        }
        match self.filters.remove(&self.view) {
            Some(filter) if !filter.is_empty() && self.view.is_filtered() => {
                self.choose_by(String::new())
            }
            _ => vec![],
        }
    }

    fn scroll(&mut self, key: Key) -> Vec<Effect> {
        let step = usize::from(self.size.1.saturating_sub(6)).max(1);
        let furthest = draw::furthest(self);
        if let Some(panel) = &mut self.panel {
            let scroll = match key {
                Key::Up | Key::Char('k') => panel.scroll.saturating_sub(1),
                Key::Down | Key::Char('j') => panel.scroll + 1,
                Key::PageUp => panel.scroll.saturating_sub(step),
                Key::PageDown => panel.scroll + step,
                Key::Home | Key::Char('g') => 0,
                Key::End | Key::Char('G') => furthest,
                Key::Left | Key::Char('h') => return self.beside_row(false),
                Key::Right | Key::Char('l') => return self.beside_row(true),
                _ => return vec![],
            };
            panel.scroll = scroll.min(furthest);
            return vec![];
        }
        let sections = self.sections();
        let count = rows::all(&sections).count();
        let Some(last) = count.checked_sub(1) else {
            return vec![];
        };
        let at = self.chosen(&sections);
        let place = match key {
            Key::Up | Key::Char('k') => at.map_or(0, |at| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => at.map_or(0, |at| (at + 1).min(last)),
            Key::PageUp => at.map_or(0, |at| at.saturating_sub(step)),
            Key::PageDown => at.map_or(step, |at| at + step).min(last),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => last,
            _ => return vec![],
        };
        if let Some(row) = rows::all(&sections).nth(place) {
            self.chosen.insert(self.view, row.key.clone());
        }
        vec![]
    }

    /// The same of the row after this one, or before it.
    fn beside_row(&mut self, after: bool) -> Vec<Effect> {
        let sections = self.sections();
        let at = self.chosen(&sections).unwrap_or(0);
        let place = match after {
            true => at + 1,
            false => at.saturating_sub(1),
        };
        let Some(row) = rows::all(&sections).nth(place) else {
            return vec![];
        };
        self.chosen.insert(self.view, row.key.clone());
        self.beside_the_page(row)
    }
}

impl Panel {
    /// Asks for what it shows.
    fn look(&mut self, now: f64) -> Option<Effect> {
        self.asked_at = now;
        match &self.of {
            Opens::Actor(id) => Some(Effect::Look(id.clone())),
            _ => None,
        }
    }
}

/// A filter that takes actors of the daemons too, or not any more.
fn with_system(filter: &str) -> String {
    let is_system = |word: &&str| word.trim_start_matches('-').starts_with("system:");
    let mut words: Vec<&str> = filter.split_whitespace().collect();
    if words.iter().any(is_system) {
        words.retain(|word| !is_system(word));
    } else {
        words.push("system:any");
    }
    words.join(" ")
}
