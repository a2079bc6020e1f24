//! Free memory of the heap, which a daemon gives back to the system now and then.
//!
//! What a job takes and leaves lies between things that are remembered, so the allocator of glibc keeps pages
//! that hold nothing: some 8 KB for each job, which a daemon would hold for as long as it runs.

use std::time::Duration;

use odeon::Clock;

/// The time between two times that free pages are given back; one takes a few milliseconds.
const PAUSE: Duration = Duration::from_secs(30);

/// Gives free pages back again and again, until the future is dropped.
pub(crate) async fn keep_trimmed() {
    loop {
        Clock::sleep(PAUSE).await;
        if let Err(error) = tokio::task::spawn_blocking(trim).await {
            tracing::warn!(%error, "free memory is not given back");
        }
    }
}

/// Gives the pages of the heap that hold nothing back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the allocator is asked by its own function")]
fn trim() {
    unsafe extern "C" {
        fn malloc_trim(kept_bytes: usize) -> std::ffi::c_int;
    }
    // SAFETY: it takes a number, locks what it touches, and touches nothing that is in use.
    unsafe { malloc_trim(0) };
}

/// Other allocators give pages back by themselves, or have no such function.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
