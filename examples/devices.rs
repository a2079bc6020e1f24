//! Actors on devices: a gang and a critic, one device that fails, and a spare that takes over.
//! The devices are fakes, so it runs anywhere; without the line that says so they are the machine's.

use anyhow::{Context as _, Result};
use odeon::prelude::*;
use odeon_devices::fake::{Fake, Spec, Strike};
use odeon_placement::{Level, spares};
use odeon_topology::DeviceModel;

struct Trainer;

#[odeon::actor(name = "demo.Trainer")]
impl Trainer {
    /// The needs of each of them; a spawn may say otherwise.
    fn needs() -> Needs {
        Needs::new().gpus(1).device_memory(gib(80))
    }

    fn start() -> Self {
        Self
    }

    /// The number of its device on the node.
    #[handler]
    fn device(&mut self, cx: &mut Context<Self>) -> u32 {
        cx.devices()[0].index
    }
}

fn main() -> Result<()> {
    let model = DeviceModel {
        release_ms: 500,
        ..DeviceModel::default()
    };
    let fake = Fake::new(Spec::cluster(1, model))?;
    let devices = FakeDevices::new(&fake, "node0").context("the specification has node0")?;
    odeon::job![Trainer].run_with(
        |builder| builder.devices(devices),
        async |system| story(&system, &fake).await,
    )
}

async fn story(system: &System, fake: &Fake) -> Result<()> {
    // One spare is enough for 99 % of all days, if a device fails once in three years.
    let pool = system.standby(spares(4, 1.0 / 1000.0, 0.99)?, Trainer::needs())?;

    // All four, near each other, or none.
    let mesh = Mesh::new([("dp", 4)])?;
    let gang = system
        .spawn_group::<Trainer>(mesh, |_| ())
        .each(|_, trainer| trainer.restart(Restart::Permanent))
        .needs(|needs| needs.within(Level::Nvlink).standby(&pool))
        .await?;
    let mut before = vec![];
    for trainer in gang.members() {
        before.push(trainer.ask(Device).await?);
    }
    println!("the gang is on devices {before:?}");

    // Five more are not free. Who waits says who is in the way.
    let late = system.spawn::<Trainer>(()).gpus(5).start()?;
    let why = until(async || system.why(late).await.map(|why| why.to_string())).await;
    println!("the late one: {why}");
    late.stop().await?;

    // A device falls off the bus. Its process is replaced, the device rests.
    assert!(fake.strike(&format!("node0/gpu{}", before[2]), Strike::Lost));
    let moved: Ref<Trainer> = gang.members()[2];
    let now = until(async || moved.ask(Device).await.ok().filter(|now| *now != before[2])).await;
    println!("rank 2 went from device {} to {now}", before[2]);
    assert!(!before.contains(&now));
    let node = &system.nodes().await[0].node;
    let out: Vec<u32> = node
        .devices
        .iter()
        .filter(|device| device.health != odeon_placement::Health::Good)
        .map(|device| device.index)
        .collect();
    assert_eq!(out, [before[2]]);
    println!("out of service: {out:?}");
    Ok(())
}

/// Asks again and again until there is an answer.
async fn until<T>(ask: impl AsyncFn() -> Option<T>) -> T {
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        Clock::sleep(Duration::from_millis(20)).await;
    }
}
