//! The cells that a loader has, makes and is to make.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, Shared};
use odeon::{Blob, Clock, Context, Handler, message};
use tokio::sync::{Semaphore, oneshot};

use super::{LoadFault, LoaderArgs, LoaderCounts};
use crate::plan::CellName;
use crate::sample::SourceNumber;
use crate::source::{Cell, Earlier, Opening, Source, SourceError};

/// A cell was made, or could not be. A loader tells itself.
#[message(name = "data.Ended")]
#[derive(Clone, Debug)]
pub(super) struct Ended {
    name: CellName,
    /// Counts of the cell that was made; nothing when it could not be made.
    made: Option<Made>,
    busy_seconds: f64,
}

#[derive(Clone, Debug, odeon::serde::Serialize, odeon::serde::Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
struct Made {
    samples: u64,
    bytes: u64,
    skipped: Vec<String>,
}

type Opened = Shared<BoxFuture<'static, Result<Arc<Source>, LoadFault>>>;
type Making = Shared<BoxFuture<'static, Result<Arc<Cell>, LoadFault>>>;

/// The cells that one loader is to have, with how far each is.
pub(super) struct Shelf {
    args: Arc<LoaderArgs>,
    opening: Opening,
    /// As many cells as may be made at a time.
    room: Arc<Semaphore>,
    sources: HashMap<SourceNumber, Opened>,
    /// Those that are taken for sources of which nothing was read before.
    anew: BTreeSet<SourceNumber>,
    /// In the order in which they are needed.
    wanted: Vec<CellName>,
    cells: BTreeMap<CellName, Slot>,
    counts: LoaderCounts,
}

struct Slot {
    making: Making,
    /// Known when it is made.
    bytes: Option<u64>,
}

/// A source as it was each time before more came.
async fn read_earlier(all: &Blob, number: SourceNumber) -> Result<Vec<Earlier>, String> {
    let lost =
        |error: &dyn fmt::Display| format!("how it was before is not known any more: {error}");
    let view = all.open().await.map_err(|error| lost(&error))?;
    let all = serde_json::from_slice::<Vec<Vec<Earlier>>>(&view);
    let mut all = all.map_err(|error| lost(&error))?;
    let own = all.get_mut(usize::from(number.0));
    Ok(own.map(std::mem::take).unwrap_or_default())
}

/// Skipped records that are told with their reasons.
const SKIPPED_TOLD: usize = 8;

impl Shelf {
    pub(super) fn new(args: LoaderArgs) -> Self {
        Self {
            room: Arc::new(Semaphore::new(args.threads.max(1))),
            opening: Opening::new(args.tokenizer.clone(), &args.cache).with_threads(args.threads),
            args: Arc::new(args),
            sources: HashMap::new(),
            anew: BTreeSet::new(),
            wanted: vec![],
            cells: BTreeMap::new(),
            counts: LoaderCounts::default(),
        }
    }

    /// Has these cells and no others.
    pub(super) fn hold<A: Handler<Ended>>(&mut self, cells: Vec<CellName>, cx: &Context<A>) {
        let wanted: BTreeSet<CellName> = cells.iter().copied().collect();
        self.cells.retain(|name, _| wanted.contains(name));
        self.wanted = cells;
        self.read_ahead(cx);
    }

    /// A source, opened now if it was not.
    pub(super) fn open(&mut self, number: SourceNumber) -> Opened {
        if let Some(open) = self.sources.get(&number)
            && !matches!(open.peek(), Some(Err(_)))
        {
            return open.clone();
        }
        let (args, opening) = (Arc::clone(&self.args), self.opening.clone());
        let is_anew = self.anew.contains(&number);
        let open = async move {
            let Some(spec) = args.sources.get(usize::from(number.0)) else {
                return Err(LoadFault {
                    source_name: number.0.to_string(),
                    detail: format!("there are {} sources", args.sources.len()),
                    differs: None,
                });
            };
            let fault = |detail| LoadFault {
                source_name: spec.name.clone(),
                detail,
                differs: None,
            };
            let earlier = match &args.earlier {
                Some(earlier) if !is_anew => read_earlier(earlier, number).await.map_err(fault)?,
                _ => vec![],
            };
            let source = Source::open_behind(number, spec, &earlier, &opening).await;
            let source = source.map_err(|error| LoadFault {
                differs: match &error {
                    SourceError::Differs { what, .. } => Some(what.clone()),
                    _ => None,
                },
                ..fault(error.detail())
            })?;
            match args.identities.get(usize::from(number.0)) {
                Some(identity) if *identity != source.identity() => Err(fault(format!(
                    "{} has changed since the run began: put the old files back, or begin anew",
                    spec.path
                ))),
                _ => Ok(Arc::new(source)),
            }
        };
        let open = open.boxed().shared();
        self.sources.insert(number, open.clone());
        open
    }

    /// Takes a source for one of which nothing was read before.
    pub(super) fn forget(&mut self, number: SourceNumber) {
        self.anew.insert(number);
        self.sources.remove(&number);
    }

