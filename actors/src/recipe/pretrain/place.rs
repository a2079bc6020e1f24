//! `[[parallel.place]]`: where parameters are to be, by patterns of their names.
//!
//! The step engine can have layers on other stages than an even cut gives them. Whether a parameter is cut over tensor
//! ranks follows from what it is, so a recipe can ask for that and is refused where it is otherwise.

use std::collections::BTreeMap;
use std::fmt;

use odeon_algorithms::model::ModelConfig;
use odeon_algorithms::train::{Footprint, Sharing, TrainConfig};
use serde::{Deserialize, Serialize};

/// One of `[[parallel.place]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceSection {
    /// Names of parameters: `*` stands for any letters, and words before the first may be left out.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The stage of the pipeline that has them, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Set where tensor ranks each have a part of them; false where each has them whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<bool>,
}

/// Parameters that cannot be where a recipe has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceFault {
    /// The number of the entry, from 0.
    pub(crate) entry: usize,
    pub(crate) field: &'static str,
    pub(crate) what: String,
}

impl fmt::Display for PlaceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "parallel.place.{}.{}: {}",
            self.entry, self.field, self.what
        )
    }
}

/// A parameter by its name.
pub(super) struct Parameter {
    name: String,
    /// The layer that it belongs to.
    layer: Option<usize>,
    /// Set where tensor ranks each have a part of it.
    is_cut: bool,
}

/// Layers of each stage, as entries ask for them; none where nothing is said of stages.
pub(super) fn stages_of(
    entries: &[PlaceSection],
    parameters: &[Parameter],
    sharing: Sharing,
    layers: usize,
) -> Result<Vec<u32>, PlaceFault> {
    let mut stages = vec![None; parameters.len()];
    for (entry, place) in entries.iter().enumerate() {
        let fault = |field, what| Err(PlaceFault { entry, field, what });
        let matched = parameters.iter().enumerate();
        let matched = matched.filter(|(_, it)| matches(&place.pattern, &it.name));
        let matched: Vec<usize> = matched.map(|(at, _)| at).collect();
        if matched.is_empty() {
            return fault("match", nothing(&place.pattern, parameters));
        }
        if place.stage.is_none() && place.tensor.is_none() {
            let what = "nothing is said of them: let `stage` or `tensor` say where they are";
            return fault("match", what.to_owned());
        }
        if let Some(wanted) = place.tensor
            && let Err(what) = check_tensor(parameters, &matched, wanted, sharing)
        {
            return fault("tensor", what);
        }
        let Some(stage) = place.stage else { continue };
        if let Err(what) = assign(parameters, &matched, stage as usize, sharing, &mut stages) {
            return fault("stage", what);
        }
    }
    let Some(entry) = entries.iter().position(|it| it.stage.is_some()) else {
        return Ok(vec![]);
    };
    lengths(parameters, &stages, sharing, layers).map_err(|what| PlaceFault {
        entry,
        field: "stage",
        what,
    })
}

/// All parameters of a model, in the order of a forward pass.
pub(super) fn parameters(
    config: &ModelConfig,
    train: &TrainConfig,
    sharing: Sharing,
) -> Vec<Parameter> {
    let of =
        |sharing| Footprint::of(config, train, sharing, 0).map_or_else(|_| vec![], |it| it.tensors);
    // Whether a tensor is cut is a matter of tensor ranks alone.
    let cut = of(Sharing {
        tensor: sharing.tensor,
        ..Sharing::ALONE
    });
    let is_cut = |at: usize| {
        cut.get(at).is_some_and(|(_, it)| {
            let mut lengths = it.part.iter().zip(&it.shape);
            lengths.any(|(part, length)| part.len() != *length)
        })
    };
    let all = of(Sharing::ALONE).into_iter().enumerate();
    all.map(|(at, (name, _))| Parameter {
        layer: layer_of(&name),
        is_cut: is_cut(at),
        name,
    })
    .collect()
}

/// The table of an entry, by which errors find its line.
pub(crate) fn place_table(entry: usize) -> &'static str {
    const TABLES: [&str; 8] = [
        "parallel.place.0",
        "parallel.place.1",
        "parallel.place.2",
        "parallel.place.3",
        "parallel.place.4",
        "parallel.place.5",
        "parallel.place.6",
        "parallel.place.7",
    ];
    TABLES.get(entry).copied().unwrap_or("parallel.place")
}

fn layer_of(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("model.layers.")?.split_once('.')?;
    number.parse().ok()
}

/// True where a pattern means a parameter: all of its name, or all from one of its words on.
fn matches(pattern: &str, name: &str) -> bool {
    let begins = name.match_indices('.').map(|(at, _)| at + 1);
    std::iter::once(0)
        .chain(begins)
        .any(|begin| is_like(pattern.as_bytes(), &name.as_bytes()[begin..]))
}

/// True where `*` can stand for letters such that the two are the same.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', left)), _) => {
            is_like(left, name)
                || name
                    .split_first()
                    .is_some_and(|(_, name)| is_like(pattern, name))
        }
        (Some((own, pattern)), Some((other, name))) => own == other && is_like(pattern, name),
        _ => false,
    }
}

