//! Short runnable stories: one file each, beside this folder.
//!
//! ```text
//! cargo run -p odeon-examples --example counter
//! ```
//!
//! Each prints what happens and fails when it does not.

/// The programs of the guide, which are compiled and run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/guide/1-first-actor.md")]
    mod first_actor {}
    #[doc = include_str!("../../docs/guide/2-messages-and-errors.md")]
    mod messages_and_errors {}
    #[doc = include_str!("../../docs/guide/3-processes.md")]
    mod processes {}
    #[doc = include_str!("../../docs/guide/4-supervision.md")]
    mod supervision {}
    #[doc = include_str!("../../docs/guide/5-timers-and-tasks.md")]
    mod timers_and_tasks {}
    #[doc = include_str!("../../docs/guide/6-testing.md")]
    mod testing {}
    #[doc = include_str!("../../docs/guide/7-blocking-work.md")]
    mod blocking_work {}
    #[doc = include_str!("../../docs/guide/8-groups.md")]
    mod groups {}
    #[doc = include_str!("../../docs/guide/9-blobs.md")]
    mod blobs {}
    #[doc = include_str!("../../docs/guide/10-nodes-and-jobs.md")]
    mod nodes_and_jobs {}
    #[doc = include_str!("../../docs/guide/11-signals-and-logging.md")]
    mod signals_and_logging {}
    #[doc = include_str!("../../docs/guide/12-devices.md")]
    mod devices {}
}
