//! The recordings in the binary, and what to look at in them.

/// A recording in the binary. All of them together are small: less than the pages that show them.
#[derive(Debug)]
pub(crate) struct Demo {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Which page answers which question.
    pub(crate) look: &'static [(&'static str, &'static str)],
    pub(crate) bytes: &'static [u8],
}

macro_rules! demos {
    ($($name:literal: $about:literal, [$(($page:literal, $why:literal)),* $(,)?];)*) => {
        &[$(Demo {
            name: $name,
            about: $about,
            look: &[$(($page, $why)),*],
            bytes: include_bytes!(concat!("../demo/", $name, ".odr")),
        }),*]
    };
}

/// `cargo run -p odeon-tests --bin record` makes them anew. A static, since a constant lies in the
/// binary once for each place that it is used from.
pub(crate) static DEMOS: &[Demo] = demos![
    "deadlock": "two actors in two processes wait for each other", [
        ("Now", "who is in the circle, and since when"),
        ("Actors", "what each of them waits for: filter `state:waiting`"),
        ("Timeline", "the asks that do not end"),
    ];
    "oom": "a worker runs out of memory again and again, until its supervisor gives up", [
        ("Now", "the restart loop with its cause"),
        ("Events", "each death, and the last one"),
        ("Actors", "`state:failed`: all lives of the actor"),
    ];
    "lost-node": "one of three nodes is killed under load", [
        ("Cluster", "which node is down, and since when"),
        ("Events", "what ended with it"),
    ];
    "broadcast": "new weights go to readers on three nodes, and one edge is slow", [
        ("Transfers", "which copy is the straggler"),
        ("Timeline", "when each reader had them"),
    ];
    "crowd": "10,000 actors under load", [
        ("Actors", "who does most: sort by rate"),
        ("Now", "messages in a second, the deepest mailbox"),
    ];
    "rl": "a small reinforcement learning run, from the first step to the last", [
        ("Runs", "reward, loss, staleness, which version each rollout has"),
        ("Timeline", "generation, waiting and training side by side"),
    ];
];
