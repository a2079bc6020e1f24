//! Loaders: read cells of sources ahead of need, say what is in them, and hand samples out.
//!
//! ```text
//!  Planner ── Hold: these cells, in this order ──> SourceLoader   reads while there is room
//!          ── Describe: one cell ───────────────>                 answers when it is read
//!  DataConstructor ── Take: these samples ──────>                 one blob with their bytes
//! ```
//!
//! A loader decides nothing and has no cursor: which cells it should have is said to it as a whole,
//! again and again, and a cell is made from its source alone. So nothing has to be saved of a loader,
//! any loader can take over the cells of any other from one moment to the next, and a sample that was
//! handed out once can be had once more from whoever is there.
//!
//! A [`ShadowLoader`] is told to hold what others hold that is needed next, and is asked when they do
//! not answer in time.

mod shelf;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, BlobError, Blobs, Clock, Context, Failure, Handler, Later, actor, message};
use odeon_algorithms::tokenizer::Tokenizer;

use self::shelf::{Ended, Shelf};
use crate::plan::{CellMeta, CellName};
use crate::sample::{SampleId, SourceNumber};
use crate::source::{Cell, FileState, LeftOut, SourceSpec};

/// The arguments of a loader.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct LoaderArgs {
    /// The name of it for people.
    pub name: String,
    /// All sources of the run, by their numbers. One is opened when a cell of it is first wanted.
    pub sources: Vec<SourceSpec>,
    /// JSON of each of them as it was before more came, as far as it was read before: a list of `Earlier`,
    /// which names all files; none where nothing was read before.
    pub earlier: Option<Blob>,
    /// Hashes of these sources when the run began, so that a source is not another one for whoever
    /// opens it later. Nobody knows them yet while sources are surveyed.
    pub identities: Vec<[u8; 32]>,
    /// The tokenizer of text.
    pub tokenizer: Tokenizer,
    /// Where indices are kept, and what files unpack to.
    pub cache: PathBuf,
    /// Bytes of samples that are read ahead. What somebody waits for is read all the same.
    pub bytes_max: u64,
    /// Cells that are made at a time.
    pub threads: usize,
}

/// Why a loader has no cell to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape, thiserror::Error)]
#[serde(crate = "odeon::serde")]
#[error("source `{source_name}`: {detail}")]
pub struct LoadFault {
    /// The source.
    pub source_name: String,
    /// The fault: the file, the place in it, and what to do.
    pub detail: String,
    /// Set where what was read of the source before is not there any more: how it differs.
    pub differs: Option<String>,
}

/// The cells that a loader should have, those that are needed first at the front. It drops all
/// others. Told as often as that changes, and again: it is the whole truth each time.
#[message(name = "data.Hold")]
#[derive(Clone, Debug)]
pub struct Hold {
    /// The cells.
    pub cells: Vec<CellName>,
}

/// Asks for the number of cells and the identity of a source.
#[message(reply = Result<Surveyed, LoadFault>, name = "data.Survey")]
#[derive(Clone, Debug)]
pub struct Survey {
    /// Which source.
    pub source: SourceNumber,
    /// Looks at it as if nothing was read of it before.
    pub anew: bool,
}

/// See [`Survey`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Surveyed {
    /// Cells of each pass over it.
    pub cells: u32,
    /// Those of them that there were before more came.
    pub cells_before: u32,
    /// A hash of what is in it, as far as sizes and indices tell.
    pub identity: [u8; 32],
    /// Files of it, and ends of files, that are not read.
    pub left_out: LeftOut,
    /// Its files as they are now.
    pub files: Vec<FileState>,
}

/// Asks for the time and memory that a source takes, measured with its first cell.
#[message(reply = Result<Measured, LoadFault>, name = "data.Measure")]
#[derive(Clone, Debug)]
pub struct Measure {
    /// Which source.
    pub source: SourceNumber,
}

/// See [`Measure`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Measured {
    /// The samples in the cell.
    pub cell: CellMeta,
    /// Seconds of a thread that making it took.
    pub busy_seconds: f64,
    /// Bytes that whoever has the source open holds.
    pub memory_fixed: u64,
    /// Bytes that it holds for a cell under way: its blocks and its samples.
    pub memory_per_thread: u64,
}

/// Asks for the samples in a cell. Answered when the cell is read.
#[message(reply = Result<CellMeta, LoadFault>, name = "data.Describe")]
#[derive(Clone, Debug)]
pub struct Describe {
    /// Which.
    pub cell: CellName,
}

