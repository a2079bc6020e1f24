//! `odeon plan` of a pretraining run: what each rank holds, and what it adds up with others.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use odeon::{Failure, Job};
use odeon_actors::ranks::places::demand;
use odeon_actors::recipe::{Arranged, PretrainRecipe, Source};
use odeon_algorithms::model::PartTensor;
use odeon_algorithms::train::{Footprint, Sharing, ZeroStage};
use odeon_gpu::Precision;
use odeon_placement::{View, solve};
use serde::Serialize;

use super::parameters;
use super::prediction::{self, PredictedTold};
use crate::args::PlanArgs;
use crate::figures;
use crate::print;

/// The plan as it is told in JSON. Bytes are of numbers of four bytes.
#[derive(Serialize)]
struct Told {
    copies: usize,
    expert_ranks: usize,
    context_ranks: usize,
    tensor_ranks: usize,
    pipeline_ranks: usize,
    /// Copies that keep one set of shards together; 1 where nothing is sharded.
    copies_of_shards: usize,
    ranks: Vec<RankTold>,
    predicted: PredictedTold,
    /// The plans that this one was chosen from, where the recipe leaves it open.
    chosen_from: Option<Arranged>,
    /// Where the ranks would be, where they reserve something.
    placed: Option<super::Told>,
}

/// Memory of a rank, and the sums of a step.
#[derive(Serialize)]
struct RankTold {
    rank: usize,
    parameter_bytes: usize,
    gradient_bytes: usize,
    optimizer_bytes: usize,
    gathered_bytes: usize,
    /// None where they are not told: of models that read pictures.
    activation_bytes: Option<usize>,
    offloaded_bytes: usize,
    gathered_of_others_bytes: usize,
    summed_over_data_bytes: usize,
    summed_over_all_bytes: usize,
    summed_over_experts_bytes: usize,
    row_sums_forward: usize,
    row_sums_backward: usize,
    row_bytes: usize,
    vocabulary_row_bytes: usize,
    context_row_bytes: usize,
    context_row_back_bytes: usize,
    expert_row_bytes: usize,
    stage_row_bytes: usize,
    tensors: Vec<TensorTold>,
}

#[derive(Serialize)]
struct TensorTold {
    name: String,
    shape: Vec<usize>,
    /// From and to, dimension by dimension.
    part: Vec<[usize; 2]>,
}

impl RankTold {
    fn of(rank: usize, footprint: &Footprint) -> Self {
        let tensors = footprint.tensors.iter().map(|(name, tensor)| TensorTold {
            name: name.clone(),
            shape: tensor.shape.clone(),
            part: tensor.part.iter().map(|it| [it.start, it.end]).collect(),
        });
        Self {
            rank,
            parameter_bytes: footprint.parameters,
            gradient_bytes: footprint.gradients,
            optimizer_bytes: footprint.optimizer,
            gathered_bytes: footprint.gathered,
            activation_bytes: footprint.activations,
            offloaded_bytes: footprint.offloaded,
            gathered_of_others_bytes: footprint.gathered_of_others,
            summed_over_data_bytes: footprint.summed_over_data,
            summed_over_all_bytes: footprint.summed_over_all,
            summed_over_experts_bytes: footprint.summed_over_experts,
            row_sums_forward: footprint.row_sums,
            row_sums_backward: footprint.row_sums,
            row_bytes: footprint.row,
            vocabulary_row_bytes: footprint.vocabulary_row,
            context_row_bytes: footprint.context_row,
            context_row_back_bytes: footprint.context_row_back,
            expert_row_bytes: footprint.expert_row,
            stage_row_bytes: footprint.stage_row,
            tensors: tensors.collect(),
        }
    }
}

