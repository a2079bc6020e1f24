//! Nodes that nothing is placed on until a person or a passed check lets them back.

use serde::{Deserialize, Serialize};

use super::Tables;
use crate::fact::{Refusal, RefusalKind};
use crate::reason::reason;
use crate::unix::Unix;

/// The reason why nothing is placed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBan {
    /// The fault of it, in words.
    pub why: String,
    /// Whoever wants that: a person, or a job whose ranks left it.
    pub by: String,
    /// Since when.
    pub since: Unix,
    /// Faults that a check of it has found, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The changes of nodes before it was said last: another number when somebody refuses the node anew.
    #[serde(default)]
    pub number: u64,
}

impl NodeBan {
    /// The begin of the name of a job among those who have nodes refused.
    pub(crate) const BY_JOB: &str = "job ";

    /// Returns true where a job has left it.
    #[must_use]
    pub fn is_by_job(&self) -> bool {
        self.by.starts_with(Self::BY_JOB)
    }

    /// The reason in words, with what a check has found.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.found {
            Some(found) => format!("{}; its check has found {found}", self.why),
            None => self.why.clone(),
        }
    }
}

/// The begins of the news of a node that is refused, and of one that is let back.
pub const REFUSED: &str = "refused";
/// See [`REFUSED`]: of one that a check has found something wrong with.
pub const CHECKED: &str = "checked";
/// See [`REFUSED`].
pub const LET_BACK: &str = "let back";

impl Tables {
    /// Nothing is placed on a node from now on. What runs there goes on. Of one that is refused already only people may
    /// say something else.
    pub(super) fn refuse_node(
        &mut self,
        node: String,
        why: &str,
        by: String,
    ) -> Result<(), Refusal> {
        let why = reason(why);
        if why.is_empty() {
            let why = format!("node `{node}` is not refused without a reason: give one");
            return Err(Refusal::new(RefusalKind::Invalid, why));
        }
        let (since, number) = (self.now, self.nodes_version);
        let row = self.node(&node)?;
        if let Some(ban) = row
            .refused
            .as_ref()
            .filter(|_| by.starts_with(NodeBan::BY_JOB))
        {
            let why = format!(
                "node `{node}` is refused already, by {}: {}",
                ban.by, ban.why
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        let is_new = row.refused.is_none();
        row.refusals += u32::from(is_new);
        let said = format!("{REFUSED} by {by}: {why}");
        let known = row.refused.take();
        row.refused = Some(NodeBan {
            why,
            by,
            since: known.as_ref().map_or(since, |known| known.since),
            found: known.and_then(|known| known.found),
            number,
        });
        self.changed(&node);
        self.note(node, said);
        Ok(())
    }

    /// A check has found something wrong with a node. Of one that is not refused that is told, and nothing follows.
    pub(super) fn checked(
        &mut self,
        node: String,
        found: String,
        by: &str,
        of: Option<u64>,
    ) -> Result<(), Refusal> {
        self.still_of(&node, of)?;
        let said = format!("checked by {by}: {found}");
        if let Some(ban) = &mut self.node(&node)?.refused {
            ban.found = Some(found);
        }
        self.changed(&node);
        self.note(node, said);
        Ok(())
    }

    /// Refuses what a check says of a node that was refused anew, or let back, since the check began.
    pub(super) fn still_of(&mut self, node: &str, of: Option<u64>) -> Result<(), Refusal> {
        let ban = self.node(node)?.refused.as_ref();
        let now = ban.map(|ban| ban.number);
        let Some(of) = of.filter(|of| Some(*of) != now) else {
            return Ok(());
        };
        let what = match ban {
            Some(ban) => format!("was refused anew meanwhile, by {}: {}", ban.by, ban.why),
            None => "was let back meanwhile".to_owned(),
        };
        let why = format!("node `{node}` {what} (the check was of refusal {of}): check it again");
        Err(Refusal::new(RefusalKind::Conflict, why))
    }

    /// A node that was refused may get work again. A check that it has `passed` says that nothing was wrong with it.
    pub(super) fn let_back(
        &mut self,
        node: String,
        why: &str,
        by: &str,
        passed: bool,
    ) -> Result<(), Refusal> {
        let now = self.now;
        let row = self.node(&node)?;
        if row.refused.take().is_none() {
            let why = format!("node `{node}` is not refused");
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        row.let_back = Some(now);
        row.over_refusals += u32::from(passed);
        self.changed(&node);
        let because = match reason(why) {
            why if why.is_empty() => why,
            why => format!(": {why}"),
        };
        self.note(node, format!("{LET_BACK} by {by}{because}"));
        Ok(())
    }
}
