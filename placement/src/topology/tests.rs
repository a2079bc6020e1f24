//! Tests of cluster descriptions.

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
    spec.view().map_err(|error| error.to_string())
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
    #[track_caller]
    fn check(path: &str, value: Value, expect: &str) {
        let edited = spec(|spec| *spec.pointer_mut(path).unwrap() = value);
        let error = edited.unwrap_err();
        assert!(error.contains(expect), "{error}");
    }
    let element = |name: &str, level: &str, parent: &str| json!({ "name": name, "level": level, "parent": parent });
    let ring = json!([element("x", "rack", "y"), element("y", "rack", "x")]);
    check("/elements", ring, "x, y lie in each other");
    let below = json!([
        element("r1", "rack", "x"),
        element("x", "zone", "y"),
        element("y", "zone", "x")
    ]);
    check("/elements", below, "x, y lie in each other");
    check(
        "/elements/0",
        element("z", "zone", "z"),
        "z lie in each other",
    );
    check(
        "/elements/1",
        element("r1", "rack", "r2"),
        "r1 (rack) lies in r2 (rack): a parent must be",
    );
    check(
        "/elements/1/parent",
        json!("q"),
        "r1 lies in q, which the file does not describe",
    );
    check(
        "/nodes/0/parent",
        json!("q"),
        "a lies in q, which the file does not describe",
    );
    check(
        "/elements/0/level",
        json!("node"),
        "z is a node: elements are zones and racks",
    );
    check("/elements/2/name", json!("r1"), "r1 stands twice");
    check("/nodes/1/name", json!("a-1"), "a-1 stands twice");
    check("/nodes/0/cpus", json!(0), "cpus of a: 0 is no quantity");
    check(
        "/nodes/0/count",
        json!(3_000_000),
        "a has 3000000 nodes: 100000 is the most",
    );
    check(
        "/nodes/0/gpus/count",
        json!(4_000_000_000_u32),
        "4000000000 devices on a node: 128 is the most",
    );
    check(
        "/nodes/0/memory_gib",
        json!(-1),
        "memory_gib of a: -1 is no quantity",
    );
    check(
        "/nodes/0/custom/nic",
        json!(-4),
        "nic of a: -4 is no quantity",
    );
    check("/nodes/0/count", json!(0), "count of a: 0 is no quantity");
    check(
        "/nodes/0/gpus/model",
        json!("B200"),
        "a-0 has devices of the model B200, which",
    );
    check("/nodes/0/gpus/count", json!(0), "a-0 has 0 devices");
    check(
        "/nodes/0/gpus/numa",
        json!(3),
        "a-0 has 8 devices, which cannot be divided into 3 NUMA",
    );
    check(
        "/nodes/0/gpus/switch",
        json!(0),
        "a-0 has 8 devices, which cannot be divided into 0 a",
    );
    check(
        "/nodes/0/gpus/nvlink",
        json!("zone"),
        "NVLink of a-0 reaches a zone",
    );
    check(
        "/devices/H200/memory_gib",
        json!(0),
        "memory_gib of H200: 0 is no quantity",
    );
    check(
        "/links/zone/bytes_per_second",
        json!(0),
        "bytes_per_second of zone: 0 is no quantity",
    );
    check(
        "/elements/1/link/bytes_per_second",
        json!(-1.0),
        "bytes_per_second of r1: -1",
    );
    check(
        "/elements/1/link/kind",
        json!("string"),
        "unknown variant `string`",
    );
    let unknown = spec(|spec| spec["nodes"][0]["gpu"] = json!(8)).unwrap_err();
    assert!(unknown.contains("unknown field `gpu`"), "{unknown}");
}
