//! Nodes without a machine: each is linked to a cluster, says that it is up and runs nothing, while
//! the catalog has it run what it is told. A head is measured with them that knows more nodes and
//! actors than there is room for.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use odeon::{Clock, NodeIdentity, System, WorkerMode};
use odeon_artifacts::Digest;

use crate::catalog::{Catalog, Picture, WriteError};
use crate::daemon::{DaemonError, JOB};
use crate::fact::{Fact, NodeSpec, RefusalKind, Written};
use crate::job::{DEFAULT_NAMESPACE, Event, Hosted, JobId, JobSpec};
use crate::resources::JobResources;

/// The pause between two looks of a node, as a real one has it.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// A pretended node: up and linked, without work.
#[derive(Debug)]
pub struct Hollow {
    name: String,
    system: System,
    catalog: Catalog,
}

impl Hollow {
    /// Links one to the voter at this address, which is called `voter`, and says that it is up.
    ///
    /// # Errors
    /// What is in the way.
    #[odeon::boxed]
    pub async fn join(
        identity: NodeIdentity,
        through: SocketAddr,
        voter: &str,
    ) -> Result<Self, DaemonError> {
        let name = identity.node().to_owned();
        let types: odeon::ActorTypes = &[];
        let system = System::builder()
            .job(odeon::Job::new(JOB, types, &[]))
            .workers(WorkerMode::InProcess)
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), identity)
            .start()
            .await?;
        system.join(through).await?;
        let picture = Picture::of_voters(vec![voter.to_owned()]);
        let catalog = Catalog::new(system.clone(), name.clone(), picture);
        let spec = NodeSpec {
            name: name.clone(),
            boot: system.process().0,
            address: system
                .address()
                .map_or_else(String::new, |it| it.to_string()),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: 128,
            memory: 2 << 40,
            devices: vec!["NVIDIA H100 80GB HBM3".to_owned(); 8],
            votes: false,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        };
        system.scope(catalog.write_own(Fact::NodeUp(spec))).await?;
        // Any node looks at what the others do.
        let (looking, here) = (catalog.clone(), system.clone());
        tokio::spawn(async move {
            loop {
                Clock::sleep(LOOK_PAUSE).await;
                here.scope(looking.look_around()).await;
            }
        });
        Ok(Self {
            name,
            system,
            catalog,
        })
    }

    /// Has the catalog know of a detached actor that this node hosts.
    ///
    /// # Errors
    /// The catalog does not take it.
    #[odeon::boxed]
    pub async fn host(&self, actor: &str) -> Result<JobId, WriteError> {
        self.system.scope(self.write_host(actor)).await
    }

    async fn write_host(&self, actor: &str) -> Result<JobId, WriteError> {
        let spec = JobSpec {
            name: actor.to_owned(),
            namespace: DEFAULT_NAMESPACE.to_owned(),
            bundle: Digest::of(b"hollow"),
            args: vec![],
            env: BTreeMap::new(),
            priority: 0,
            retries: 0,
            node: Some(self.name.clone()),
            hosts: Some(Hosted {
                name: actor.to_owned(),
                actor: "hollow.Actor".to_owned(),
                kept: true,
                order: String::new(),
            }),
            resources: JobResources::default(),
            time_limit_s: None,
            after: vec![],
            array: None,
            links: BTreeMap::new(),
            grace_s: None,
            idle_limit_s: None,
            environment: None,
        };
        let by = self.name.clone();
        let written = self.catalog.write_for(Fact::JobSubmitted { spec, by });
        let Written::Job(job) = written.await? else {
            unreachable!("the catalog numbers what is submitted");
        };
        let (node, boot) = (self.name.clone(), self.system.process().0);
        let event = Event::Assigned {
            node,
            boot,
            reserved: vec![],
        };
        match self.catalog.write_for(Fact::Job { job, event }).await {
            Ok(_) => {}
            // The leader's controller was quicker.
            Err(WriteError::Refused(refusal)) if refusal.kind == RefusalKind::Conflict => {}
            Err(error) => return Err(error),
        }
        let event = Event::Started { attempt: 1, pid: 1 };
        self.catalog.write_own(Fact::Job { job, event }).await?;
        Ok(job)
    }
}
