//! `odeon simulate training`: a step of a plan by its parts, and what papers tell of theirs beside the same simulated.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use odeon_algorithms::cost::training::published::{
    Row, RowOrigin, ladder, megascale, omni, omni::MixRow, optimus, start_up, torchtitan,
    vescale_fsdp,
};
use odeon_algorithms::cost::training::{
    HostSeconds, Machine, StepTime, Techniques, TrainedModel, Training, TrainingPlan,
};
use odeon_algorithms::weights::directory_fields;

use crate::args::training::{CardKind, PaperTable, System, TrainingArgs};
use crate::figures;
use crate::print;

pub(super) fn run(args: &TrainingArgs) -> Result<()> {
    match &args.model {
        Some(model) => own(args, model),
        None => papers(args),
    }
}

/// The tables of papers.
fn papers(args: &TrainingArgs) -> Result<()> {
    let wanted = match args.table.is_empty() {
        true => PaperTable::QUICK.to_vec(),
        false => args.table.clone(),
    };
    let mut all = BTreeMap::new();
    for (number, table) in wanted.into_iter().enumerate() {
        let shown = shown(table)?;
        if args.json {
            let name = table.to_possible_value();
            let name = name.map_or_else(String::new, |it| it.get_name().to_owned());
            all.insert(name, shown.json);
            continue;
        }
        if number > 0 {
            print::line("")?;
        }
        print::table(&shown.head, &shown.cells)?;
    }
    if args.json {
        print::line(serde_json::to_string(&all)?)?;
    }
    Ok(())
}

/// A table, in both ways in which it is shown.
struct Shown {
    head: Vec<&'static str>,
    cells: Vec<Vec<String>>,
    json: serde_json::Value,
}

/// Ours beside theirs.
fn compared(table: PaperTable, rows: Vec<Row>) -> Result<Shown> {
    Ok(Shown {
        head: vec![heading(table), "ours", "theirs", "off", ""],
        cells: rows.iter().map(cells).collect(),
        json: serde_json::to_value(rows)?,
    })
}

/// Four places of an encoder with more and more pictures, and the sum of a run in which they become more.
fn mix() -> Result<Shown> {
    let (sweep, drift) = (omni::sweep()?, omni::drift()?);
    let seconds = |name: String, row: &MixRow| {
        let of = |seconds: f64| format!("{seconds:.2} ({:.2})", seconds / row.ideal_s);
        vec![
            name,
            format!("{:.2}", row.ideal_s),
            of(row.first_stage_s),
            of(row.apart_s),
            of(row.bubbles_s),
            of(row.on_demand_s),
        ]
    };
    let share = |row: &MixRow| format!("{:.0} %", 100.0 * row.share);
    let mut cells: Vec<_> = sweep.iter().map(|row| seconds(share(row), row)).collect();
    cells.push(seconds("41 steps, 10 to 90 %".to_owned(), &drift));
    Ok(Shown {
        head: vec![
            heading(PaperTable::Mix),
            "ideal",
            "first stage",
            "cards apart",
            "bubbles",
            "on demand",
        ],
        cells,
        json: serde_json::json!({ "sweep": sweep, "drift": drift }),
    })
}

fn shown(table: PaperTable) -> Result<Shown> {
    let rows = match table {
        PaperTable::Megascale => megascale(),
        PaperTable::Ladder => ladder(),
        PaperTable::Torchtitan => torchtitan(),
        PaperTable::VescaleFsdp => vescale_fsdp(),
        PaperTable::StartUp => start_up(),
        PaperTable::Bubbles => optimus::bubbles(),
        PaperTable::Optimus => optimus::steps(),
        PaperTable::Mix => return mix(),
    };
    compared(table, rows?)
}

const fn heading(table: PaperTable) -> &'static str {
    match table {
        PaperTable::Megascale => "MegaScale, 175B on A100: MFU in percent",
        PaperTable::Ladder => "its techniques, 256 cards: MFU in percent",
        PaperTable::Torchtitan => "Llama 3 8B, 8 H100: tokens/s of a card",
        PaperTable::VescaleFsdp => "veScale-FSDP, H800: ms, and ratios",
        PaperTable::StartUp => "groups at the start, 175B: seconds",
        PaperTable::Bubbles => "bubbles, 175B, 3,072 cards: percent",
        PaperTable::Optimus => "Optimus, 22B and 175B: seconds, percent",
        PaperTable::Mix => "pictures, 10B and 175B, 512 cards: seconds (of the ideal)",
    }
}

