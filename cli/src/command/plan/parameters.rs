//! Which ranks have which parameters.

use anyhow::Result;
use odeon_algorithms::train::{Footprint, Sharing};

use super::ranks::{pattern, spelled};
use crate::print;

/// Parameters that lie alike.
struct Alike {
    name: String,
    /// Layers, or none of what is in no layer.
    layers: Vec<usize>,
    /// Ranks of the first copy.
    ranks: Vec<usize>,
    shape: String,
    has: String,
}

/// A row for parameters of one name on the same ranks.
pub(super) fn show(all: &[Footprint], sharing: Sharing) -> Result<()> {
    let of_copy = &all[..sharing.of_copy()];
    let mut alike: Vec<Alike> = vec![];
    for (at, (name, tensor)) in of_copy[0].tensors.iter().enumerate() {
        let lengths = |rank: usize| -> Vec<usize> {
            let part = &of_copy[rank].tensors[at].1.part;
            part.iter().map(ExactSizeIterator::len).collect()
        };
        let ranks = (0..of_copy.len()).filter(|rank| !lengths(*rank).contains(&0));
        let ranks: Vec<usize> = ranks.collect();
        let has = ranks.first().map(|rank| lengths(*rank));
        let has = match has {
            Some(has) if has != tensor.shape => spelled(&has),
            _ => "all".to_owned(),
        };
        let row = Alike {
            name: pattern(name),
            layers: layer_of(name).into_iter().collect(),
            ranks,
            shape: spelled(&tensor.shape),
            has,
        };
        let known = alike.iter_mut().find(|it| {
            (&it.name, &it.ranks, &it.shape, &it.has)
                == (&row.name, &row.ranks, &row.shape, &row.has)
        });
        match known {
            Some(known) => known.layers.extend(row.layers),
            None => alike.push(row),
        }
    }
    let row = |it: &Alike| {
        vec![
            it.name.clone(),
            runs(&it.layers),
            runs(&it.ranks),
            it.shape.clone(),
            it.has.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = alike.iter().map(row).collect();
    let ranks = match sharing.copies {
        1 => "ranks",
        _ => "ranks of the first copy",
    };
    print::table(
        &["parameter", "layers", ranks, "shape", "the first has"],
        &rows,
    )?;
    Ok(())
}

fn layer_of(name: &str) -> Option<usize> {
    let mut words = name.split('.').skip_while(|word| *word != "layers");
    words.nth(1)?.parse().ok()
}

/// `0 to 2, 5`; experts of one layer count once.
fn runs(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            Some((_, last)) if *last == number => {}
            _ => runs.push((number, number)),
        }
    }
    let spelled = runs.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    });
    spelled.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_by_runs() {
        assert_eq!(runs(&[]), "");
        assert_eq!(runs(&[0, 0, 1, 2, 5, 7, 8]), "0 to 2, 5, 7 to 8");
        assert_eq!(layer_of("model.layers.3.mlp.experts.1.w"), Some(3));
        assert_eq!(layer_of("model.norm.weight"), None);
    }
}
