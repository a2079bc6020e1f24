//! Requests as people read them, what cannot be meant, and how both lie on a disk.

use super::*;
use crate::job::JobSpec;

const GIB: u64 = 1 << 30;

fn allotment(cpu_milli: u64, memory: u64, devices: u32, each: u64) -> Allotment {
    Allotment {
        cpu_milli,
        memory_bytes: memory * GIB,
        devices,
        device_memory_bytes: each * GIB,
    }
}

#[test]
fn requests_read_as_people_write_them() {
    let one = allotment(1500, 4, 2, 20);
    for (asked, text) in [
        (
            JobResources::of_driver(one),
            "2 gpu of 20 GiB each + 1.5 cpu + 4 GiB memory",
        ),
        (
            JobResources::of_driver(allotment(0, 0, 1, 20)),
            "1 gpu of 20 GiB",
        ),
        (JobResources::of_driver(allotment(250, 0, 0, 0)), "0.25 cpu"),
        (
            JobResources::of_ranks(4, allotment(1000, 0, 1, 0)),
            "4 x (1 gpu + 1 cpu)",
        ),
        (
            JobResources::of_ranks(4, allotment(0, 0, 1, 0)).up_to(8),
            "4 to 8 x (1 gpu)",
        ),
        (
            JobResources {
                driver: allotment(1000, 0, 0, 0),
                ..JobResources::of_ranks(2, allotment(0, 1, 0, 0))
            },
            "1 cpu, and 2 x (1 GiB memory)",
        ),
    ] {
        assert_eq!(asked.check(), Ok(()), "{text}");
        assert_eq!(asked.to_string(), text);
    }
    assert_eq!(Bytes(1000).to_string(), "1000 bytes");
}

#[test]
fn what_nobody_can_mean_is_refused() {
    let some = allotment(1000, 0, 0, 0);
    for (asked, why) in [
        (JobResources::of_ranks(5000, some), "5000 ranks"),
        (JobResources::of_ranks(4, some).up_to(5000), "5000 ranks"),
        (
            JobResources::of_ranks(8, some).up_to(4),
            "8 ranks at least and 4 at most",
        ),
        (
            JobResources::of_ranks(2, Allotment::default()),
            "says what each",
        ),
        (JobResources::of_ranks(0, some), "says what each"),
        (
            JobResources::of_driver(allotment(0, 0, 0, 20)),
            "but no device",
        ),
        (
            JobResources::of_driver(allotment(0, 0, 200, 0)),
            "200 devices",
        ),
        (
            JobResources::of_driver(allotment(0, 1 << 25, 0, 0)),
            "more than any node has",
        ),
        (
            JobResources::of_driver(allotment(u64::MAX, 0, 0, 0)),
            "more than any node has",
        ),
    ] {
        let refused = asked.check().unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

/// SEMANTICS 59.
#[test]
fn a_job_of_an_older_release_asks_for_nothing_and_writes_nothing_new() {
    let digest = odeon_artifacts::Digest::of(b"files");
    let old = format!(
        r#"{{"name":"a","namespace":"default","bundle":"{digest}","args":[],"env":{{}},"priority":0,"retries":0,"node":null}}"#
    );
    let spec: JobSpec = serde_json::from_str(&old).unwrap();
    assert!(spec.resources.is_empty() && spec.time_limit_s.is_none());
    assert_eq!(serde_json::to_string(&spec).unwrap(), old);
    let asked = JobResources::of_ranks(2, allotment(1000, 0, 1, 20));
    let spec = JobSpec {
        resources: asked,
        time_limit_s: Some(60),
        ..spec
    };
    let text = serde_json::to_string(&spec).unwrap();
    let tail = r#""resources":{"ranks":2,"rank":{"cpu_milli":1000,"devices":1,"device_memory_bytes":21474836480}},"time_limit_s":60}"#;
    assert!(text.ends_with(tail), "{text}");
    assert_eq!(serde_json::from_str::<JobSpec>(&text).unwrap(), spec);
}
