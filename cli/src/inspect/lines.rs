//! The last lines of a log that are asked for, and the place before which others lie.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use odeon_client::inspect as told;

/// Which lines are asked for.
pub(super) struct LinesOf<'a> {
    /// Those of this job; all of a program that is alone.
    pub(super) job: &'a str,
    /// Only the lines of this process of it, where one is chosen: its number, and its node where
    /// that is needed to tell it from others.
    pub(super) process: Option<(&'a str, &'a str)>,
    /// Those before this one.
    pub(super) before: Before,
    /// No more than these.
    pub(super) limit: usize,
}

/// A line: how many of its moment come before it. Many lines may have one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Before {
    pub(super) at: f64,
    number: u64,
}

impl Before {
    /// Behind all lines.
    pub(super) const END: Self = Self {
        at: f64::INFINITY,
        number: 0,
    };
}

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.at, self.number)
    }
}

impl FromStr for Before {
    type Err = String;

    /// A moment in milliseconds since 1970, or what an answer has said.
    fn from_str(text: &str) -> Result<Self, String> {
        let (at, number) = text.split_once(':').unwrap_or((text, "0"));
        let read = at.parse().ok().zip(number.parse().ok());
        let (at, number) = read.ok_or_else(|| {
            format!(
                "before={text} is no place in a log: take `earlier` of an answer, or milliseconds \
                 since 1970"
            )
        })?;
        Ok(Self { at, number })
    }
}

/// The last lines that are asked for, of those that come by.
pub(super) struct Last<'a> {
    of: &'a LinesOf<'a>,
    /// Each with how many of its moment come before it.
    lines: VecDeque<(u64, told::LogLine)>,
    /// The present moment, and how many lines it has had.
    moment: (f64, u64),
    pub(super) more: bool,
}

impl<'a> Last<'a> {
    pub(super) const fn new(of: &'a LinesOf<'a>) -> Self {
        Self {
            of,
            lines: VecDeque::new(),
            moment: (f64::NEG_INFINITY, 0),
            more: false,
        }
    }

    /// In their order.
    pub(super) fn add(&mut self, lines: impl IntoIterator<Item = told::LogLine>) {
        let of = self.of;
        let by = |line: &told::LogLine| {
            of.process.is_none_or(|(process, node)| {
                let here = line.node.is_empty() || line.node == node;
                line.process == process && here
            })
        };
        for line in lines.into_iter().filter(by) {
            let number = match line.at <= self.moment.0 {
                true => self.moment.1 + 1,
                false => 0,
            };
            self.moment = (line.at, number);
            let earlier =
                line.at < of.before.at || line.at == of.before.at && number < of.before.number;
            if !earlier {
                continue;
            }
            if self.lines.len() == of.limit {
                self.lines.pop_front();
                self.more = true;
            }
            self.lines.push_back((number, line));
        }
    }

    pub(super) fn logs(self) -> told::Logs {
        let first = self.lines.front().filter(|_| self.more);
        let earlier = first.map(|(number, line)| Before {
            at: line.at,
            number: *number,
        });
        told::Logs {
            earlier: earlier.map(|it| it.to_string()),
            lines: self.lines.into_iter().map(|(_, line)| line).collect(),
            more: self.more,
            none_kept: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many lines of one moment are on some page each, and on one alone.
    #[test]
    fn pages_of_a_log_have_each_line_once() {
        let line = |n: u32| told::LogLine {
            at: f64::from(n / 7),
            node: "n".to_owned(),
            process: (n % 2).to_string(),
            stream: "out".to_owned(),
            text: n.to_string(),
        };
        for process in [None, Some(("1", "n"))] {
            let (mut all, mut before) = (vec![], Before::END);
            loop {
                let of = LinesOf {
                    job: "",
                    process,
                    before,
                    limit: 4,
                };
                let mut last = Last::new(&of);
                last.add((0..40).map(line));
                let logs = last.logs();
                let mut page: Vec<_> = logs.lines.into_iter().map(|it| it.text).collect();
                page.append(&mut all);
                all = page;
                match logs.earlier {
                    Some(earlier) => before = earlier.parse().unwrap(),
                    None => break,
                }
            }
            let own = (0..40).filter(|n| process.is_none() || n % 2 == 1);
            assert_eq!(all, own.map(|n| n.to_string()).collect::<Vec<_>>());
        }
        assert!("yesterday".parse::<Before>().is_err());
    }
}
