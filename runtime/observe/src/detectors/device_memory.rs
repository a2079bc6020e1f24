//! Devices whose memory is nearly full.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::bounds::DEVICE_FULL;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds devices whose memory is nearly full.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullDevices;

impl Detector<ClusterView> for FullDevices {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        full_devices(seen, now).collect()
    }
}

fn full_devices(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let nodes = seen.nodes().filter(|node| node.gone.is_none());
    let views = nodes.filter_map(|node| Some((node, node.hardware.as_ref()?)));
    views.flat_map(move |(node, view)| {
        view.readings.iter().filter_map(move |reading| {
            let mut devices = view.node.devices.iter();
            let device = devices.find(|device| device.index == reading.index)?;
            let used = *reading.memory_used.value()?;
            let part = used as f64 / device.memory as f64;
            if device.memory == 0 || part < DEVICE_FULL {
                return None;
            }
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            let sentence = format!(
                "device {} of node {} has {:.1} of {:.1} GiB in use, {:.0} % (limit 95 %)",
                device.index,
                node.name,
                gib(used),
                gib(device.memory),
                part * 100.0
            );
            let subject = Subject::Device(node.name.clone(), device.index);
            Some(finding(
                "device_memory",
                Severity::Warning,
                now,
                sentence,
                vec![subject],
            ))
        })
    })
}
