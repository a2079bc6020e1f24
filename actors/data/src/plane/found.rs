//! Findings about the sources of a plane: what is left out of them, and what their files are.

use odeon::serde::{Deserialize, Serialize};

use super::{DataPlan, DataPlane, PlaneError};
use crate::planner::CountLeftOut;
use crate::source::{FileState, LeftOut, difference};

/// The rule for a run that goes on, and whose files are not those that it has read.
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
    /// The sources whose files were others when the state was made that it goes on from, and how they
    /// differ, where the plan goes on all the same.
    #[must_use]
    pub fn changes(&self) -> &[(String, String)] {
        &self.changes
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

/// Compares the files of each source with those that the state was made with.
pub(super) fn changes<'a>(
    plan: &DataPlan,
    sources: impl Iterator<Item = (&'a String, &'a Found)>,
) -> Result<Vec<(String, String)>, PlaneError> {
    let Some(state) = &plan.state else {
        return Ok(vec![]);
    };
    let changed = sources.filter_map(|(name, found)| {
        Some((
            name.clone(),
            difference(state.files.get(name)?, &found.files)?,
        ))
    });
    let changed: Vec<(String, String)> = changed.collect();
    match (plan.changed, changed.first()) {
        (Changed::Refuse, Some((name, what))) => Err(PlaneError::Changed {
            name: name.clone(),
            what: what.clone(),
        }),
        _ => Ok(changed),
    }
}