/// Samples, in the order in which they are asked for.
#[message(reply = Result<Taken, LoadFault>, name = "data.Take")]
#[derive(Clone, Debug)]
pub struct Take {
    /// Which.
    pub samples: Vec<SampleId>,
}

/// See [`Take`].
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Taken {
    /// The samples, one after the other, as `Sample` encodes them.
    pub bytes: Blob,
    /// Bytes of each sample.
    pub lengths: Vec<u32>,
}

/// Asks for the counts of a loader since it started, and for what it holds now.
#[message(reply = LoaderCounts, name = "data.CountLoaded")]
#[derive(Clone, Debug)]
pub struct CountLoaded;

/// See [`CountLoaded`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct LoaderCounts {
    /// Cells that were made.
    pub cells: u64,
    /// Samples in them.
    pub samples: u64,
    /// Records that were left out, as the policy of their source allows.
    pub skipped: u64,
    /// The last few of these: file, place and reason.
    pub last_skipped: Vec<String>,
    /// Bytes of samples that it holds.
    pub held_bytes: u64,
    /// Samples that were handed out.
    pub taken: u64,
    /// Seconds of work that making cells took, over all threads.
    pub busy_seconds: f64,
    /// Sources that it has open.
    pub open: u64,
    /// The work of making cells of each source, by its number.
    pub sources: BTreeMap<u16, SourceWork>,
}

/// The work of making cells of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct SourceWork {
    /// Samples in these cells.
    pub samples: u64,
    /// Seconds of a thread.
    pub busy_seconds: f64,
}

/// The actor that reads cells of sources and hands out their samples.
#[derive(Debug)]
pub struct SourceLoader {
    shelf: Shelf,
    blobs: Blobs,
}

#[actor(name = "data.SourceLoader")]
impl SourceLoader {
    async fn start(args: LoaderArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            shelf: Shelf::new(args),
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Hold)]
    fn hold(&mut self, hold: Hold, cx: &mut Context<Self>) {
        self.shelf.hold(hold.cells, cx);
    }

    #[handler(message = Survey)]
    fn survey(&mut self, survey: Survey) -> Later<Result<Surveyed, LoadFault>> {
        survey_of(&mut self.shelf, &survey)
    }

    #[handler(message = Measure)]
    fn measure(&mut self, measure: Measure) -> Later<Result<Measured, LoadFault>> {
        measured(&mut self.shelf, &measure)
    }

    #[handler(message = Describe)]
    fn describe(
        &mut self,
        describe: Describe,
        cx: &mut Context<Self>,
    ) -> Later<Result<CellMeta, LoadFault>> {
        description(&mut self.shelf, &describe, cx)
    }

    #[handler(message = Take)]
    fn take(&mut self, take: Take, cx: &mut Context<Self>) -> Later<Result<Taken, LoadFault>> {
        taken(&mut self.shelf, &self.blobs, take, cx)
    }

    #[handler(message = Ended)]
    fn ended(&mut self, ended: Ended, cx: &mut Context<Self>) {
        self.shelf.ended(ended, cx);
    }

    #[handler(message = CountLoaded)]
    fn count(&mut self, _count: CountLoaded) -> LoaderCounts {
        self.shelf.counts()
    }
}

/// A loader that stands in for others. See the module.
#[derive(Debug)]
pub struct ShadowLoader {
    shelf: Shelf,
    blobs: Blobs,
}

#[actor(name = "data.ShadowLoader")]
impl ShadowLoader {
    async fn start(args: LoaderArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            shelf: Shelf::new(args),
            blobs: cx.blobs(),
        })
    }

    #[handler(message = Hold)]
    fn hold(&mut self, hold: Hold, cx: &mut Context<Self>) {
        self.shelf.hold(hold.cells, cx);
    }

    #[handler(message = Describe)]
    fn describe(
        &mut self,
        describe: Describe,
        cx: &mut Context<Self>,
    ) -> Later<Result<CellMeta, LoadFault>> {
        description(&mut self.shelf, &describe, cx)
    }

    #[handler(message = Take)]
    fn take(&mut self, take: Take, cx: &mut Context<Self>) -> Later<Result<Taken, LoadFault>> {
        taken(&mut self.shelf, &self.blobs, take, cx)
    }

    #[handler(message = Ended)]
    fn ended(&mut self, ended: Ended, cx: &mut Context<Self>) {
        self.shelf.ended(ended, cx);
    }

    #[handler(message = CountLoaded)]
    fn count(&mut self, _count: CountLoaded) -> LoaderCounts {
        self.shelf.counts()
    }
}

