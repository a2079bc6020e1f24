//! Tests of descriptions of clusters.

use proptest::prelude::*;

use super::*;
use crate::LinkKind;

const FILE: &str = r#"
[devices.H200]
memory_gib = 141

[links.nvlink]
kind = "nvlink"
bytes_per_second = 4.5e11

[[elements]]
name = "z"
level = "zone"

[[elements]]
name = "r1"
level = "rack"
parent = "z"
link = { kind = "infiniband", bytes_per_second = 5e10, latency_s = 2e-6 }

[[nodes]]
name = "a"
count = 2
parent = "r1"
cpus = 96
memory_gib = 2048
gpus = { model = "H200", count = 8, numa = 2, switch = 2, nvlink = "node" }

[[nodes]]
name = "b"
cpus = 0.5
memory_gib = 0.25
gpus = { model = "H200", count = 1 }
"#;

#[test]
fn a_line_of_nodes_becomes_elements() {
    let cluster = ClusterSpec::from_toml(FILE).unwrap().cluster().unwrap();
    let named = |name: &str| cluster.topology.get(name).unwrap();
    assert_eq!(named("a-1").parent.as_deref(), Some("r1"));
    assert_eq!(named("a-1/gpu5").parent.as_deref(), Some("a-1/switch2"));
    assert_eq!(named("a-1/switch2").parent.as_deref(), Some("a-1/numa1"));
    assert_eq!(named("a-1/gpu5").nvlink.as_deref(), Some("a-1/nvlink"));
    assert_eq!(named("b/gpu0").parent.as_deref(), Some("b"));
    let nodes: Vec<&str> = cluster.nodes.iter().map(|(name, _)| &**name).collect();
    assert_eq!(nodes, ["a-0", "a-1", "b"]);
    let link = |level, name: &str| cluster.links.of(level, name).unwrap();
    assert_eq!(link(Level::Nvlink, "a-0/nvlink").bytes_per_second, 4.5e11);
    assert_eq!(link(Level::Rack, "r1").latency_s, 2e-6);
    assert_eq!(link(Level::Rack, "r1").kind, LinkKind::Infiniband);
}

#[test]
fn nvlink_of_a_rack_is_one_domain() {
    let text = FILE.replace("nvlink = \"node\"", "nvlink = \"rack\"");
    let cluster = ClusterSpec::from_toml(&text).unwrap().cluster().unwrap();
    let domain = |device: &str| cluster.topology.get(device).unwrap().nvlink.clone();
    assert_eq!(domain("a-0/gpu0").as_deref(), Some("r1/nvlink"));
    assert_eq!(domain("a-0/gpu0"), domain("a-1/gpu7"));
    let around = cluster.topology.get("r1/nvlink").unwrap();
    assert_eq!(around.parent.as_deref(), Some("r1"));
}

#[test]
fn equal_nodes_are_what_a_line_of_them_says() {
    let uniform = ClusterSpec::uniform(2, DeviceModel::default());
    let cluster = uniform.cluster().unwrap();
    let devices = cluster.topology.elements().iter();
    let devices = devices.filter(|it| it.level == Level::Device);
    assert_eq!(devices.count(), 16);
    let switch = cluster.topology.common("node1/gpu6", "node1/gpu7").unwrap();
    assert_eq!(switch.name, "node1/switch3");
    assert!(cluster.nodes.is_empty());
}