fn cells(row: &Row) -> Vec<String> {
    let digits = match row.unit {
        "tokens_per_second" => 0,
        "ratio" | "seconds" => 2,
        _ => 1,
    };
    let told = |number: f64| format!("{number:.digits$}");
    // Without this, what rounds to nothing from below would be shown as -0.
    let tenths = 10_f64.powi(digits as i32);
    let difference = (row.difference() * tenths).round() / tenths + 0.0;
    let origin = match row.origin {
        RowOrigin::Calibrated => "fitted",
        RowOrigin::Predicted => "predicted",
    };
    vec![
        row.run.clone(),
        told(row.ours),
        told(row.theirs),
        format!("{difference:+.digits$}"),
        origin.to_owned(),
    ]
}

/// A plan of one's own.
fn own(args: &TrainingArgs, model: &str) -> Result<()> {
    let run = training(args, model)?;
    let step = run.step()?;
    if args.json {
        let told = serde_json::json!({
            "model": run.model.size.name,
            "card": run.machine.card.name,
            "plan": run.plan,
            "techniques": run.techniques,
            "host_s": run.host_s,
            "step": step,
        });
        return Ok(print::line(told)?);
    }
    print::table(&["part of a step", "seconds", "share"], &parts(&step))?;
    let cards = figures::count(run.plan.cards.into());
    print::say(format!(
        "{} on {cards} {}: MFU {:.1} %, {} tokens/s, {} on each card, about {:.0} GB of its memory",
        run.model.size.name,
        run.machine.card.name,
        100.0 * step.utilisation,
        figures::short(step.tokens_per_second),
        figures::short(step.tokens_per_second / f64::from(run.plan.cards)),
        step.memory_gb,
    ));
    Ok(())
}

fn parts(step: &StepTime) -> Vec<Vec<String>> {
    let parts = &step.parts;
    let told = [
        ("kernels", parts.compute_s),
        ("the slowest machine", parts.straggler_s),
        ("collectives of tensor groups", parts.tensor_s),
        ("messages between stages", parts.pipeline_s),
        ("bubbles", parts.bubble_s),
        ("collectives of replicas", parts.data_s),
        ("optimiser and host", parts.rest_s),
        ("all", step.seconds),
    ];
    let row = |(part, seconds): (&str, f64)| {
        let share = format!("{:.1} %", 100.0 * seconds / step.seconds);
        vec![part.to_owned(), format!("{seconds:.3}"), share]
    };
    told.map(row).into()
}

fn training(args: &TrainingArgs, model: &str) -> Result<Training> {
    let machine = match args.card {
        CardKind::A100 => Machine::a100(),
        CardKind::H100 => Machine::h100(),
        CardKind::H800 => Machine::h800(),
    };
    let techniques = match args.system {
        System::Megatron => Techniques::MEGATRON,
        // Whose block and window are another network, which is the user's to choose.
        System::Megascale => Techniques {
            parallel_block: false,
            window: None,
            ..Techniques::MEGASCALE
        },
        System::Fsdp2 => Techniques::FSDP2,
        System::Fsdp2Compiled => Techniques::FSDP2_COMPILED,
    };
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut plan = TrainingPlan {
        cards: small(args.cards),
        tensor: small(args.tensor),
        pipeline: small(args.stages),
        chunks: small(args.chunks),
        batch: args.batch.unwrap_or_default() as u64,
        sequence: args.sequence as u64,
        micro_batch: args.micro_batch as u64,
        shared: args.share.into(),
        recomputed: args.recompute.into(),
    };
    if args.batch.is_none() {
        plan.batch = u64::from(plan.replicas().max(1)) * plan.micro_batch;
    }
    Ok(Training {
        machine,
        model: named(model)?,
        plan,
        techniques,
        host_s: HostSeconds::of(&techniques),
    })
}

/// A model by its name, or that of a folder.
fn named(model: &str) -> Result<TrainedModel> {
    Ok(match model {
        "gpt-175b" => TrainedModel::gpt_175b(),
        "gpt-530b" => TrainedModel::gpt_530b(),
        "llama3-8b" => TrainedModel::llama3_8b(),
        "llama3-70b" => TrainedModel::llama3_70b(),
        "gpt-oss-120b" => TrainedModel::gpt_oss_120b(),
        folder => {
            let path = Path::new(folder);
            if !path.is_dir() {
                bail!(
                    "there is no model \"{folder}\": give gpt-175b, gpt-530b, llama3-8b, llama3-70b, gpt-oss-120b, or a \
                     folder with a config.json"
                );
            }
            let fields = directory_fields(path).with_context(|| folder.to_owned())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            TrainedModel::of(&name, &fields)
        }
    })
}
