//! Export of a daemon to other tools: all that is seen of the cluster, while it leads.

use std::sync::Arc;

use anyhow::Result;
use odeon_cluster::Daemon;
use odeon_otel::{ExportSource, Exporter, Names, Settings};

/// Begins to export, where somebody asks for it. All who vote see the whole cluster, and only the one
/// that leads tells of it; the next goes on a little before where that may have ended.
pub(super) fn begin(daemon: &Arc<Daemon>, url: Option<&str>) -> Result<Option<Exporter>> {
    let Some(settings) = Settings::read(url)? else {
        return Ok(None);
    };
    let (naming, leading) = (Arc::clone(daemon), Arc::clone(daemon));
    let source = ExportSource {
        observer: daemon.observer().clone(),
        names: Box::new(move || names(&naming)),
        leads: Box::new(move || {
            let catalog = leading.catalog();
            catalog.is_voter() && catalog.leader().as_deref() == Some(leading.name())
        }),
    };
    let exporter = Exporter::start(&settings, source)?;
    // A cluster is up whatever becomes of its collector.
    tokio::spawn(async move {
        if let Err(error) = Exporter::probe(&settings).await {
            tracing::error!(%error, "what is seen is exported to nobody");
        }
    });
    Ok(Some(exporter))
}

fn names(daemon: &Daemon) -> Names {
    let jobs = daemon.catalog().read(|tables| {
        let jobs = tables.jobs.iter();
        jobs.map(|(id, job)| (id.to_string(), job.spec.name.clone()))
            .collect()
    });
    Names {
        whole: "odeon".to_owned(),
        jobs: jobs.unwrap_or_default(),
    }
}
