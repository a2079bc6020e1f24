//! The HTTP API of a cluster: what travels ([`types`]), and a client for it. An [`Inspector`] looks at
//! what runs ([`inspect`]), in a cluster or in one run.
//!
//! ```no_run
//! # async fn demo() -> Result<(), odeon_client::ClientError> {
//! use odeon_client::{Client, Submission};
//!
//! let client = Client::local()?;
//! let submission = Submission::of_program("target/release/my_job")?.arg("--steps=100");
//! let job = client.submit(&submission, |_| {}).await?;
//! let ended = client.wait(&job.id).await?;
//! println!("{} {}", ended.id, ended.state);
//! # Ok(())
//! # }
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `types`, `recovery`, `inspect` | what travels: the routes of a cluster; those about the recovery of ranks; those of inspection |
//! | `client`, `submission`, `connection` | the client; a job before it is submitted; how a cluster is found |
//! | `inspector`, `page`, `sse` | looking on; pages and how changes are applied; events out of the bytes of an answer |
//! | `majority`, `route` | the majority of the voters, as answers tell of it; names as parts of an address |

#![forbid(unsafe_code)]

mod client;
mod connection;
pub mod inspect;
mod inspector;
mod majority;
mod page;
pub mod recovery;
mod route;
mod sse;
mod submission;
pub mod types;

pub use client::{Client, ClientError};
pub use connection::{CONNECTION_FILE, Connection, default_folder};
pub use inspector::{Inspector, Live};
pub use majority::{MAJORITY_HEADER, Majority};
pub use page::{Asked, Page, Update, View};
pub use submission::{Submission, SubmissionError};
