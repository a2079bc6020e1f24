//! Findings about the sources of a plane: what is left out of them, and what their files are.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Ref, System};

use super::{DataPlan, DataPlane, PlaneError};
use crate::loader::{LoadFault, Measure, Measured, SourceLoader, Survey};
use crate::plan::{PlanState, SourceShape};
use crate::planner::CountLeftOut;
use crate::sample::SourceNumber;
use crate::source::{Earlier, FileState, LeftOut, difference};

/// The rule for a run that goes on, and whose files are not those that it has read. Where all of these
/// are there and more, it goes on with the new behind them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", rename_all = "snake_case")]
pub enum Changed {
    /// It is refused, and what differs is said.
    #[default]
    Refuse,
    /// It goes on at the same place of another order: what was read may come again, or never.
    GoOn,
}

/// The findings about a source since it was opened.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) left_out: LeftOut,
    pub(super) files: Vec<FileState>,
    /// As it was each time before more came.
    pub(super) earlier: Vec<Earlier>,
    /// What has come, or differs, since the state was made that the plane goes on from.
    change: Option<SourceChange>,
}

/// The change of a source since the state was made that a plane goes on from: how its files differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// All that was read is there, and more, which is read behind it.
    Grown(String),
    /// It is another: what was read may come again, or never.
    Other(String),
}

/// A source, and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLeftOut {
    /// Its name.
    pub source: String,
    /// The account, from its opening on.
    pub left_out: LeftOut,
}

impl DataPlane {
    /// The sources whose files are others than when the state was made that it goes on from, by name.
    pub fn changes(&self) -> impl Iterator<Item = (&str, &SourceChange)> {
        let sources = self.plan.sources.iter().zip(&self.found);
        sources.filter_map(|(source, found)| Some((source.name.as_str(), found.change.as_ref()?)))
    }

    /// The sources as they were before more came, by their names.
    #[must_use]
    pub fn earlier(&self) -> BTreeMap<String, Vec<Earlier>> {
        let sources = self.plan.sources.iter().zip(&self.found);
        let grown = sources.filter(|(_, found)| !found.earlier.is_empty());
        grown
            .map(|(source, found)| (source.name.clone(), found.earlier.clone()))
            .collect()
    }

    /// The account of each source of which something was left out, as far as sources were read.
    ///
    /// # Errors
    /// The planner does not answer.
    #[odeon::boxed]
    pub async fn left_out(&self) -> Result<Vec<SourceLeftOut>, PlaneError> {
        let records = self.planner.ask(CountLeftOut).await?;
        let sources = self.plan.sources.iter().zip(&self.found).zip(records);
        let all = sources.map(|((source, found), records)| {
            let mut left_out = found.left_out.clone();
            left_out.add(&records);
            SourceLeftOut {
                source: source.name.clone(),
                left_out,
            }
        });
        Ok(all.filter(|it| !it.left_out.is_empty()).collect())
    }

    /// The same, for sources of which much more was left out since this was asked last: twice as much,
    /// or anything `at_end`. Nothing where the planner is being made again.
    #[odeon::boxed]
    pub async fn left_out_news(&mut self, at_end: bool) -> Vec<SourceLeftOut> {
        let Ok(all) = self.left_out().await else {
            return vec![];
        };
        let names: Vec<&String> = self.plan.sources.iter().map(|it| &it.name).collect();
        let told = &mut self.told;
        let news = all.into_iter().filter(|it| {
            let Some(at) = names.iter().position(|name| **name == it.source) else {
                return false;
            };
            let count = it.left_out.files + it.left_out.others + it.left_out.records;
            let is_news = count >= 2 * told[at].max(1) - 1 || at_end;
            let is_news = is_news && count > told[at];
            if is_news {
                told[at] = count;
            }
            is_news
        });
        news.collect()
    }
}

/// The findings about a source, for who begins to read it.
pub(super) struct Surveyed {
    pub(super) shape: SourceShape,
    /// The cells of it that there were before more came.
    cells_before: u32,
    pub(super) identity: [u8; 32],
    pub(super) found: Found,
    /// Where loaders follow from it.
    pub(super) measured: Option<Measured>,
}

/// The most actors that look at sources before there are loaders.
const SURVEYORS_MAX: usize = 4;

/// Sources are listed, and their files read once, when a run is begun for the first time.
const SURVEY: Duration = Duration::from_secs(1800);

/// Has loaders open the sources, and ends them: what they have found is kept on disk, and those that
/// follow are told what the sources are.
pub(super) async fn survey(system: &System, plan: &DataPlan) -> Result<Vec<Surveyed>, PlaneError> {
    let earlier = plan.sources.iter();
    let earlier: Vec<Vec<Earlier>> = earlier
        .map(|source| plan.earlier_of(&source.name))
        .collect();
    let args = plan.loader_args(system, &earlier, vec![])?;
    let mut surveyors = vec![];
    for nth in 0..plan.sources.len().min(SURVEYORS_MAX) {
        let name = format!("surveyor-{nth}");
        surveyors.push(plan.spawn::<SourceLoader>(system, &args, name).await?);
    }
    let asked = (0..).zip(&earlier).map(async |(nth, earlier)| {
        let surveyor = surveyors[usize::from(nth) % surveyors.len()];
        plan.survey(SourceNumber(nth), earlier, surveyor).await
    });
    let surveyed = futures::future::try_join_all(asked).await;
    for surveyor in surveyors {
        // One that is gone has ended already.
        let _ = surveyor.stop().await;
    }
    surveyed
}

