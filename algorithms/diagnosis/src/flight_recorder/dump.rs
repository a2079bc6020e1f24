//! Dumps of NCCL's flight recorder, as PyTorch 2.5 and later write them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::pickle;

/// The dump of one rank: the last calls of collectives that it launched, and the groups that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct FlightDump {
    /// The rank, among all of the job.
    pub rank: usize,
    /// Its groups.
    pub groups: Vec<FlightGroup>,
    /// Its calls, as they lie in the ring: the oldest may be gone.
    pub entries: Vec<FlightEntry>,
}

/// A group of ranks that call collectives together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlightGroup {
    /// The name: a number that is the same for all of its ranks, and may be used by other ranks for another group.
    pub name: String,
    /// The description, as the program gives it.
    pub description: String,
    /// Its ranks, among all of the job.
    pub ranks: Vec<usize>,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FlightState {
    /// The program has launched it; the device has not begun.
    Scheduled,
    /// The device is at it.
    Started,
    /// It is over.
    Completed,
}

/// A call of a collective, or one end of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct FlightEntry {
    /// The name of its group.
    pub group: String,
    /// Its number among the collectives of the group, from 1. The same on all ranks for the same call.
    pub sequence: u64,
    /// The operation with its library, as `nccl:all_reduce`; of a message also the ranks within the group.
    pub operation: String,
    /// Shapes of the inputs.
    pub input_sizes: Vec<Vec<u64>>,
    /// Shapes of the outputs.
    pub output_sizes: Vec<Vec<u64>>,
    /// Types of the inputs.
    pub input_types: Vec<String>,
    /// Its state.
    pub state: FlightState,
    /// True for one end of a message between two ranks.
    pub is_message: bool,
    /// When it was launched, in nanoseconds since 1970.
    pub launched_ns: u64,
}

/// A file that is no dump of a flight recorder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// A pickle that cannot be read, or does more than build plain data.
    #[error("byte {at} of the pickle: {why}")]
    Pickle {
        /// The place.
        at: usize,
        /// What is wrong.
        why: String,
    },
    /// Neither a pickle nor JSON.
    #[error("it is neither a pickle nor JSON: {why}")]
    Json {
        /// What is wrong.
        why: String,
    },
    /// A dump of another version.
    #[error(
        "the dump has version {version}: versions from 2.4 on are read, which PyTorch 2.5 and later write"
    )]
    Version {
        /// The version that it says.
        version: String,
    },
    /// A field is missing, or is not what it should be.
    #[error("it is no dump of a flight recorder: {why}")]
    Field {
        /// What is wrong.
        why: String,
    },
    /// An entry is of a group that the dump does not list.
    #[error("entry {entry} is of group `{group}`, which pg_config does not have")]
    Group {
        /// Its place in the ring.
        entry: usize,
        /// The group's name.
        group: String,
    },
}

/// The file, as it is written.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    pg_config: BTreeMap<String, WrittenGroup>,
    #[serde(default)]
    entries: Vec<WrittenEntry>,
}

#[derive(Deserialize)]
struct WrittenGroup {
    #[serde(default)]
    desc: String,
    ranks: Value,
}

#[derive(Deserialize)]
struct WrittenEntry {
    process_group: (String, String),
    collective_seq_id: u64,
    profiling_name: String,
    input_sizes: Vec<Vec<u64>>,
    output_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    state: FlightState,
    #[serde(default)]
    is_p2p: bool,
    time_created_ns: u64,
}

impl FlightDump {
    /// Reads the dump of a rank: a pickle, of which nothing is run, or JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn read(rank: usize, bytes: &[u8]) -> Result<Self, DumpError> {
        let value: Value = match pickle::is_one(bytes) {
            true => pickle::read(bytes)?,
            false => serde_json::from_slice(bytes).map_err(|error| DumpError::Json {
                why: error.to_string(),
            })?,
        };
        let version = value.get("version").and_then(Value::as_str);
        let version = version.ok_or_else(|| DumpError::Field {
            why: "it has no text `version`".to_owned(),
        })?;
        if !is_known(version) {
            let version = version.to_owned();
            return Err(DumpError::Version { version });
        }
        let written: Written = serde_json::from_value(value).map_err(|error| DumpError::Field {
            why: error.to_string(),
        })?;
        let groups = written.pg_config.into_iter();
        let groups = groups.map(|(name, group)| {
            let ranks = ranks_of(&group.ranks).ok_or_else(|| DumpError::Field {
                why: format!("the ranks of group `{name}` are no list: {}", group.ranks),
            })?;
            Ok(FlightGroup {
                name,
                description: group.desc,
                ranks,
            })
        });
        let groups: Vec<FlightGroup> = groups.collect::<Result<_, DumpError>>()?;
        let entries = written.entries.into_iter().zip(0..);
        let entries = entries.map(|(it, entry)| {
            let (group, _) = it.process_group;
            if !groups.iter().any(|known| known.name == group) {
                return Err(DumpError::Group { entry, group });
            }
            Ok(FlightEntry {
                group,
                sequence: it.collective_seq_id,
                operation: it.profiling_name,
                input_sizes: it.input_sizes,
                output_sizes: it.output_sizes,
                input_types: it.input_dtypes,
                state: it.state,
                is_message: it.is_p2p,
                launched_ns: it.time_created_ns,
            })
        });
        Ok(Self {
            rank,
            entries: entries.collect::<Result<_, _>>()?,
            groups,
        })
    }

    /// The group of an entry.
    pub(super) fn group(&self, name: &str) -> Option<&FlightGroup> {
        self.groups.iter().find(|it| it.name == name)
    }
}

/// PyTorch 2.5 writes 2.4.
fn is_known(version: &str) -> bool {
    let minor = version
        .strip_prefix("2.")
        .and_then(|it| it.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= 4)
}

/// Ranks are a list, or a list as text.
fn ranks_of(ranks: &Value) -> Option<Vec<usize>> {
    match ranks {
        Value::String(text) => serde_json::from_str(text).ok(),
        list => serde_json::from_value(list.clone()).ok(),
    }
}
