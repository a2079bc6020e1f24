//! A supervision tree in action when something breaks, told by the actors themselves.

use anyhow::ensure;
use odeon::prelude::*;

/// Writes the story down.
struct Narrator {
    lines: Vec<String>,
}

#[odeon::actor(name = "stage.Narrator")]
impl Narrator {
    fn start(_args: ()) -> Self {
        Self { lines: vec![] }
    }

    #[handler]
    fn tell_that(&mut self, line: String) {
        println!("  {line}");
        self.lines.push(line);
    }

    /// The lines since the last call.
    #[handler]
    fn turn_page(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

/// A stage of a pipeline: each needs the ones before it.
struct Stage {
    name: String,
    narrator: Ref<Narrator>,
}

#[odeon::actor(name = "stage.Stage")]
impl Stage {
    async fn start(args: (String, Ref<Narrator>)) -> Result<Self, Failure> {
        let (name, narrator) = args;
        let line = format!("{name} starts");
        narrator
            .ask(TellThat { line })
            .await
            .map_err(Failure::error)?;
        Ok(Self { name, narrator })
    }

    async fn stop(self) {
        let line = format!("{} stops", self.name);
        // The narrator outlives the stages.
        let _ = self.narrator.ask(TellThat { line }).await;
    }

    #[handler]
    fn fail(&mut self, cx: &mut Context<Self>) {
        cx.fail(Failure::error(format!("{} is broken", self.name)));
    }

    #[handler]
    fn ready(&mut self) {}
}

#[odeon::message(reply = Vec<Ref<Stage>>)]
struct Stages;

type Pipeline = Result<Vec<Ref<Stage>>, Failure>;

async fn pipeline<A: odeon::Actor>(narrator: Ref<Narrator>, cx: &Context<A>) -> Pipeline {
    let mut stages = vec![];
    for name in ["loader", "packer", "trainer"] {
        let stage = cx.spawn::<Stage>((name.to_owned(), narrator));
        stages.push(stage.await.map_err(Failure::error)?);
    }
    Ok(stages)
}

macro_rules! supervisor {
    ($name:ident, $stable:literal, $supervision:expr) => {
        struct $name(Vec<Ref<Stage>>);

        #[odeon::actor(name = $stable)]
        impl $name {
            fn supervision() -> Supervision {
                $supervision
            }

            async fn start(
                narrator: Ref<Narrator>,
                cx: &mut Context<Self>,
            ) -> Result<Self, Failure> {
                Ok(Self(pipeline(narrator, cx).await?))
            }

            #[handler(message = Stages)]
            fn stages(&mut self, _: Stages) -> Vec<Ref<Stage>> {
                self.0.clone()
            }
        }
    };
}
supervisor!(AllTogether, "stage.AllTogether", Supervision::one_for_all());
supervisor!(Downstream, "stage.Downstream", Supervision::rest_for_one());
supervisor!(
    NoPatience,
    "stage.NoPatience",
    Supervision::one_for_one().budget(0, Duration::from_secs(60))
);

async fn story(system: System) -> anyhow::Result<()> {
    let narrator = system.spawn::<Narrator>(()).await?;
    // What happened after the packer failed, once the trainer is ready again.
    let after_failure = async |stages: Vec<Ref<Stage>>| {
        narrator.ask(TurnPage).await?;
        println!("the packer fails:");
        stages[1].ask(Fail).await?;
        stages[1].ask(Ready).await?;
        stages[2].ask(Ready).await?;
        narrator.ask(TurnPage).await
    };

    println!("one for all: a pipeline that must restart together");
    let together = system.spawn::<AllTogether>(narrator).await?;
    let lines = after_failure(together.ask(Stages).await?).await?;
    ensure!(
        lines[..3] == ["packer stops", "trainer stops", "loader stops"],
        "{lines:?}"
    );
    ensure!(
        lines[3..] == ["loader starts", "packer starts", "trainer starts"],
        "{lines:?}"
    );

    println!("rest for one: what comes after the packer depends on it");
    let downstream = system.spawn::<Downstream>(narrator).await?;
    let lines = after_failure(downstream.ask(Stages).await?).await?;
    ensure!(
        lines
            == [
                "packer stops",
                "trainer stops",
                "packer starts",
                "trainer starts"
            ],
        "{lines:?}"
    );

    println!("escalation: a supervisor that may not restart anything");
    let patience = system
        .spawn::<NoPatience>(narrator)
        .restart(Restart::Temporary)
        .await?;
    let stages = patience.ask(Stages).await?;
    println!("the trainer fails:");
    stages[2].ask(Fail).await?;
    let Reason::Failed(failure) = patience.down().await.reason else {
        anyhow::bail!("the supervisor stayed");
    };
    println!("the supervisor gives up: {failure}");
    ensure!(failure.kind == FailureKind::Escalated);
    ensure!(failure.root_cause().message == "trainer is broken");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Narrator, Stage, AllTogether, Downstream, NoPatience].run(story)
}
