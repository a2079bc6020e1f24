//! The reductions of a step's gradients: fewer and larger ones. Pure.
//!
//! A gradient is partial along the dimensions of the mesh whose ranks saw other data. One collective for
//! each gradient and dimension pays for its beginning each time; gradients that are partial along the
//! same dimensions are reduced together here, over all of their dimensions at once (arXiv 2509.07003).

use odeon_mesh::{Mesh, MeshError};

use crate::ShardingError;

/// The gradient of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// The name of the parameter.
    pub name: String,
    /// Bytes of the local part.
    pub bytes: usize,
    /// The dimensions of the mesh along which it is partial; none for one that needs no reduction.
    pub dims: Vec<String>,
}

/// One all-reduce of some gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientReduction {
    /// The dimensions of the mesh along which it goes, in the order of the mesh; several are one flat
    /// group.
    pub dims: Vec<String>,
    /// Its ranks.
    pub ranks: usize,
    /// The gradients in it, in the order in which they were given.
    pub gradients: Vec<String>,
    /// Bytes of them together.
    pub bytes: usize,
}

impl GradientReduction {
    /// Bytes that leave each rank around a ring, about: `2 (n - 1) / n` of them.
    #[must_use]
    pub const fn sent(&self) -> usize {
        2 * (self.ranks - 1) * self.bytes / self.ranks
    }
}

/// One reduction for each gradient along each of its dimensions.
///
/// # Errors
/// [`ShardingError::Mesh`] of a gradient with a dimension that the mesh has not.
pub fn reduced_apart(
    mesh: &Mesh,
    gradients: &[Gradient],
) -> Result<Vec<GradientReduction>, ShardingError> {
    let mut reductions = vec![];
    for gradient in gradients {
        for dim in partial_dims(mesh, gradient)? {
            reductions.push(reduction(mesh, vec![dim], gradient));
        }
    }
    Ok(reductions)
}

/// One reduction for each bucket: gradients that are partial along the same dimensions, in the order in
/// which they are given, which is that in which they are ready; of at most `bucket_bytes` together, but
/// for a gradient that is larger by itself. Reductions stand in the order in which their buckets are
/// full; those that never are come last.
///
/// # Errors
/// [`ShardingError::Mesh`] of a gradient with a dimension that the mesh has not.
pub fn reduced_together(
    mesh: &Mesh,
    gradients: &[Gradient],
    bucket_bytes: usize,
) -> Result<Vec<GradientReduction>, ShardingError> {
    let (mut reductions, mut open): (Vec<GradientReduction>, Vec<GradientReduction>) =
        (vec![], vec![]);
    for gradient in gradients {
        let dims = partial_dims(mesh, gradient)?;
        if dims.is_empty() {
            continue;
        }
        let fresh = reduction(mesh, dims, gradient);
        let Some(at) = open.iter().position(|bucket| bucket.dims == fresh.dims) else {
            open.push(fresh);
            continue;
        };
        if open[at].bytes.saturating_add(fresh.bytes) > bucket_bytes {
            reductions.push(open.remove(at));
            open.push(fresh);
        } else {
            open[at].bytes += fresh.bytes;
            open[at].gradients.extend(fresh.gradients);
        }
    }
    reductions.extend(open);
    Ok(reductions)
}

fn reduction(mesh: &Mesh, dims: Vec<String>, gradient: &Gradient) -> GradientReduction {
    GradientReduction {
        ranks: dims.iter().map(|dim| mesh.size(dim)).product(),
        dims,
        gradients: vec![gradient.name.clone()],
        bytes: gradient.bytes,
    }
}

