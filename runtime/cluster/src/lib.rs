//! A cluster of Odeon nodes: its memory, its jobs, and the daemon that a machine runs.
//!
//! ```text
//!  submit ─ files, cut into pieces ─> Store          a daemon per machine:
//!         └ JobSubmitted ─> Catalog                    Daemon ─ engine, links, Mesh
//!                              │ the same tables on every voter   │
//!                              v                                  v
//!                          Controller ── begin, finish ───────> Agent ─ Staging, Driver, Forward
//!                              ^                                  │
//!                              └───────── Started, Over ──────────┘
//! ```
//!
//! - The [`catalog`] is what the cluster remembers: nodes, jobs, keys, quotas. [`tables`] is a pure
//!   state machine; openraft replicates it, redb keeps it.
//! - The [`controller`] acts while its node leads the voters: [`controller::plan`] says what is next.
//! - An agent on each node brings a job's files there ([`odeon_artifacts`]), runs its driver, and
//!   tells the catalog how that ends; [`attempts`] says what begins and what has to end.
//! - What jobs print goes to the voters' [`logs`].
//!
//! Daemons are an Odeon program: they reach each other through actors and names, over the links that
//! the jobs use too. HTTP is not known here; the `odeon` command brings it.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `fact`, `tables`, `job` | facts that the catalog is told, and by whom; its rows; the life of a job. Pure |
//! | `tables/bans`, `left_nodes` | nodes that nothing is placed on, and those that are refused since jobs have left them. Pure |
//! | `job/*`, `tables/jobs`, `tables/arrays`, `tables/reservations`, `tables/room` | a job as it is submitted (`spec`), what happens to it (`event`), the programs that it goes over to and back from (`version`); what the catalog takes in of jobs; arrays, and jobs after others (`array`), and what the end of one means for those behind it; the parts of nodes that tries have to themselves, and what they leave. Pure |
//! | `resources` | what a job asks for, what a try of it has reserved. Pure |
//! | `catalog`, `catalog/*` | the catalog as a node sees it; facts on their way into the log (`writing`), a node's own vote and changes of who votes (`vote`), the picture of one that does not vote (`picture`) |
//! | `raft`, `raft/*` | the replicated log below it: on disk, as state machine, between voters, commands that go into it together, a voter that is left alone |
//! | `controller`, `controller/*` | the leader's part; what is next (`plan`), which of the jobs that ask for resources begin where (`admission`), who votes (`voters`), all three pure |
//! | `voting`, `presence`, `disk_room` | a node's part in voting: its disk for the log, the authority's key; what a node says of itself; when its disk is nearly full (pure) |
//! | `submit` | taking a job in, or another version of it: its files, then its row |
//! | `agent`, `agent/*`, `attempts` | a node's part in running jobs; how other nodes reach it (`actor`), a try from its files to its outcome (`driving`), tries over an upgrade (`handoff`), a try before its processes (`preparing`) and the environment that it runs in (`environments`) with what a failing setup said last (`environments/last_words`, pure) and what in an environment names the folder of a job (`environments/places`), tries that do nothing (`idle`), versions on trial (`trial`), where their programs stand (`stacks`), files of jobs from other agents (`giving`); which tries run, whatever orders come (pure) |
//! | `staging` | bringing a job's files to a node |
//! | `staging/*` | files that are read while they come: when that is worth it (`demand`, pure), a bundle as folders, files and parts of pieces (`tree`, pure), as a file system (`mount`), which tries use which (`mounts`), from a try's begin to its end (`mounted`), what is read first and then the rest (`arriving`), the nodes that give them (`givers`), mounts of a killed daemon (`stale`), environments on a node's disk (`environments`), and which of them stay (`environments/life`, pure) |
//! | `environment`, `environment/inputs`, `tables/environments` | the environment that a job is to run in, and its key; the files of the job that making it reads; who installs which, and which are there (pure) |
//! | `startup` | how long each stage of a start took, by node and over all (pure) |
//! | `admit`, `admit/gate`, `access` | taking new nodes in by token: making one, judging one; the rights of keys |
//! | `forward`, `forward/waiting` | output of processes on its way; what waits, and who waits for that (pure) |
//! | `logs`, `logs/*` | output as a voter keeps it (`journal`), as all voters are asked for it (`archive`), put together (`merge`, pure), a reader's place (`cursor`) |
//! | `observer`, `history` | what a node shows and sees of the cluster; events and actors on a node's disk, for the next daemon in its folder |
//! | `upgrade` | a daemon that becomes another release: which program may take over, the state it is left |
//! | `daemon`, `daemon/*` | a node with all of that: its start, step by step (`start`), links to all others (`mesh`), programs of jobs before there is an agent (`late_programs`) |
//! | `doctor`, `doctor/facts` | what of a machine, or of several beside each other, would be in the way of jobs, and what to change (pure); how that is read |
//! | `folder`, `stale_drivers` | what a node keeps between two starts; drivers that a killed daemon has left |
//! | `cgroups` | groups that hold a try to the processors and the memory that it has reserved |
//! | `orphan_processes` | processes of a try that have left its process groups |
//! | `own_program` | the daemon's own executable as a source of pieces |
//! | `reason` | reasons that people give |
//! | `hollow` | nodes without a machine, to measure a head with |
//! | `node_directory`, `json`, `local_only`, `unix` | names of a daemon's actors; messages between daemons; parts of a process that its actors are made from; moments |

#![forbid(unsafe_code)]

pub mod access;
pub mod admit;
mod agent;
pub mod attempts;
pub mod catalog;
mod cgroups;
pub mod controller;
pub mod daemon;
mod disk_room;
pub mod doctor;
pub mod environment;
pub mod fact;
pub mod folder;
mod forward;
mod history;
pub mod hollow;
pub mod job;
mod json;
mod left_nodes;
pub mod local_only;
pub mod logs;
pub mod node_directory;
mod observer;
mod orphan_processes;
mod own_program;
mod presence;
mod raft;
pub mod reason;
pub mod resources;
mod staging;
mod stale_drivers;
pub mod startup;
pub mod submit;
pub mod tables;
pub mod unix;
pub mod upgrade;
mod voting;

pub use daemon::{Daemon, DaemonConfig, DaemonError, NodeEntry};
pub use disk_room::DiskBound;
pub use folder::FolderError;
pub use staging::demand::OnDemand;