pub(super) fn run(job: Job, source: &Source, args: &PlanArgs) -> Result<()> {
    let told = |failure: Failure| anyhow!("{failure}");
    let recipe = source.pretrain_recipe()?;
    let is_placed = !recipe.parallel.place.is_empty();
    let (recipe, choice) = recipe.arranged().map_err(told)?;
    let reserves = !recipe.placement.needs().is_empty();
    if let Some(cluster) = args.cluster.as_ref().filter(|_| !reserves) {
        bail!(
            "--cluster {}: the ranks of this run are processes of the machine that runs it, and reserve nothing: \
             say in [placement] what each needs, or leave it out",
            cluster.display()
        );
    }
    let view = match &args.cluster {
        Some(path) => Some(super::described(path)?),
        None if reserves => Some(super::this_machine(job)?),
        None => None,
    };
    let placed = view.map(|view| placed(&recipe, &view));
    let refused = placed.as_ref().is_some_and(|it| it.refusal.is_some());
    let all = recipe.footprints().map_err(told)?;
    let time = recipe.predicted().map_err(told)?;
    let sharing = recipe.sharing();
    if args.json {
        let ranks = all.iter().enumerate();
        let told = Told {
            copies: sharing.copies,
            expert_ranks: sharing.experts,
            context_ranks: sharing.context,
            tensor_ranks: sharing.tensor,
            pipeline_ranks: sharing.stages,
            copies_of_shards: sharing.copies_of_shards(),
            ranks: ranks.map(|(rank, it)| RankTold::of(rank, it)).collect(),
            predicted: PredictedTold::of(&recipe, time),
            chosen_from: choice,
            placed,
        };
        print::line(serde_json::to_string(&told)?)?;
    } else {
        show(&all, sharing)?;
        if sharing.stages > 1 || is_placed {
            print::line("")?;
            parameters::show(&all, sharing)?;
        }
        print::line("")?;
        prediction::show(&recipe, time)?;
        if let Some(choice) = &choice {
            print::line("")?;
            prediction::show_choice(choice)?;
        }
        let dropout = recipe.pretrain.dropout;
        if dropout > 0.0 {
            print::line(format!(
                "Each training pass drops {dropout} of the numbers, those that one device drops; no mask is kept."
            ))?;
        }
        if let Some(placed) = &placed {
            print::line("")?;
            super::show(placed)?;
            super::show_stages("", placed, sharing)?;
        }
    }
    match refused {
        true => bail!("the recipe has no place here"),
        false => Ok(()),
    }
}

/// Where the ranks would be: those of a tensor group on one node, and all at once.
fn placed(recipe: &PretrainRecipe, view: &View) -> super::Told {
    let needs = recipe.placement.needs();
    let demand = demand(&needs, &recipe.run.name, "rank", recipe.sharing());
    let (plan, refusal) = match solve(view, &[demand]) {
        Ok(plan) => (Some(plan), None),
        Err(refusal) => (None, Some(refusal)),
    };
    super::Told {
        unplaced: vec![],
        plan,
        refusal,
        memory: vec![],
    }
}

fn show(all: &[Footprint], sharing: Sharing) -> Result<()> {
    print::table(
        &["tensor", "there are", "shape", "rank 0 has", "bytes of it"],
        &tensors(&all[0]),
    )?;
    print::line("")?;
    memory(
        all.iter()
            .enumerate()
            .map(|(rank, it)| (rank.to_string(), it)),
        sharing,
    )?;
    print::line("")?;
    print::line(match all[0].activations {
        Some(_) => {
            "Activations are those of the largest micro-batch, and of as many as are under way."
        }
        None => "Activations come on top: pictures decide how many there are.",
    })?;
    sums(&all[0], sharing)
        .into_iter()
        .try_for_each(print::line)?;
    Ok(())
}

