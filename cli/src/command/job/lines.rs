//! The lines of a job as people see them: which, with what in front, and a line that changes as one.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Write};

use anyhow::Result;
use odeon_client::types::{Job, Line, Lines};

use crate::args::LineArgs;
use crate::print;

/// Shows lines, and what is missing among them.
#[derive(Debug)]
pub(super) struct LinePrinter {
    args: LineArgs,
    /// Set where lines are shown while they come.
    follows: bool,
    /// Set where the one rank of a gang prints for the job.
    is_alone: bool,
    /// One JSON object for each line.
    json: bool,
    /// The name of the job, where lines of several are shown.
    label: Option<String>,
    /// The try of the last line.
    attempt: Option<u32>,
    /// How lines of each output stand that may be written over.
    states: BTreeMap<Output, Line>,
    /// The last lines, while those before are left out.
    last: Option<VecDeque<Line>>,
    /// Set while a line that changes stands on the terminal without its end.
    is_open: bool,
}

/// An output of a process in a try.
type Output = (u32, String, String, String);

impl LinePrinter {
    pub(super) fn new(job: &Job, args: &LineArgs, follows: bool, json: bool) -> Self {
        let is_alone = job.args.first().is_some_and(|word| word == "gang")
            && job.args.get(1).is_some_and(|ranks| ranks == "1");
        Self {
            args: args.clone(),
            follows,
            is_alone,
            json,
            label: None,
            attempt: None,
            states: BTreeMap::new(),
            last: args.tail.map(|_| VecDeque::new()),
            is_open: false,
        }
    }

    /// With the name of its job in front of each line.
    pub(super) fn of(mut self, job: &str) -> Self {
        self.label = Some(job.to_owned());
        self
    }

    /// Shows the lines of an answer that are asked for.
    pub(super) fn show(&mut self, lines: Lines) -> Result<()> {
        for line in lines.lines {
            if self.last.is_none() {
                for missing in missing_before(&line, &lines.silent) {
                    self.say(missing);
                }
            }
            self.take(line)?;
        }
        Ok(())
    }

    /// Shows what was kept back, since more may have followed. From here on lines come as they are
    /// printed.
    pub(super) fn flush(&mut self) -> Result<()> {
        for (_, line) in std::mem::take(&mut self.states) {
            self.put(line)?;
        }
        for line in self.last.take().into_iter().flatten() {
            self.write(&line)?;
        }
        self.close();
        Ok(())
    }

    fn take(&mut self, line: Line) -> Result<()> {
        if !self.is_wanted(&line) {
            return Ok(());
        }
        let output = (
            line.attempt,
            line.node.clone(),
            line.process.clone(),
            line.stream.clone(),
        );
        self.states.remove(&output);
        // Whoever looks on sees it change; else it counts as it stood at last.
        if line.changes && (!self.follows || self.last.is_some()) {
            self.states.insert(output, line);
            return Ok(());
        }
        self.put(line)
    }

    fn is_wanted(&self, line: &Line) -> bool {
        let rank = || match rank_of(&line.text) {
            Some((rank, _)) => rank.strip_prefix("rank ")?.parse().ok(),
            None if self.is_alone && line.process != DRIVER => Some(0),
            None => None,
        };
        self.args.rank.is_none_or(|wanted| rank() == Some(wanted))
            && (self.args.grep.as_ref()).is_none_or(|text| line.text.contains(text.as_str()))
    }

    fn put(&mut self, line: Line) -> Result<()> {
        let most = self.args.tail.unwrap_or(0);
        let Some(last) = &mut self.last else {
            return self.write(&line);
        };
        last.push_back(line);
        if last.len() > most {
            last.pop_front();
        }
        Ok(())
    }

    /// A line of a job goes where the job has written it.
    fn write(&mut self, line: &Line) -> Result<()> {
        if self.json {
            return Ok(print::line(serde_json::to_string(line)?)?);
        }
        let before = self.attempt.replace(line.attempt);
        if before.is_some_and(|before| before != line.attempt) {
            self.say(format!("... try {} on {} ...", line.attempt, line.node));
        }
        let mut text = match (line.process.as_str(), rank_of(&line.text)) {
            (DRIVER, _) => line.text.clone(),
            (_, Some((rank, text))) => format!("[{rank} on {}] {text}", line.node),
            (_, None) if self.is_alone => line.text.clone(),
            (process, None) => format!("[{process} on {}] {}", line.node, line.text),
        };
        if let Some(label) = &self.label {
            text = format!("[{label}] {text}");
        }
        if self.args.timestamps {
            text = format!("{} {text}", moment(line.at_ms));
        }
        let is_error = line.stream == "err";
        let on_terminal = match is_error {
            true => std::io::stderr().is_terminal(),
            false => std::io::stdout().is_terminal(),
        };
        if line.changes && self.follows && on_terminal {
            print::part(&format!("\r{text}\x1b[K"))?;
            self.is_open = true;
            return Ok(());
        }
        self.close();
        if is_error {
            let mut err = std::io::stderr().lock();
            writeln!(err, "{text}")?;
            return Ok(());
        }
        print::line(text)?;
        Ok(())
    }

    fn say(&mut self, text: String) {
        self.close();
        print::say(text);
    }

    /// Takes away how a line stands that changes: what follows says more.
    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            // A terminal that is gone is seen with the next line.
            let _ = print::part("\r\x1b[K");
        }
    }
}

/// Notes about the lines that are missing before one.
fn missing_before(line: &Line, silent: &[String]) -> Vec<String> {
    let node = &line.node;
    let mut said = vec![];
    if line.gone > 0 {
        let gone = line.gone;
        said.push(format!(
            "... {gone} lines from {node} are not kept any more ..."
        ));
    }
    if line.lost > 0 {
        let lost = line.lost;
        said.push(match silent {
            [] => format!("... {lost} lines from {node} lost ..."),
            silent => {
                let silent = silent.join(", ");
                format!("... {lost} lines from {node} lost, unless {silent} has them, which does not answer ...")
            }
        });
    }
    said
}

/// The rank that a line of a gang begins with, and what follows.
fn rank_of(text: &str) -> Option<(&str, &str)> {
    let (rank, text) = text.strip_prefix('[')?.split_once("] ")?;
    let number = rank.strip_prefix("rank ")?;
    number.parse::<u32>().ok()?;
    Some((rank, text))
}

/// A moment with its thousandths: lines of one second are apart by them.
fn moment(at_ms: u64) -> String {
    format!("{}.{:03}", odeon_cluster::unix::Unix(at_ms), at_ms % 1000)
}

/// The name of the driver of a job among its processes.
const DRIVER: &str = "driver";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_rank_says_which_and_others_do_not() {
        assert_eq!(rank_of("[rank 12] step 3"), Some(("rank 12", "step 3")));
        for text in [
            "step",
            "[rank] x",
            "[rank x] y",
            "[a] rank 1] x",
            "[rank 1]",
        ] {
            assert_eq!(rank_of(text), None, "{text}");
        }
    }
}