    /// A cell that somebody waits for, made now if it was not, however full the shelf is.
    pub(super) fn cell<A: Handler<Ended>>(&mut self, name: CellName, cx: &Context<A>) -> Making {
        if let Some(slot) = self.cells.get(&name)
            // What could not be read may be there now.
            && !matches!(slot.making.peek(), Some(Err(_)))
        {
            return slot.making.clone();
        }
        self.make(name, cx)
    }

    pub(super) fn ended<A: Handler<Ended>>(&mut self, ended: Ended, cx: &Context<A>) {
        self.counts.busy_seconds += ended.busy_seconds;
        if let Some(made) = ended.made {
            let source = self.counts.sources.entry(ended.name.source.0).or_default();
            source.samples += made.samples;
            source.busy_seconds += ended.busy_seconds;
            self.counts.cells += 1;
            self.counts.samples += made.samples;
            self.counts.skipped += made.skipped.len() as u64;
            self.counts.last_skipped.extend(made.skipped);
            let told = self.counts.last_skipped.len();
            let old = told.saturating_sub(SKIPPED_TOLD);
            self.counts.last_skipped.drain(..old);
            if let Some(slot) = self.cells.get_mut(&ended.name) {
                slot.bytes = Some(made.bytes);
            }
        }
        self.read_ahead(cx);
    }

    pub(super) fn counts(&self) -> LoaderCounts {
        LoaderCounts {
            held_bytes: self.held_bytes(),
            open: self.sources.len() as u64,
            ..self.counts.clone()
        }
    }

    pub(super) fn count_taken(&mut self, samples: usize) {
        self.counts.taken += samples as u64;
    }

    /// Says what is wrong with a source, by its number.
    pub(super) fn fault_of(&self) -> impl Fn(SourceNumber, String) -> LoadFault + Send + use<> {
        let args = Arc::clone(&self.args);
        move |number, detail| LoadFault {
            source_name: match args.sources.get(usize::from(number.0)) {
                Some(spec) => spec.name.clone(),
                None => number.0.to_string(),
            },
            detail,
            differs: None,
        }
    }

    fn held_bytes(&self) -> u64 {
        self.cells.values().filter_map(|slot| slot.bytes).sum()
    }

    /// Begins with what is wanted next, as long as there is room.
    fn read_ahead<A: Handler<Ended>>(&mut self, cx: &Context<A>) {
        let made = self.cells.values().filter(|slot| slot.bytes.is_some());
        let made = made.count().max(1) as u64;
        // Those under way will be about as large as the others.
        let usual = self.held_bytes() / made;
        let mut under_way = self.under_way();
        let mut next = 0;
        while let Some(name) = self.wanted.get(next).copied() {
            next += 1;
            if self.cells.contains_key(&name) {
                continue;
            }
            let held = self.held_bytes() + usual * under_way as u64;
            if under_way >= self.args.threads.max(1) || held >= self.args.bytes_max {
                break;
            }
            // Whoever wants it waits for it then.
            drop(self.make(name, cx));
            under_way += 1;
        }
    }

    fn under_way(&self) -> usize {
        let slots = self.cells.values();
        slots.filter(|slot| slot.making.peek().is_none()).count()
    }

    fn make<A: Handler<Ended>>(&mut self, name: CellName, cx: &Context<A>) -> Making {
        let (open, room) = (self.open(name.source), Arc::clone(&self.room));
        let (me, fault) = (cx.me(), self.fault_of());
        let (news, ended) = oneshot::channel();
        cx.spawn_task(async move {
            if let Ok(ended) = ended.await {
                // It is told in this life, or needs no news.
                let _ = me.tell(ended).await;
            }
        });
        // A task of no life: who waits for it is answered also when the life has ended meanwhile.
        let made = tokio::spawn(async move {
            let source = open.await?;
            let permit = room.acquire_owned().await;
            let begun = Clock::now();
            let cell = source.cell(name.epoch, name.cell).await;
            drop(permit);
            let made = cell.as_ref().ok().map(|cell| Made {
                samples: cell.samples.len() as u64,
                bytes: cell.samples.iter().map(|(_, it)| it.len() as u64).sum(),
                skipped: cell.skipped.iter().map(ToString::to_string).collect(),
            });
            let busy_seconds = Clock::now().since(begun).as_secs_f64();
            // The life that wanted it may be over.
            let _ = news.send(Ended {
                name,
                made,
                busy_seconds,
            });
            cell.map(Arc::new)
                .map_err(|error| fault(name.source, error.detail()))
        });
        let fault = self.fault_of();
        let making = async move {
            let lost = |error: tokio::task::JoinError| fault(name.source, error.to_string());
            made.await.map_err(lost)?
        };
        let making = making.boxed().shared();
        let slot = Slot {
            making: making.clone(),
            bytes: None,
        };
        self.cells.insert(name, slot);
        making
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf")
            .field("name", &self.args.name)
            .field("cells", &self.cells.len())
            .field("wanted", &self.wanted.len())
            .finish_non_exhaustive()
    }
}
