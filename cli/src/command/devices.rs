//! `odeon devices`: the accelerators of this machine and how they are.

use std::collections::BTreeMap;

use anyhow::Result;
use odeon_devices::inventory::{DeviceFacts, Inventory, Nvml, Probe, Reading};

use crate::args::DevicesArgs;
use crate::print;

pub(crate) fn run(args: &DevicesArgs) -> Result<()> {
    let inventory = Nvml::new().inventory();
    if args.json {
        return Ok(print::line(serde_json::to_string(&inventory)?)?);
    }
    show(&inventory)
}

fn show(inventory: &Inventory) -> Result<()> {
    match &inventory.driver {
        Reading::Measured(version) => {
            let cuda = match version.cuda.value() {
                Some((major, minor)) => format!(", CUDA up to {major}.{minor}"),
                None => String::new(),
            };
            print::line(format!("driver {}{cuda}", version.driver))?;
        }
        Reading::Unmeasured { why } => print::line(format!("no devices: {why}"))?,
    }
    for card in &inventory.unusable {
        print::line(format!("not used: {} ({})", card.bus_id, card.why))?;
    }
    if inventory.devices.is_empty() {
        return Ok(());
    }
    let mut gaps = BTreeMap::new();
    let rows: Vec<Vec<String>> = inventory
        .devices
        .iter()
        .map(|facts| row(facts, &mut gaps))
        .collect();
    print::table(&HEADINGS, &rows)?;
    for ((what, why), devices) in gaps {
        let devices: Vec<String> = devices.iter().map(u32::to_string).collect();
        print::line(format!("? {what} of {}: {why}", devices.join(", ")))?;
    }
    Ok(())
}

const HEADINGS: [&str; 9] = [
    "device",
    "model",
    "GiB in use",
    "busy",
    "°C",
    "W",
    "lost bits",
    "events",
    "processes",
];

/// Measurements that are missing and why, with the devices.
type Gaps = BTreeMap<(&'static str, String), Vec<u32>>;

fn row(facts: &DeviceFacts, gaps: &mut Gaps) -> Vec<String> {
    let index = facts.index;
    let mut cell = |what: &'static str, told: Result<String, &str>| match told {
        Ok(text) => text,
        Err(why) => {
            gaps.entry((what, why.to_owned())).or_default().push(index);
            "?".to_owned()
        }
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    vec![
        index.to_string(),
        cell("model", told(&facts.model, String::clone)),
        cell(
            "memory",
            told(&facts.memory, |memory| {
                format!(
                    "{:.1}/{:.0}",
                    gib(memory.used_bytes),
                    gib(memory.total_bytes)
                )
            }),
        ),
        cell(
            "utilisation",
            told(&facts.utilisation, |busy| {
                format!("{} %", busy.compute_percent)
            }),
        ),
        cell(
            "temperature",
            told(&facts.temperature_celsius, u32::to_string),
        ),
        cell(
            "power",
            told(&facts.power_milliwatts, |power| (power / 1000).to_string()),
        ),
        cell("ECC", told(&facts.ecc, |ecc| ecc.uncorrected.to_string())),
        cell(
            "events",
            told(&facts.xids, |xids| match xids.last() {
                None => "none".to_owned(),
                Some(last) => format!(
                    "{} (last Xid {})",
                    xids.len(),
                    last.code
                        .map_or_else(|| "?".to_owned(), |code| code.to_string())
                ),
            }),
        ),
        cell(
            "processes",
            told(&facts.processes, |processes| {
                let pids: Vec<String> = processes.iter().map(|p| p.pid.to_string()).collect();
                if pids.is_empty() {
                    "none".to_owned()
                } else {
                    pids.join(" ")
                }
            }),
        ),
    ]
}

fn told<T>(reading: &Reading<T>, tell: impl FnOnce(&T) -> String) -> Result<String, &str> {
    match reading {
        Reading::Measured(value) => Ok(tell(value)),
        Reading::Unmeasured { why } => Err(why),
    }
}