/// A table of the memory of ranks, by their names.
pub(super) fn memory<'a>(
    ranks: impl Iterator<Item = (String, &'a Footprint)>,
    sharing: Sharing,
) -> Result<()> {
    let bytes = |number: usize| figures::bytes(number as f64);
    let for_passes = for_passes(sharing);
    let ranks: Vec<_> = ranks.collect();
    let offloads = ranks.iter().any(|(_, it)| it.offloaded > 0);
    let (mut rows, mut has_activations) = (vec![], false);
    for (name, it) in ranks {
        let kept = [it.parameters, it.gradients, it.optimizer];
        let gathered = for_passes.map(|_| it.gathered);
        let beside = gathered.into_iter().chain(it.activations);
        let away = offloads.then_some(it.offloaded);
        let numbers = kept.into_iter().chain(beside).chain([it.bytes()]);
        let numbers = numbers.chain(away);
        has_activations |= it.activations.is_some();
        rows.push(std::iter::once(name).chain(numbers.map(bytes)).collect());
    }
    let kept = ["rank", "parameters", "gradients", "optimiser"];
    let activations = has_activations.then_some("activations");
    let beside = for_passes.into_iter().chain(activations);
    let titles = kept.into_iter().chain(beside).chain(["in all"]);
    let titles: Vec<&str> = titles.chain(offloads.then_some("on the host")).collect();
    print::table(&titles, &rows)?;
    Ok(())
}

/// The parameters that ranks have for passes beside those that they keep, in a word.
const fn for_passes(sharing: Sharing) -> Option<&'static str> {
    match (sharing.zero.has_shards(), sharing.params) {
        (true, _) => Some("gathered"),
        (false, Precision::Bf16) => Some("rounded"),
        (false, _) => None,
    }
}

/// The sums and exchanges of a step, in sentences.
fn sums(of_rank: &Footprint, sharing: Sharing) -> Vec<String> {
    let bytes = |number: usize| figures::bytes(number as f64);
    let Sharing {
        copies,
        experts,
        context,
        tensor,
        zero,
        ..
    } = sharing;
    let mut told = vec![];
    if zero.has_shards() {
        return [shards_of(of_rank, sharing), passes_of(of_rank, sharing)].concat();
    }
    if sharing.data() > 1 {
        let way = match zero {
            ZeroStage::Optimizer => {
                ", each getting the sum of its part, and its moved part goes to all"
            }
            _ => "",
        };
        let over = match sharing.data() == copies {
            true => format!("{copies} copies of the model"),
            false => format!("{} ranks with samples or rows of their own", sharing.data()),
        };
        told.push(format!(
            "Each step adds up {} of gradients over {over}{way}.",
            bytes(of_rank.summed_over_data),
        ));
    }
    if tensor > 1 {
        told.push(format!(
            "Each step adds up {} of gradients over all {} ranks: of tensors that all of them have whole.",
            bytes(of_rank.summed_over_all),
            sharing.ranks(),
        ));
    }
    if experts > 1 && of_rank.summed_over_experts > 0 {
        told.push(format!(
            "Each step adds up {} of gradients of experts over the {} ranks that have the same.",
            bytes(of_rank.summed_over_experts),
            copies * context,
        ));
    }
    told.extend(passes_of(of_rank, sharing));
    told
}

/// The gathering and adding up of shards, in sentences.
fn shards_of(of_rank: &Footprint, sharing: Sharing) -> Vec<String> {
    let bytes = |number: usize| figures::bytes(number as f64);
    let copies = sharing.copies_of_shards();
    let keepers = copies * sharing.of_copy();
    let gathers = match sharing.zero {
        ZeroStage::Gradients => "Each step gathers them once",
        _ => "Each pass gathers them layer by layer, forward and again backward",
    };
    let (format, sums) = match sharing.params {
        Precision::F32 => ("", "as many"),
        _ => (" in bf16", "twice as many"),
    };
    let mut told = vec![format!(
        "{keepers} ranks keep one set of shards. {gathers}{format}: {} of others each time. Each backward pass adds up \
         {sums} bytes of gradients, of which a rank gets its own.",
        bytes(of_rank.gathered_of_others),
    )];
    if sharing.replicas() > 1 {
        told.push(format!(
            "Each step adds up {} of gradients over the {} sets of shards.",
            bytes(of_rank.summed_over_data),
            sharing.replicas(),
        ));
    }
    told
}