fn survey_of(shelf: &mut Shelf, survey: &Survey) -> Later<Result<Surveyed, LoadFault>> {
    let number = survey.source;
    if survey.anew {
        shelf.forget(number);
    }
    let (open, fault) = (shelf.open(number), shelf.fault_of());
    Later::new(async move {
        let source = open.await?;
        let checked = source.check_records();
        checked.map_err(|error| fault(number, error.to_string()))?;
        Ok(Surveyed {
            cells: source.cells(),
            cells_before: source.cells_before(),
            identity: source.identity(),
            left_out: source.left_out().clone(),
            files: source.file_states(),
        })
    })
}

/// The first time is of opening files and finding out how large things are; the second is measured.
fn measured(shelf: &mut Shelf, measure: &Measure) -> Later<Result<Measured, LoadFault>> {
    let name = CellName {
        source: measure.source,
        epoch: 0,
        cell: 0,
    };
    let (open, fault) = (shelf.open(name.source), shelf.fault_of());
    Later::new(async move {
        let source = open.await?;
        let make = async || {
            let cell = source.cell(name.epoch, name.cell).await;
            cell.map_err(|error| fault(name.source, error.to_string()))
        };
        make().await?;
        let begun = Clock::now();
        let cell = make().await?;
        let busy_seconds = Clock::now().since(begun).as_secs_f64();
        let bytes: u64 = cell.samples.iter().map(|(_, it)| it.len() as u64).sum();
        let spec = source.spec();
        let blocks = u64::from(spec.cell_blocks) * spec.block_bytes;
        Ok(Measured {
            cell: described(name, &cell),
            busy_seconds,
            memory_fixed: source.memory() as u64,
            memory_per_thread: bytes + blocks,
        })
    })
}

/// The part of a cell that a planner sees.
fn described(name: CellName, cell: &Cell) -> CellMeta {
    let samples = cell.samples.iter().map(|(meta, _)| meta.clone());
    CellMeta {
        left_out: cell.left_out(),
        ..CellMeta::of(name, samples.collect())
    }
}

fn description<A: Handler<Ended>>(
    shelf: &mut Shelf,
    describe: &Describe,
    cx: &Context<A>,
) -> Later<Result<CellMeta, LoadFault>> {
    let name = describe.cell;
    let made = shelf.cell(name, cx);
    Later::new(async move {
        let cell = made.await?;
        Ok(described(name, &cell))
    })
}

fn taken<A: Handler<Ended>>(
    shelf: &mut Shelf,
    blobs: &Blobs,
    take: Take,
    cx: &Context<A>,
) -> Later<Result<Taken, LoadFault>> {
    let mut cells = vec![];
    for id in &take.samples {
        let name = CellName::of(*id);
        // Samples of a cell come one after the other, as a rule.
        if cells.last().is_none_or(|(last, _)| *last != name) {
            cells.push((name, shelf.cell(name, cx)));
        }
    }
    shelf.count_taken(take.samples.len());
    let (blobs, lacks) = (blobs.clone(), shelf.fault_of());
    Later::new(async move {
        let mut made: Vec<(CellName, Arc<Cell>)> = vec![];
        for (name, cell) in cells {
            made.push((name, cell.await?));
        }
        let mut bytes = vec![];
        let mut at = 0;
        for id in &take.samples {
            while made[at].0 != CellName::of(*id) {
                at += 1;
            }
            let sample = made[at].1.samples.get(id.nth as usize);
            let Some((_, sample)) = sample else {
                let has = made[at].1.samples.len();
                return Err(lacks(
                    id.source,
                    format!("{id:?} was asked for, and its cell has {has} samples"),
                ));
            };
            bytes.push(sample.clone());
        }
        let lengths: Vec<u32> = bytes.iter().map(|sample| sample.len() as u32).collect();
        let unkept = |error: BlobError| lacks(SourceNumber(0), format!("no memory: {error}"));
        let total = bytes.iter().map(Bytes::len).sum();
        let mut writer = blobs.writer(total).map_err(unkept)?;
        let mut begin = 0;
        for sample in &bytes {
            writer[begin..begin + sample.len()].copy_from_slice(sample);
            begin += sample.len();
        }
        Ok(Taken {
            bytes: writer.seal(),
            lengths,
        })
    })
}
