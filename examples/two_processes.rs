//! The same program text with the actor in this process and in one of its own, which is killed and
//! comes back.

use anyhow::{Context as _, bail, ensure};
use odeon::prelude::*;

/// Guesses words from a dictionary that takes a while to load, so it is worth keeping alive.
struct Speller {
    words: Vec<String>,
}

#[odeon::actor(name = "demo.Speller")]
impl Speller {
    fn start(words: Vec<String>) -> Result<Self, Failure> {
        if words.is_empty() {
            Err(Failure::error("no words"))
        } else {
            Ok(Self { words })
        }
    }

    /// The known word with the fewest letters in another place.
    #[handler]
    fn spell(&mut self, word: String) -> Option<String> {
        let distance = |known: &&String| {
            let same = known
                .chars()
                .zip(word.chars())
                .filter(|(a, b)| a == b)
                .count();
            known.len().max(word.len()) - same
        };
        self.words.iter().min_by_key(distance).cloned()
    }

    #[handler]
    fn pid(&mut self) -> u32 {
        std::process::id()
    }
}

/// Knows nothing of processes.
async fn use_it(speller: Ref<Speller>) -> Result<String, AskError> {
    let guess = speller
        .ask(Spell {
            word: "gradiend".to_owned(),
        })
        .await?;
    Ok(guess.unwrap_or_default())
}

async fn story(system: System) -> anyhow::Result<()> {
    let words = ["tensor", "gradient", "optimizer"]
        .map(str::to_owned)
        .to_vec();

    let near = system.spawn::<Speller>(words.clone()).await?;
    let guess = use_it(near).await?;
    println!("in this process ({}): {guess}", near.ask(Pid).await?);
    ensure!(guess == "gradient");
    ensure!(near.ask(Pid).await? == std::process::id());

    let far = system
        .spawn::<Speller>(words)
        .isolated()
        .restart(Restart::Permanent)
        .await?;
    let first = far.ask(Pid).await?;
    let guess = use_it(far).await?;
    println!("in a process of its own ({first}): {guess}");
    ensure!(guess == "gradient" && first != std::process::id());

    println!("SIGKILL to {first}");
    let process = system
        .admin()
        .process_of(far)
        .context("it runs somewhere")?;
    ensure!(system.admin().kill_worker(process));
    let Reason::Failed(failure) = far.down().await.reason else {
        bail!("it ended in order");
    };
    println!("its reference learns: {failure}");
    ensure!(failure.kind == FailureKind::ProcessLost);

    // The reference stays good. Mail waits until the actor has a process again.
    let guess = use_it(far).await?;
    let second = far.ask(Pid).await?;
    println!("back in another process ({second}): {guess}");
    ensure!(guess == "gradient" && second != first);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    // The worker processes are this executable too: `run` sees which one it is.
    odeon::job![Speller].run(story)
}