/// A change of the file, and how it is refused.
#[track_caller]
fn edited(from: &str, to: &str, expected: &str) {
    assert!(FILE.contains(from), "{from}");
    let error = ClusterSpec::from_toml(&FILE.replacen(from, to, 1)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    edited(
        "name = \"z\"\nlevel = \"zone\"",
        "name = \"z\"\nlevel = \"zone\"\nparent = \"z\"",
        "line 9: parts lie in one another: z in z: take the parent from one of them",
    );
    edited(
        "parent = \"z\"",
        "parent = \"q\"",
        "line 13: r1 lies in q, which is not there",
    );
    edited(
        "level = \"zone\"",
        "level = \"rack\"",
        "line 13: r1 (rack) cannot lie in z (rack): a parent is of a wider level",
    );
    edited(
        "name = \"r1\"",
        "name = \"z\"",
        "line 13: z stands there twice",
    );
    edited(
        "parent = \"r1\"",
        "parent = \"q\"",
        "line 19: a-0 lies in q, which is not there",
    );
    edited(
        "name = \"b\"",
        "name = \"a-1\"",
        "line 27: a-1 stands there twice",
    );
    edited(
        "bytes_per_second = 5e10",
        "bytes_per_second = 0",
        "line 13: bytes_per_second of the link of r1 is 0: a rate is above zero, a latency zero or more",
    );
    edited(
        "latency_s = 2e-6",
        "latency_s = -1",
        "line 13: latency_s of the link of r1 is -1: a rate is above zero, a latency zero or more",
    );
    edited(
        "bytes_per_second = 4.5e11",
        "bytes_per_second = -1",
        "line 5: bytes_per_second of the link of NVLink domain is -1: a rate is above zero, a latency \
         zero or more",
    );
    edited(
        "cpus = 96",
        "cpus = 0",
        "line 19: cpus of a: 0 is no quantity: give a number of at least 0.001 and at most 1e15, in \
         steps of 0.001",
    );
    edited(
        "count = 2\n",
        "count = 0\n",
        "line 19: a has 0 nodes: give one at least, or leave the line out",
    );
    edited(
        "count = 8",
        "count = 0",
        "line 19: a has 0 devices: leave `gpus` out",
    );
    edited(
        "count = 2\n",
        "count = 3000000\n",
        "line 19: a has 3000000 nodes: 100000 is the most",
    );
    edited(
        "count = 8",
        "count = 4000000000",
        "line 19: a has 4000000000 devices on a node: 128 is the most",
    );
    edited(
        "numa = 2",
        "numa = 3",
        "line 19: a has 8 devices, which cannot be divided into 3 NUMA nodes",
    );
    edited(
        "numa = 2, switch = 2",
        "numa = 4, switch = 4",
        "line 19: each NUMA node of a has 2 devices, which cannot be divided into switches of 4",
    );
    edited(
        "nvlink = \"node\"",
        "nvlink = \"zone\"",
        "line 19: NVLink of a reaches a zone: it can reach a node or a rack",
    );
    edited(
        "model = \"H200\", count = 1",
        "model = \"H100\", count = 1",
        "line 27: b is of model H100, which is not there: describe it under `[devices.H100]`",
    );
    edited(
        "memory_gib = 141",
        "memory_gib = 0",
        "line 2: memory_gib: 0 is no quantity: give a number of at least 0.001 and at most 1e15, in \
         steps of 0.001",
    );
    edited(
        "parent = \"z\"",
        "parents = \"z\"",
        "line 16: unknown field `parents`, expected one of `name`, `level`, `parent`, `link`, `model`, \
         `nvlink`, `bytes_per_second`",
    );
}

/// A node with an element more, and how it is refused; nothing where it is not.
#[track_caller]
fn with(element: &str, expected: Option<&str>) {
    let text =
        format!("[devices.m]\nmemory_gib = 1\n[[elements]]\nname = 'a'\nlevel = 'node'\n{element}");
    let read = ClusterSpec::from_toml(&text);
    assert_eq!(
        read.err().map(|error| error.to_string()).as_deref(),
        expected
    );
}

#[test]
fn elements_of_all_levels_can_stand_in_the_file() {
    with(
        "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'",
        None,
    );
    with(
        "[[elements]]\nname = 'l'\nlevel = 'nvlink'\nparent = 'a'\n\
         [[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'l'\nmodel = 'm'",
        Some(
            "line 10: d cannot lie in the NVLink domain l: put it into its node, and write \
             nvlink = \"l\"",
        ),
    );
    with(
        "[[elements]]\nname = 'r'\nlevel = 'rack'\nparent = 'a'",
        Some("line 6: r (rack) cannot lie in a (node): a parent is of a wider level"),
    );
    with(
        "[[elements]]\nname = 'b'\nlevel = 'rack'\nparent = 'c'\n\
         [[elements]]\nname = 'c'\nlevel = 'zone'\nparent = 'b'",
        Some("line 6: parts lie in one another: b in c in b: take the parent from one of them"),
    );
    with(
        "[[elements]]\nname = 'd'\nlevel = 'device'\nmodel = 'm'",
        Some("line 6: d lies in no node"),
    );
    with(
        "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'",
        Some("line 6: d has no `model`"),
    );
    with(
        "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'x'",
        Some("line 6: d is of model x, which is not there: describe it under `[devices.x]`"),
    );
    with(
        "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\nnvlink = 'a'",
        Some("line 6: d names the NVLink domain a, which is not there"),
    );
    with(
        "[[elements]]\nname = 'n'\nlevel = 'numa'\nparent = 'a'\nmodel = 'm'",
        Some("line 6: n is no device and has no `model`"),
    );
    with(
        "[[elements]]\nname = 'n'\nlevel = 'numa'\nparent = 'a'\nbytes_per_second = 0",
        Some("line 6: n has bytes_per_second = 0: leave it out for a link without a limit"),
    );
    with(
        "[[elements]]\nname = 'o'\nlevel = 'node'\n\
         [[elements]]\nname = 'l'\nlevel = 'nvlink'\nparent = 'o'\n\
         [[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\nnvlink = 'l'",
        Some("line 13: d names the NVLink domain l, but does not lie in o, where that is"),
    );
}

proptest! {
    /// Whatever stands in a file, it is read or refused, and what is read has every device in a node.
    #[test]
    fn numbers_of_a_line_make_a_tree_or_are_refused(
        count in 0_u32..5,
        gpus in 0_u32..20,
        numa in proptest::option::of(0_u32..5),
        switch in proptest::option::of(0_u32..5),
        nvlink in proptest::option::of(proptest::sample::select(Level::ALL.to_vec())),
    ) {
        let spec = ClusterSpec {
            devices: BTreeMap::from([("m".to_owned(), DeviceModel::default())]),
            nodes: vec![NodeSpec {
                name: "n".to_owned(),
                count: Some(count),
                parent: None,
                cpus: 1.0,
                memory_gib: 1.0,
                custom: BTreeMap::new(),
                labels: BTreeMap::new(),
                gpus: Some(GpuSpec { model: "m".to_owned(), count: gpus, numa, switch, nvlink }),
            }],
            ..ClusterSpec::default()
        };
        if let Ok(cluster) = spec.cluster() {
            let topology = &cluster.topology;
            let all = topology.elements().iter().filter(|it| it.level == Level::Device);
            prop_assert_eq!(all.clone().count() as u32, count * gpus);
            for device in all {
                prop_assert!(topology.around(&device.name, Level::Node).is_some());
                prop_assert_eq!(topology.around(&device.name, Level::Numa).is_some(), numa.is_some());
                prop_assert_eq!(topology.around(&device.name, Level::Switch).is_some(), switch.is_some());
            }
        }
    }
}
