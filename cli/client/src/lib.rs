//! The HTTP API of a cluster: what travels ([`types`]), and a client for it.
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

#![forbid(unsafe_code)]

mod client;
mod connection;
pub mod inspect;
mod majority;
mod route;
mod submission;
pub mod types;

pub use client::{Client, ClientError};
pub use connection::{CONNECTION_FILE, Connection, default_folder};
pub use majority::{MAJORITY_HEADER, Majority};
pub use submission::{Submission, SubmissionError};
