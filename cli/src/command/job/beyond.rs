//! A word at the submission of a job that asks for more than any node has: it waits for other nodes. Pure.

use odeon_client::types::{Allotment, JobResources, Node};

use crate::figures;

/// What a job asks for that no node has, were it empty; none where one has all that a process of it asks
/// for. Of devices, what memory each has is not known here.
pub(super) fn beyond(asked: &JobResources, nodes: &[Node]) -> Option<String> {
    let here = || nodes.iter().filter(|node| HERE.contains(&&*node.state));
    let fits = |it: &Allotment| {
        here().any(|node| {
            it.cpu_milli <= u64::from(node.cpus) * 1000
                && it.memory_bytes <= node.memory_bytes
                && it.devices as usize <= node.devices.len()
        })
    };
    let lacking = [asked.driver, asked.rank]
        .into_iter()
        .find(|it| !fits(it))?;
    let largest = here().max_by_key(|node| {
        let devices = node.devices.len().min(lacking.devices as usize);
        let cpu_milli = (u64::from(node.cpus) * 1000).min(lacking.cpu_milli);
        (
            devices,
            cpu_milli,
            node.memory_bytes.min(lacking.memory_bytes),
        )
    });
    let asked = words(
        lacking.cpu_milli,
        lacking.memory_bytes,
        lacking.devices as usize,
    );
    let has = largest.map_or_else(String::new, |node| {
        let milli = u64::from(node.cpus) * 1000;
        let has = words(milli, node.memory_bytes, node.devices.len());
        format!("; the one that comes nearest, `{}`, has {has}", node.name)
    });
    Some(format!(
        "no node that is up could take it, were it empty: it asks for {asked}{has}; it waits for other nodes \
         to join, unless you cancel it"
    ))
}

/// Quantities as people read them.
fn words(cpu_milli: u64, memory: u64, devices: usize) -> String {
    let cpu = (cpu_milli > 0).then(|| format!("{} cpu", cpu_milli as f64 / 1000.0));
    let memory = (memory > 0).then(|| figures::bytes(memory as f64));
    let devices = (devices > 0).then(|| format!("{devices} gpu"));
    let all: Vec<String> = [cpu, memory, devices].into_iter().flatten().collect();
    all.join(", ")
}

/// States of nodes that may take jobs, or may again.
const HERE: [&str; 5] = ["up", "drained", "refused", "silent", "unknown"];

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: &str, cpus: u32, gib: u64, devices: usize) -> Node {
        Node {
            name: name.to_owned(),
            state: state.to_owned(),
            why: None,
            since_ms: 0,
            address: String::new(),
            release: String::new(),
            cpus,
            memory_bytes: gib << 30,
            devices: vec!["H200".to_owned(); devices],
            drivers: 0,
            upgrades: 0,
            unlimited: None,
            low_disk: None,
            refusals: 0,
            over_refusals: 0,
        }
    }

    #[test]
    fn a_job_that_no_node_could_take_is_told_so_with_the_numbers() {
        let nodes = [
            node("a", "up", 8, 16, 0),
            node("b", "up", 4, 64, 2),
            node("c", "lost", 64, 512, 8),
        ];
        let asks = |cpu_milli, gib: u64, devices| JobResources {
            driver: Allotment {
                cpu_milli,
                memory_bytes: gib << 30,
                devices,
                device_memory_bytes: 0,
            },
            ..JobResources::default()
        };
        for fits in [asks(8000, 16, 0), asks(4000, 64, 2), asks(0, 0, 0)] {
            assert_eq!(beyond(&fits, &nodes), None, "{fits:?}");
        }
        let said = beyond(&asks(1000, 0, 8), &nodes).unwrap();
        assert!(
            said.contains("it asks for 1 cpu, 8 gpu; the one that comes nearest, `b`, has 4 cpu"),
            "{said}"
        );
        assert!(said.contains("2 gpu; it waits for other nodes"), "{said}");
        // Each alone is there, on no node both.
        assert!(beyond(&asks(8000, 0, 1), &nodes).is_some());
        let ranks = JobResources {
            ranks: 2,
            rank: asks(16_000, 0, 0).driver,
            ..JobResources::default()
        };
        let said = beyond(&ranks, &nodes).unwrap();
        assert!(
            said.contains("it asks for 16 cpu; the one that comes nearest, `a`"),
            "{said}"
        );
        assert!(beyond(&ranks, &[]).is_some());
    }
}
