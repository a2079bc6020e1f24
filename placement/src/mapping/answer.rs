//! The mapping that was found, and how it is shown.

use std::fmt;

use odeon_mesh::{DP, Mesh, PP, TP};
use serde::{Deserialize, Serialize};

use super::{error::gb, workload::Role};

/// Where each model goes, and what that is predicted to cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mapping {
    /// Time of one iteration, seconds.
    pub seconds: f64,
    /// The stages in order, each with the time of its slowest set, seconds.
    pub stages: Vec<(String, f64)>,
    /// The sets, by the name of their first model.
    pub sets: Vec<Set>,
    /// Counts of the work that the search did.
    pub searched: Searched,
}

/// Models that share devices, one at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Set {
    /// The pool's name.
    pub pool: String,
    /// Number of its devices.
    pub devices: u32,
    /// The first of them; the others follow. Node `i` of the pool has the devices from `i *
    /// device.per_node` on.
    pub first_device: u32,
    /// Memory of each of them that models may use, bytes.
    pub usable_bytes: u64,
    /// The models, by name.
    pub models: Vec<Placed>,
}

/// A model in a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// The model's name.
    pub model: String,
    /// Its role: trained or frozen.
    pub role: Role,
    /// Its mesh on the set's devices, `{dp, pp, tp}`, generation apart.
    pub mesh: Mesh,
    /// Its mesh while it generates, if it does.
    pub generation: Option<Mesh>,
    /// Batches in a row when it generates, because of the cache's size; 0 if it does not.
    pub waves: u64,
    /// Memory of each device that it always has, bytes.
    pub resident_bytes: u64,
    /// Memory of each device that it has also while it generates, bytes.
    pub generation_bytes: u64,
    /// Its time in each stage, seconds.
    pub seconds: Vec<f64>,
}

/// Counts of the work of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searched {
    /// Whole mappings whose times were compared.
    pub compared: u64,
    /// Branches that were left because nothing better could be in them.
    pub cut: u64,
    /// Times asked of the cost model.
    pub priced: u64,
    /// Prices of a model or set on some devices that were taken from the memo.
    pub reused: u64,
}

impl Mapping {
    /// A model's place.
    #[must_use]
    pub fn of(&self, model: &str) -> Option<&Placed> {
        let mut models = self.sets.iter().flat_map(|set| &set.models);
        models.find(|placed| placed.model == model)
    }

    /// The set a model is in.
    #[must_use]
    pub fn set_of(&self, model: &str) -> Option<&Set> {
        let has = |set: &&Set| set.models.iter().any(|placed| placed.model == model);
        self.sets.iter().find(has)
    }
}

impl Set {
    /// The most memory of each device in use at a time: all resident states, and the largest
    /// generation; bytes.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let resident: u64 = self.models.iter().map(|placed| placed.resident_bytes).sum();
        let generation = self.models.iter().map(|placed| placed.generation_bytes);
        resident + generation.max().unwrap_or(0)
    }
}

/// `pipeline-tensor-data`.
fn sizes(mesh: &Mesh) -> String {
    format!("{}-{}-{}", mesh.size(PP), mesh.size(TP), mesh.size(DP))
}

/// A table: a line for each model, with its memory in GB and its time in each stage in seconds.
/// Strategies are shown as `pipeline-tensor-data`.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.sets.iter().flat_map(|set| &set.models);
        let wide = names
            .map(|placed| placed.model.len())
            .max()
            .unwrap_or(0)
            .max(9);
        let places = self.sets.iter().map(|set| set.place().len());
        let place_wide = places.max().unwrap_or(0).max(7);
        write!(f, "{:place_wide$}  {:wide$}", "devices", "model")?;
        write!(
            f,
            "  {:>8} {:>8} {:>8} {:>8}",
            "p-t-d", "generate", "GB", "peak GB"
        )?;
        for (name, _) in &self.stages {
            write!(f, " {name:>10}")?;
        }
        for set in &self.sets {
            for (at, placed) in set.models.iter().enumerate() {
                let place = if at == 0 { set.place() } else { String::new() };
                write!(f, "\n{place:place_wide$}  {:wide$}", placed.model)?;
                write!(f, "  {:>8}", sizes(&placed.mesh))?;
                match &placed.generation {
                    Some(mesh) => write!(f, " {:>8}", sizes(mesh))?,
                    None => write!(f, " {:>8}", "")?,
                }
                let peak = placed.resident_bytes + placed.generation_bytes;
                let [resident, peak] = [placed.resident_bytes, peak].map(gb);
                write!(f, " {resident:>8.1} {peak:>8.1}")?;
                write_seconds(f, placed.seconds.iter().copied())?;
            }
        }
        let (place, total) = (format!("{:.1} s", self.seconds), "iteration");
        write!(f, "\n{place:place_wide$}  {total:wide$}  {:35}", "")?;
        write_seconds(f, self.stages.iter().map(|&(_, seconds)| seconds))
    }
}

impl Set {
    fn place(&self) -> String {
        let end = self.first_device + self.devices;
        format!("{} {}..{end}", self.pool, self.first_device)
    }
}

/// Zero is left blank: the model has nothing to do then.
fn write_seconds(f: &mut fmt::Formatter<'_>, seconds: impl Iterator<Item = f64>) -> fmt::Result {
    for seconds in seconds {
        match seconds {
            0.0 => write!(f, " {:>10}", "")?,
            seconds => write!(f, " {seconds:>10.2}")?,
        }
    }
    Ok(())
}
