//! Reading sources through without actors: what a run would have of them, and what is odd.

use crate::loader::LoadFault;
use crate::plan::{CellMeta, CellName, Heard, Planning, SourceShape, Waiting};
use crate::plane::{DataPlan, PlaneError};
use crate::sample::{Sample, SourceNumber};
use crate::source::{LeftOut, OnBad, Opening, Source, SourceError, SourceSpec};

/// The findings about a source that was read through once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// Its files that are read.
    pub files: u32,
    /// Its records, those that are left out too.
    pub records: u64,
    /// The samples that they become.
    pub samples: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Those of them that are learnt to be said.
    pub predicted: u64,
    /// The account of what is left out.
    pub left_out: LeftOut,
    /// Why a run would end with it, if it would.
    pub refused: Option<String>,
}

impl Examined {
    /// Returns true where something cannot be read, or is left out that its source has as a record.
    #[must_use]
    pub fn is_odd(&self) -> bool {
        let LeftOut { files, records, .. } = self.left_out;
        files > 0 || records > 0 || self.refused.is_some()
    }
}

/// Reads a source through, in the order of its files, and shows each sample to `each`.
///
/// # Errors
/// [`SourceError`] where it cannot be opened at all. That a run would end with it is no error.
pub async fn examine(
    spec: &SourceSpec,
    opening: &Opening,
    mut each: impl FnMut(&Sample),
) -> Result<Examined, SourceError> {
    let lenient = SourceSpec {
        on_bad: OnBad::Skip,
        bad_part: 1.0,
        order: crate::source::Order::Kept,
        ..spec.clone()
    };
    let source = Source::open(SourceNumber(0), &lenient, opening).await?;
    let mut found = Examined {
        files: source.files(),
        left_out: source.left_out().clone(),
        refused: source.check_records().err().map(|error| error.to_string()),
        ..Examined::default()
    };
    for cell in 0..source.cells() {
        let cell = source.cell(0, cell).await?;
        let own = cell.left_out();
        if found.refused.is_none() {
            found.refused = refusal(spec, cell.records, &own);
        }
        found.records += u64::from(cell.records);
        found.left_out.add(&own);
        for (_, bytes) in &cell.samples {
            // A source has encoded it itself.
            let Ok(sample) = Sample::decode(bytes) else {
                continue;
            };
            found.samples += 1;
            found.tokens += sample.tokens.len() as u64;
            found.predicted += u64::from(sample.predicted());
            each(&sample);
        }
    }
    if spec.on_bad == OnBad::Fail
        && let Some(bad) = found.left_out.first_bad()
    {
        found.refused = Some(format!("on_bad is \"fail\", and {bad}"));
    }
    if found.samples == 0 && found.refused.is_none() {
        let first = found.left_out.first.first().map(ToString::to_string);
        found.refused = Some(format!(
            "it has no samples{}",
            first.map(|first| format!(": {first}")).unwrap_or_default()
        ));
    }
    Ok(found)
}

/// Why a run ends with a cell that has so much left out, if it does.
fn refusal(spec: &SourceSpec, records: u32, left_out: &LeftOut) -> Option<String> {
    let allowed = spec.bad_allowed(records);
    let first = left_out.first_bad()?;
    (left_out.bad > u64::from(allowed)).then(|| {
        format!(
            "{} of {records} records of a cell are bad, and `bad_records` and `bad_part` allow \
             {allowed}; the first: {first}",
            left_out.bad
        )
    })
}

/// Plans a run's steps as its planner would, and reads for it. Gives how many steps there are where the
/// sources end before so many.
///
/// # Errors
/// A source cannot be read, or the plan not be carried out with it.
pub async fn steps(
    plan: &DataPlan,
    opening: &Opening,
    wanted: u64,
) -> Result<Option<u64>, PlaneError> {
    let mut sources = Vec::new();
    for (number, spec) in (0..).zip(&plan.sources) {
        let source = Source::open(SourceNumber(number), spec, opening).await;
        let source = source.and_then(|source| source.check_records().map(|()| source));
        sources.push(source.map_err(|error| fault(spec, &error))?);
    }
    let shapes: Vec<SourceShape> = sources
        .iter()
        .map(|source| SourceShape {
            name: source.spec().name.clone(),
            cells: source.cells(),
        })
        .collect();
    let mut planning = Planning::new(plan.spec.clone(), &shapes, plan.mesh.clone())?;
    let repeats = |shape: &SourceShape| {
        let mixed = plan.spec.mixture.sources.get(&shape.name);
        mixed.is_some_and(|mixed| mixed.epochs.is_none())
    };
    // What repeats never ends; a few steps show that something comes of it at all.
    let wanted = match shapes.iter().any(repeats) {
        true => wanted.min(1),
        false => wanted,
    };
    while planning.step() < wanted {
        let name = match planning.plan() {
            Ok(_) => continue,
            Err(Waiting::Cell(name)) => name,
            Err(Waiting::Ended { steps }) => return Ok(Some(steps)),
            Err(Waiting::Barren(source)) => {
                let spec = &plan.sources[usize::from(source.0)];
                return Err(barren(spec, opening).await);
            }
        };
        let heard = planning.hear(described(&sources, name).await?);
        if !matches!(heard, Ok(Heard::New | Heard::Known)) {
            break;
        }
    }
    Ok(None)
}

async fn described(sources: &[Source], name: CellName) -> Result<CellMeta, PlaneError> {
    let source = &sources[usize::from(name.source.0)];
    let cell = source.cell(name.epoch, name.cell).await;
    let cell = cell.map_err(|error| fault(source.spec(), &error))?;
    let samples = cell.samples.iter().map(|(meta, _)| meta.clone());
    Ok(CellMeta::of(name, samples.collect()))
}

async fn barren(spec: &SourceSpec, opening: &Opening) -> PlaneError {
    let why = match examine(spec, opening, |_| {}).await {
        Ok(found) => found.refused.unwrap_or_default(),
        Err(error) => error.detail(),
    };
    PlaneError::Source(LoadFault {
        source_name: spec.name.clone(),
        detail: why,
        differs: None,
    })
}

fn fault(spec: &SourceSpec, error: &SourceError) -> PlaneError {
    PlaneError::Source(LoadFault {
        source_name: spec.name.clone(),
        detail: error.detail(),
        differs: None,
    })
}
