//! Resources: one for each process that is seen.

use std::collections::BTreeMap;

use odeon::ProcessId;
use odeon::inspect::ProcessKind;
use odeon_observe::ClusterView;
use odeon_observe::node::Process;
use opentelemetry::{Key, KeyValue};
use opentelemetry_proto::tonic::common::v1::KeyValue as Told;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::Attributes;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_semantic_conventions::attribute as names;

/// Names of processes beyond what is seen of them.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The name of the whole that is looked at: a run, a cluster. The name of whatever works for no
    /// job that is known.
    pub whole: String,
    /// The names of jobs, by their ids.
    pub jobs: BTreeMap<String, String>,
}

/// The namespace of what Odeon runs, unless the user's variables name another.
const NAMESPACE: &str = "odeon";

impl Names {
    /// The service name of a process.
    pub(crate) fn service(&self, process: &Process) -> &str {
        self.jobs.get(&process.job).unwrap_or(&self.whole)
    }
}

/// The resource that the user's variables describe, for all processes.
pub(crate) fn given() -> opentelemetry_sdk::Resource {
    let mut given = opentelemetry_sdk::Resource::builder_empty()
        .with_detector(Box::new(EnvResourceDetector::new()));
    let named = std::env::var("OTEL_SERVICE_NAME").ok();
    if let Some(name) = named.filter(|name| !name.is_empty()) {
        given = given.with_service_name(name);
    }
    given.build()
}

/// The resource of a process. What the user says of all of them stands above what is known of one,
/// but for what tells processes apart.
pub(crate) fn resource(
    process: &Process,
    names_of: &Names,
    given: &opentelemetry_sdk::Resource,
) -> Resource {
    let kind = match process.kind {
        ProcessKind::Node => "node",
        ProcessKind::Driver => "driver",
        ProcessKind::Worker => "worker",
    };
    let mut known = vec![
        KeyValue::new(names::SERVICE_NAME, names_of.service(process).to_owned()),
        KeyValue::new(names::SERVICE_NAMESPACE, NAMESPACE),
        KeyValue::new(names::SERVICE_VERSION, env!("CARGO_PKG_VERSION")),
        KeyValue::new(names::HOST_NAME, process.node.clone()),
    ];
    known.retain(|pair| given.get_ref(&pair.key).is_none());
    let from_user = given.iter();
    known.extend(from_user.map(|(key, value)| KeyValue::new(key.clone(), value.clone())));
    let own = [
        Some(KeyValue::new(
            names::SERVICE_INSTANCE_ID,
            instance(process.id),
        )),
        Some(KeyValue::new("odeon.node.name", process.node.clone())),
        Some(KeyValue::new("odeon.process.kind", kind)),
        (!process.job.is_empty()).then(|| KeyValue::new("odeon.job.id", process.job.clone())),
        process
            .pid
            .map(|pid| KeyValue::new(names::PROCESS_PID, i64::from(pid))),
        Some(KeyValue::new(names::TELEMETRY_SDK_NAME, "odeon")),
        Some(KeyValue::new(names::TELEMETRY_SDK_LANGUAGE, "rust")),
        Some(KeyValue::new(
            names::TELEMETRY_SDK_VERSION,
            env!("CARGO_PKG_VERSION"),
        )),
    ];
    let own: Vec<_> = own.into_iter().flatten().collect();
    let is_own = |key: &Key| own.iter().any(|pair| pair.key == *key);
    known.retain(|pair| !is_own(&pair.key));
    known.extend(own);
    let attributes: Vec<Told> = Attributes::from(known).0;
    Resource {
        attributes,
        ..Resource::default()
    }
}

/// The name that tells a process from all others of its service.
pub(crate) fn instance(process: ProcessId) -> String {
    format!("{:016x}", process.0)
}

/// The process that stands for the whole: the node that looks, or another.
pub(crate) fn home(seen: &ClusterView) -> Option<ProcessId> {
    let nodes = || seen.nodes().filter(|node| node.gone.is_none());
    let own = nodes().find(|node| node.clock.is_none());
    own.or_else(|| nodes().next()).map(|node| node.process)
}
