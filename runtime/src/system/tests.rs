//! The start of a system, from what its job lists.

use super::System;

struct First;

#[odeon::actor(name = "system.Same")]
impl First {
    fn start(_: ()) -> Self {
        Self
    }
}

struct Second;

#[odeon::actor(name = "system.Same")]
impl Second {
    fn start(_: ()) -> Self {
        Self
    }
}

/// SEMANTICS 13: a worker that took one type for the other would misread.
#[tokio::test]
async fn two_actor_types_with_one_name_are_refused_by_their_names() {
    let start = System::builder().job(odeon::job![First, Second]).start();
    let error = start.await.unwrap_err().to_string();
    for word in ["tests::First`", "tests::Second`", "`system.Same`"] {
        assert!(error.contains(word), "{error}");
    }
    // One that is listed twice is one.
    let system = System::builder().job(odeon::job![First, First]).start();
    system.await.unwrap().shutdown().await;
}
