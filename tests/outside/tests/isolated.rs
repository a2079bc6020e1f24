//! Actors in processes of their own, in tests of another crate than Odeon's.

use std::path::Path;

use odeon::prelude::*;
use outside::{Abort, Add, AddText, Counter, Pid};

/// Returns true while there is a process of this number that is no corpse.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[odeon::test(actors(Counter))]
async fn an_actor_counts_in_another_process(system: System) {
    let counter = system.spawn::<Counter>(40).isolated().await.unwrap();
    assert_eq!(counter.ask(Add { n: 2 }).await.unwrap(), 42);
    let pid = counter.ask(Pid).await.unwrap();
    assert!(pid != std::process::id() && is_alive(pid));
}

#[odeon::test(actors(Counter), worker_threads = 4)]
async fn a_process_that_aborts_takes_nothing_with_it(system: System) -> anyhow::Result<()> {
    let far = system
        .spawn::<Counter>(1)
        .restart(Restart::Permanent)
        .isolated();
    let (near, far) = (system.spawn::<Counter>(1).await?, far.await?);
    let first = far.ask(Pid).await?;
    let died = far.ask(Abort).await.unwrap_err();
    assert!(matches!(died, AskError::Died(_)), "{died}");
    assert_eq!(near.ask(Add { n: 1 }).await?, 2);
    assert_ne!(far.ask(Pid).await?, first);
    assert!(!is_alive(first));
    Ok(())
}

#[odeon::test(actors(Counter))]
async fn an_error_of_a_handler_comes_with_its_text(system: System) -> odeon::Result<()> {
    let counter = system.spawn::<Counter>(0).isolated().await?;
    let text = |text: &str| AddText {
        text: text.to_owned(),
    };
    assert_eq!(counter.ask(text(" 7 ")).await??, 7);
    let failure = counter.ask(text("seven")).await?.unwrap_err();
    assert_eq!(failure.to_string(), "invalid digit found in string");
    Ok(())
}

#[odeon::test(actors(Counter))]
#[should_panic(expected = "as it should")]
async fn a_test_that_panics_leaves_no_process(system: System) {
    let counter = system.spawn::<Counter>(0).isolated().await.unwrap();
    let pid = counter.ask(Pid).await.unwrap();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    panic!("as it should");
}

#[odeon::test]
async fn a_test_may_take_no_system() {
    assert!(std::env::var_os("ODEON_WORKER").is_none());
}

#[tokio::test]
async fn a_test_without_an_entry_for_workers_is_told_what_to_write() {
    let begun = std::time::Instant::now();
    let system = System::local().await.unwrap();
    let error = system.spawn::<Counter>(0).isolated().await.unwrap_err();
    assert!(
        error.to_string().contains("#[odeon::test(actors(..))]"),
        "{error}"
    );
    assert!(system.admin().workers().is_empty());
    assert!(begun.elapsed() < Duration::from_secs(1));
    system.shutdown().await;
}