/// The words about a pattern that means nothing.
fn nothing(pattern: &str, parameters: &[Parameter]) -> String {
    let mut by_distance: BTreeMap<(usize, usize), &str> = BTreeMap::new();
    for (at, parameter) in parameters.iter().enumerate() {
        let begins = parameter.name.match_indices('.').map(|(at, _)| at + 1);
        let tails = std::iter::once(0)
            .chain(begins)
            .map(|begin| &parameter.name[begin..]);
        let nearest = tails.map(|tail| distance(pattern, tail)).min();
        by_distance.insert((nearest.unwrap_or(usize::MAX), at), &parameter.name);
    }
    let nearest: Vec<&str> = by_distance.into_values().take(NEAREST).collect();
    format!(
        "`{pattern}` means no parameter of the model; the nearest are {}",
        nearest.join(", ")
    )
}

/// Names that are told where a pattern means none.
const NEAREST: usize = 3;

/// Letters that are to be changed, put in or left out to make one of the other (Levenshtein), where `*` of the first is
/// any letters.
fn distance(pattern: &str, name: &str) -> usize {
    let name = name.as_bytes();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for letter in pattern.bytes() {
        let (is_any, mut before) = (letter == b'*', row[0]);
        row[0] += usize::from(!is_any);
        for (at, other) in name.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = match is_any {
                true => above.min(row[at]).min(before),
                false => (before + usize::from(letter != *other))
                    .min(above + 1)
                    .min(row[at] + 1),
            };
            before = above;
        }
    }
    row[name.len()]
}

fn check_tensor(
    parameters: &[Parameter],
    matched: &[usize],
    wanted: bool,
    sharing: Sharing,
) -> Result<(), String> {
    let other = matched.iter().find(|at| parameters[**at].is_cut != wanted);
    let Some(&other) = other else { return Ok(()) };
    let name = &parameters[other].name;
    Err(match (wanted, sharing.tensor) {
        (true, 1) => format!(
            "{name} is whole on each rank, and cannot be cut over tensor ranks: parallel.tp = 1 makes none"
        ),
        (true, ranks) => format!(
            "{name} is whole on each of {ranks} tensor ranks, which read all of it, and cannot be cut over them"
        ),
        (false, ranks) => format!(
            "{name} is cut over {ranks} tensor ranks, which compute heads, columns and entries of the vocabulary apart, \
             and cannot be whole on each of them: let parallel.tp be 1, or this be true"
        ),
    })
}

/// Puts parameters on a stage.
fn assign(
    parameters: &[Parameter],
    matched: &[usize],
    stage: usize,
    sharing: Sharing,
    stages: &mut [Option<usize>],
) -> Result<(), String> {
    let count = sharing.stages * sharing.chunks;
    if stage >= count {
        return Err(format!(
            "there is no stage {stage}: parallel.pp = {} and pp_chunks = {} make {count}, from 0",
            sharing.stages, sharing.chunks
        ));
    }
    for &at in matched {
        let Parameter { name, layer, .. } = &parameters[at];
        let is_first = at
            < parameters
                .iter()
                .position(|it| it.layer.is_some())
                .unwrap_or(0);
        let (own, why) = match is_first {
            true => (0, "where tokens are embedded"),
            false => (count - 1, "where rows are scored"),
        };
        if layer.is_none() && own != stage {
            return Err(format!(
                "{name} is on stage {own}, {why}, and cannot be on stage {stage}"
            ));
        }
        match stages[at] {
            Some(other) if other != stage => {
                return Err(format!(
                    "{name} is to be on stage {other}, and on stage {stage} as well"
                ));
            }
            _ => stages[at] = Some(stage),
        }
    }
    Ok(())
}

/// Layers of each stage. Layers that nothing is said of go with the one before them.
fn lengths(
    parameters: &[Parameter],
    stages: &[Option<usize>],
    sharing: Sharing,
    layers: usize,
) -> Result<Vec<u32>, String> {
    let count = sharing.stages * sharing.chunks;
    let mut lengths = vec![0; count];
    let mut last: (usize, Option<&str>) = (0, None);
    for layer in 0..layers {
        let own = || (0..parameters.len()).filter(|at| parameters[*at].layer == Some(layer));
        let said = own().find_map(|at| stages[at].map(|stage| (stage, at)));
        let stage = match said {
            None => last.0,
            Some((stage, at)) => {
                let name = &*parameters[at].name;
                if let Some(other) = own().find(|other| stages[*other].is_none()) {
                    return Err(format!(
                        "{} is on the stage of its layer, and {name} is to be on stage {stage} by itself: a layer is on \
                         one stage, so let the pattern mean all of it, such as `layers.{layer}.*`",
                        parameters[other].name
                    ));
                }
                if let Some(other) = own().find(|other| stages[*other] != Some(stage)) {
                    let of_other = stages[other].unwrap_or_default();
                    return Err(format!(
                        "{} is to be on stage {of_other}, and {name} of the same layer on stage {stage}: a layer is on \
                         one stage",
                        parameters[other].name
                    ));
                }
                if stage < last.0 {
                    return Err(format!(
                        "{name} is to be on stage {stage}, and {} before it on stage {}: stages have layers in their \
                         order",
                        last.1.unwrap_or("what is"),
                        last.0
                    ));
                }
                last = (stage, Some(name));
                stage
            }
        };
        lengths[stage] += 1;
    }
    match lengths.iter().position(|length| *length == 0) {
        Some(stage) => Err(format!(
            "stage {stage} of {count} would have no layer: let a pattern put one there"
        )),
        None => Ok(lengths),
    }
}

#[cfg(test)]
mod tests;