/// The dimensions along which a gradient is partial, in the order of the mesh, but those of one rank.
fn partial_dims(mesh: &Mesh, gradient: &Gradient) -> Result<Vec<String>, ShardingError> {
    for dim in &gradient.dims {
        mesh.size_of(dim)
            .map_err(|error: MeshError| ShardingError::Mesh {
                name: gradient.name.clone(),
                error: Box::new(error),
            })?;
    }
    let dims = mesh.dims().iter();
    let partial = dims.filter(|dim| dim.size > 1 && gradient.dims.contains(&dim.name));
    Ok(partial.map(|dim| dim.name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use odeon_mesh::mesh;
    use proptest::prelude::*;

    use super::*;

    fn gradient(name: &str, elements: usize, dims: &[&str]) -> Gradient {
        Gradient {
            name: name.to_owned(),
            bytes: 4 * elements,
            dims: dims.iter().map(|dim| (*dim).to_owned()).collect(),
        }
    }

    /// Four layers of width 64, with matrices cut in two along `tp`. Norms work on some of the tokens on
    /// each rank along `tp`, so their gradients are partial there too.
    fn transformer() -> Vec<Gradient> {
        let data = ["dp", "cp"];
        let tokens = ["tp", "cp", "dp"];
        let mut all = vec![
            gradient("head", 256 * 64 / 2, &data),
            gradient("norm", 64, &tokens),
        ];
        for layer in (0..4).rev() {
            let named = |name: &str| format!("layers.{layer}.{name}");
            let matrices = [
                ("down", 256 * 64),
                ("up", 256 * 64),
                ("o", 64 * 64),
                ("qkv", 3 * 64 * 64),
            ];
            for (name, elements) in matrices {
                all.push(gradient(&named(name), elements / 2, &data));
            }
            all.extend(["norm2", "norm1"].map(|name| gradient(&named(name), 64, &tokens)));
        }
        all
    }

    #[test]
    fn a_small_transformer_is_reduced_in_few_collectives() {
        let mesh = mesh! { dp: 4, cp: 2, tp: 2 };
        let gradients = transformer();
        let apart = reduced_apart(&mesh, &gradients).unwrap();
        let together = reduced_together(&mesh, &gradients, 128 << 10).unwrap();
        let total = |reductions: &[GradientReduction]| {
            let bytes: usize = reductions.iter().map(GradientReduction::sent).sum();
            (reductions.len(), bytes)
        };
        // 17 matrices along two dimensions, 9 norms along three.
        assert_eq!(apart.len(), 17 * 2 + 9 * 3);
        let matrices = 4 * (256 * 64 + 4 * (2 * 256 + 4 * 64) * 64) / 2;
        let norms = 4 * 9 * 64;
        // 2 * 3/4 + 2 * 1/2 of the matrices, and as much again of the norms along `tp`.
        assert_eq!(total(&apart), (61, matrices * 5 / 2 + norms * 7 / 2));
        // Buckets of 128 KiB, and one of all norms: over 8 ranks and over 16.
        assert_eq!(total(&together), (5, matrices * 7 / 4 + norms * 15 / 8));
        let shapes: Vec<(String, usize)> = together
            .iter()
            .map(|it| (it.dims.join(" "), it.gradients.len()))
            .collect();
        let buckets = [
            ("dp cp", 5),
            ("dp cp", 5),
            ("dp cp", 5),
            ("dp cp tp", 9),
            ("dp cp", 2),
        ];
        assert_eq!(
            shapes,
            buckets.map(|(dims, count)| (dims.to_owned(), count))
        );
    }

    #[test]
    fn a_dimension_of_one_rank_or_none_needs_nothing() {
        let mesh = mesh! { dp: 2, tp: 1 };
        let gradients = [
            gradient("a", 1, &["tp"]),
            gradient("b", 1, &[]),
            gradient("c", 1, &["tp", "dp"]),
        ];
        for reductions in [
            reduced_apart(&mesh, &gradients),
            reduced_together(&mesh, &gradients, 64),
        ] {
            let reductions = reductions.unwrap();
            assert_eq!(reductions.len(), 1);
            assert_eq!(
                (&*reductions[0].dims, reductions[0].ranks),
                (&["dp".to_owned()][..], 2)
            );
        }
        let unknown = [gradient("a", 1, &["ep"])];
        for refused in [
            reduced_apart(&mesh, &unknown),
            reduced_together(&mesh, &unknown, 64),
        ] {
            assert_eq!(
                refused.unwrap_err().to_string(),
                "`a`: no dimension `ep`; the mesh is {dp: 2, tp: 1}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_gradient_is_reduced_once_along_all_of_its_dimensions(
            sizes in prop::collection::vec((0usize..100, any::<[bool; 3]>()), 0..20), bucket in 0usize..400,
        ) {
            let mesh = mesh! { dp: 2, cp: 3, tp: 2 };
            let gradients: Vec<Gradient> = sizes.iter().enumerate().map(|(nth, (elements, partial))| {
                let dims: Vec<&str> = ["dp", "cp", "tp"].into_iter().zip(partial).filter(|it| *it.1).map(|it| it.0).collect();
                gradient(&nth.to_string(), *elements, &dims)
            }).collect();
            let together = reduced_together(&mesh, &gradients, bucket).unwrap();
            let sent = |reductions: &[GradientReduction]| reductions.iter().map(GradientReduction::sent).sum::<usize>();
            let apart = reduced_apart(&mesh, &gradients).unwrap();
            // Each division may round.
            prop_assert!(together.len() <= apart.len() && sent(&together) <= sent(&apart) + apart.len());
            for gradient in &gradients {
                let within: Vec<_> = together.iter().filter(|it| it.gradients.contains(&gradient.name)).collect();
                prop_assert_eq!(within.len(), usize::from(!gradient.dims.is_empty()));
                prop_assert!(within.iter().all(|it| it.dims == gradient.dims));
            }
            for reduction in &together {
                prop_assert!(reduction.bytes <= bucket || reduction.gradients.len() == 1);
                prop_assert!(reduction.gradients.is_sorted_by_key(|name| name.parse::<usize>().unwrap()));
            }
        }
    }
}