impl DataPlan {
    /// A source as it was each time before more came: with what it was when the state was made as the
    /// last, behind which something may have come since.
    fn earlier_of(&self, name: &str) -> Vec<Earlier> {
        let Some(state) = &self.state else {
            return self.earlier.get(name).cloned().unwrap_or_default();
        };
        let Some(files) = state.files.get(name).filter(|files| !files.is_empty()) else {
            return vec![];
        };
        let mut earlier = state.earlier.get(name).cloned().unwrap_or_default();
        let own = state.sources.iter().find(|source| source.name == name);
        earlier.push(Earlier {
            files: files.clone(),
            // Between two passes, what comes is the end of the one before.
            until: own.map_or(0, |own| own.epoch - u32::from(own.is_between_passes())),
        });
        earlier
    }

    async fn survey(
        &self,
        source: SourceNumber,
        earlier: &[Earlier],
        surveyor: Ref<SourceLoader>,
    ) -> Result<Surveyed, PlaneError> {
        let name = &self.sources[usize::from(source.0)].name;
        let asked = async |anew| surveyor.ask(Survey { source, anew }).timeout(SURVEY).await;
        let mut earlier = earlier.to_vec();
        let (surveyed, change) = match asked(false).await? {
            Ok(surveyed) => {
                let last = earlier.last().filter(|_| self.state.is_some());
                let what = last.and_then(|last| difference(&last.files, &surveyed.files));
                if last.is_some() && what.is_none() {
                    earlier.pop();
                }
                (surveyed, what.map(SourceChange::Grown))
            }
            Err(LoadFault {
                differs: Some(what),
                ..
            }) => match self.changed {
                Changed::Refuse => {
                    let name = name.clone();
                    return Err(PlaneError::Changed { name, what });
                }
                Changed::GoOn => {
                    earlier.clear();
                    (asked(true).await??, Some(SourceChange::Other(what)))
                }
            },
            Err(fault) => return Err(fault.into()),
        };
        let measured = match self.loaders.sources {
            None if surveyed.cells > 0 => {
                let measure = surveyor.ask(Measure { source }).timeout(SURVEY);
                Some(measure.await??)
            }
            _ => None,
        };
        Ok(Surveyed {
            shape: SourceShape {
                name: name.clone(),
                cells: surveyed.cells,
            },
            cells_before: surveyed.cells_before,
            identity: surveyed.identity,
            found: Found {
                left_out: surveyed.left_out,
                files: surveyed.files,
                earlier,
                change,
            },
            measured,
        })
    }
}

/// The state with which sources go on to which something came: one that stands between two passes reads
/// what came as the end of the one before. One that is another and has no cell where it stands begins its
/// next pass.
pub(super) fn take_up(mut state: PlanState, surveyed: &[Surveyed]) -> PlanState {
    for (own, surveyed) in state.sources.iter_mut().zip(surveyed) {
        let is_other = matches!(surveyed.found.change, Some(SourceChange::Other(_)));
        if is_other {
            // Samples that wait are of what was there; and so may its place be.
            own.waiting.clear();
            if own.cell >= surveyed.shape.cells {
                (own.epoch, own.cell, own.nth, own.any) = (own.epoch + 1, 0, 0, false);
            }
        }
        let has_grown = matches!(surveyed.found.change, Some(SourceChange::Grown(_)));
        if has_grown && own.is_between_passes() && surveyed.cells_before < surveyed.shape.cells {
            own.epoch -= 1;
            own.cell = surveyed.cells_before;
            own.any = true;
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SourceState;

    /// SEMANTICS 125.
    #[test]
    fn a_place_that_is_not_there_any_more_is_the_begin_of_the_next_pass() {
        let taken_up = |place: (u32, u32, u32), cells: (u32, u32), change| {
            let shape = SourceShape {
                name: "own".to_owned(),
                cells: cells.1,
            };
            let own = SourceState {
                epoch: place.0,
                cell: place.1,
                nth: place.2,
                ..SourceState::first(&shape)
            };
            let state = PlanState {
                step: 7,
                sources: vec![own],
                contexts: vec![],
                files: BTreeMap::new(),
                earlier: BTreeMap::new(),
            };
            let surveyed = Surveyed {
                shape,
                cells_before: cells.0,
                identity: [0; 32],
                found: Found {
                    left_out: LeftOut::default(),
                    files: vec![],
                    earlier: vec![],
                    change,
                },
                measured: None,
            };
            let own = take_up(state, &[surveyed]).sources.remove(0);
            (own.epoch, own.cell, own.nth)
        };
        let grown = || Some(SourceChange::Grown(String::new()));
        let other = || Some(SourceChange::Other(String::new()));
        // Between two passes, what came is the end of the one before.
        assert_eq!(taken_up((2, 0, 0), (5, 8), grown()), (1, 5, 0));
        assert_eq!(taken_up((2, 0, 3), (5, 8), grown()), (2, 0, 3));
        assert_eq!(taken_up((2, 0, 0), (5, 5), grown()), (2, 0, 0));
        assert_eq!(taken_up((0, 0, 0), (5, 8), grown()), (0, 0, 0));
        assert_eq!(taken_up((1, 4, 9), (1, 1), other()), (2, 0, 0));
        assert_eq!(taken_up((1, 0, 9), (1, 1), other()), (1, 0, 9));
        assert_eq!(taken_up((2, 0, 0), (5, 5), None), (2, 0, 0));
    }
}