/// What ranks that compute passes together add up and send, in sentences.
fn passes_of(of_rank: &Footprint, sharing: Sharing) -> Vec<String> {
    let bytes = |number: usize| figures::bytes(number as f64);
    let Sharing {
        experts,
        context,
        tensor,
        ..
    } = sharing;
    let mut told = vec![];
    if tensor > 1 {
        told.push(format!(
            "Each pass adds up rows over {tensor} tensor ranks: {} times forward and as often backward, {} a token; \
             and forward once {} a predicted token, for the vocabulary.",
            of_rank.row_sums,
            bytes(of_rank.row),
            bytes(of_rank.vocabulary_row),
        ));
    }
    if experts > 1 {
        told.push(format!(
            "Each pass sends {} a token to experts on {experts} ranks and back, forward, and as much backward; those of \
             the same rank are among them.",
            bytes(of_rank.expert_row),
        ));
    }
    if sharing.stages > 1 {
        told.push(format!(
            "Each pass goes through {} stages on {} ranks: this one sends {} a token to others, forward, and gets as much \
             backward.",
            sharing.stages * sharing.chunks,
            sharing.stages,
            bytes(of_rank.stage_row),
        ));
    }
    if context > 1 {
        told.push(format!(
            "Each pass sends {} a token to the others of {context} context ranks ({}), forward, and {} backward.",
            bytes(of_rank.context_row),
            sharing.context_kind,
            bytes(of_rank.context_row_back),
        ));
    }
    told
}

/// A row for each tensor of a layer, and for each other one.
fn tensors(of_rank: &Footprint) -> Vec<Vec<String>> {
    let mut order: Vec<String> = vec![];
    let mut alike: BTreeMap<String, (usize, PartTensor)> = BTreeMap::new();
    for (name, tensor) in &of_rank.tensors {
        let name = pattern(name);
        let (count, _) = alike.entry(name.clone()).or_insert_with(|| {
            order.push(name);
            (0, tensor.clone())
        });
        *count += 1;
    }
    let row = |name: String| {
        let (count, PartTensor { shape, part }) = &alike[&name];
        let lengths: Vec<usize> = part.iter().map(ExactSizeIterator::len).collect();
        let numbers: usize = lengths.iter().product();
        let has = match lengths == *shape {
            true => "all".to_owned(),
            false => spelled(&lengths),
        };
        vec![
            name,
            count.to_string(),
            spelled(shape),
            has,
            figures::bytes((4 * numbers * count) as f64),
        ]
    };
    order.into_iter().map(row).collect()
}

/// `16 x 128`.
pub(super) fn spelled(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    sizes.join(" x ")
}

/// The name of a tensor, with N in place of the numbers of layers and experts.
pub(super) fn pattern(name: &str) -> String {
    let parts = name.split('.').map(|part| match part.parse::<usize>() {
        Ok(_) => "N",
        Err(_) => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

/// One line about the memory of the largest rank.
pub(in crate::command) fn outline(recipe: &PretrainRecipe) -> Option<String> {
    let all = recipe.footprints().ok()?;
    let most = all.iter().max_by_key(|it| it.bytes())?;
    let bytes = |number: usize| figures::bytes(number as f64);
    Some(format!(
        "each rank holds up to {}: {} of parameters, {} of gradients, {} of the optimiser{}{}",
        bytes(most.bytes()),
        bytes(most.parameters),
        bytes(most.gradients),
        bytes(most.optimizer),
        for_passes(recipe.sharing()).map_or_else(String::new, |made| format!(
            ", {} {made} for passes",
            bytes(most.gathered)
        )),
        match most.activations {
            None => "; activations come on top".to_owned(),
            Some(activations) => format!(", {} of activations", bytes(activations)),
        },
    ))
}
