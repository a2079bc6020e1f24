//! Tests of cluster descriptions.

use odeon_topology::LinkKind;
use serde_json::{Value, json};

use super::*;

fn spec(edit: impl FnOnce(&mut Value)) -> Result<View, String> {
    let mut value = json!({
        "devices": { "H200": { "memory_gib": 141 } },
        "elements": [
            { "name": "z", "level": "zone" },
            { "name": "r1", "level": "rack", "parent": "z",
              "link": { "kind": "infiniband", "bytes_per_second": 5e10 } },
            { "name": "r2", "level": "rack", "parent": "z" },
        ],
        "nodes": [
            { "name": "a", "count": 2, "parent": "r1", "cpus": 96, "memory_gib": 2048,
              "custom": { "nic": 4 }, "labels": { "disk": "ssd" },
              "gpus": { "model": "H200", "count": 8, "numa": 2, "switch": 2, "nvlink": "node" } },
            { "name": "b", "parent": "r2", "cpus": 0.5, "memory_gib": 0.25,
              "gpus": { "model": "H200", "count": 1 } },
        ],
        "links": {
            "nvlink": { "kind": "nvlink", "bytes_per_second": 4.5e11 },
            "zone": { "kind": "ethernet", "bytes_per_second": 1.25e10 },
        },
    });
    edit(&mut value);
    let spec: ClusterSpec = serde_json::from_value(value).map_err(|error| error.to_string())?;
    View::described(&spec).map_err(|error| error.to_string())
}

#[test]
fn a_description_becomes_a_view_with_links() {
    let view = spec(|_| ()).unwrap();
    let node = view.node("a-1").unwrap();
    assert_eq!(
        (node.zone.as_deref(), node.rack.as_deref()),
        (Some("z"), Some("r1"))
    );
    assert_eq!(
        node.capacity.to_string(),
        "96 cpu + 2048 GiB memory + 4 nic"
    );
    assert_eq!(node.labels["disk"], "ssd");
    let device = &node.devices[5];
    assert_eq!(
        (device.numa, device.switch, device.memory),
        (1, Some(2), 141 << 30)
    );
    assert_eq!(
        view.node("b").unwrap().capacity.to_string(),
        "0.5 cpu + 256 MiB memory"
    );
    let link = |a, b| view.link(a, b).map(|link| link.to_string());
    assert_eq!(link(("a-0", 0), ("a-0", 7)).unwrap(), "NVLink at 450 GB/s");
    assert_eq!(
        link(("a-0", 0), ("a-1", 0)).unwrap(),
        "InfiniBand at 50 GB/s"
    );
    assert_eq!(link(("a-0", 0), ("b", 0)).unwrap(), "Ethernet at 12.5 GB/s");
    for (a, b) in [
        (("a-0", 3), ("a-0", 3)),
        (("a-0", 8), ("a-0", 0)),
        (("x", 0), ("a-0", 0)),
    ] {
        assert_eq!(link(a, b), None);
    }
    let json = serde_json::to_string(&view).unwrap();
    let read: View = serde_json::from_str(&json).unwrap();
    assert_eq!(read, view);
    assert_eq!(
        read.link(("a-0", 0), ("a-1", 0)),
        view.link(("a-0", 0), ("a-1", 0))
    );
}

#[test]
fn nvlink_may_reach_a_rack() {
    let view = spec(|spec| spec["nodes"][0]["gpus"]["nvlink"] = json!("rack")).unwrap();
    let domain = |node: &str| view.node(node).unwrap().devices[0].nvlink.clone();
    assert_eq!(domain("a-0"), domain("a-1"));
    let link = view.link(("a-0", 0), ("a-1", 3)).unwrap();
    assert_eq!(link.kind, LinkKind::Nvlink);
}

#[test]
fn what_is_wrong_with_a_description_is_named() {
    let error = spec(|spec| spec["nodes"][0]["parent"] = json!("q")).unwrap_err();
    assert_eq!(error, "a-0 lies in q, which is not there");
    let bare = json!({ "name": "n", "level": "node" });
    let error = spec(|spec| spec["elements"].as_array_mut().unwrap().push(bare)).unwrap_err();
    assert_eq!(
        error,
        "n is a node without processors and memory: write it under `[[nodes]]` to place on it"
    );
}

#[test]
fn devices_of_the_file_s_own_elements_are_numbered_in_their_order() {
    let view = spec(|spec| {
        let elements = spec["elements"].as_array_mut().unwrap();
        elements.extend([
            json!({ "name": "b/s", "level": "switch", "parent": "b" }),
            json!({ "name": "b/x", "level": "device", "parent": "b/s", "model": "H200" }),
        ]);
    });
    let view = view.unwrap();
    let devices = &view.node("b").unwrap().devices;
    assert_eq!(devices.len(), 2);
    let mut known: Vec<_> = devices.iter().map(|it| (it.index, it.switch)).collect();
    known.sort_unstable();
    assert_eq!(known, [(0, Some(0)), (1, None)]);
}
