//! actix in two ways: an existing actix actor behind an odeon reference, and an odeon actor on an
//! actix arbiter's thread, where it may hold what cannot leave a thread for long.

use actix::AsyncContext;
use anyhow::ensure;
use odeon::Actix;
use odeon::foreign::ActixActor;
use odeon::prelude::*;

// What an actix program has: an actor with a timer, and its messages.

struct Thermometer {
    degrees: f64,
    ticks: u32,
}

impl actix::Actor for Thermometer {
    type Context = actix::Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(Duration::from_millis(5), |thermometer, _| {
            thermometer.ticks += 1;
            thermometer.degrees += 0.1;
        });
    }
}

/// Asks for the temperature, and the number of ticks so far. The `#[odeon::message]` line is new.
#[derive(actix::Message)]
#[rtype(result = "(f64, u32)")]
#[odeon::message(reply = (f64, u32))]
struct Measure;

impl actix::Handler<Measure> for Thermometer {
    type Result = actix::MessageResult<Measure>;

    fn handle(&mut self, _: Measure, _: &mut Self::Context) -> Self::Result {
        assert!(self.degrees < 60.0, "the glass broke");
        actix::MessageResult((self.degrees, self.ticks))
    }
}

#[derive(actix::Message)]
#[rtype(result = "()")]
#[odeon::message]
struct Heat(f64);

impl actix::Handler<Heat> for Thermometer {
    type Result = ();

    fn handle(&mut self, Heat(degrees): Heat, _: &mut Self::Context) {
        self.degrees += degrees;
    }
}

// New for the actor: how it is made, and which of its messages others may send.

impl ActixActor for Thermometer {
    type Args = f64;

    fn make(degrees: f64, _: &mut actix::Context<Self>) -> Result<Self, Failure> {
        Ok(Self { degrees, ticks: 0 })
    }
}

odeon::register_actix!(Thermometer as "lab.Thermometer": Measure, Heat);

/// An odeon actor. Where it runs is said where it is spawned.
struct Stove {
    thermometer: Ref<Actix<Thermometer>>,
}

#[odeon::actor(name = "lab.Stove")]
impl Stove {
    fn start(thermometer: Ref<Actix<Thermometer>>) -> Self {
        Self { thermometer }
    }

    /// Heats, and answers the new temperature.
    #[handler]
    async fn heat_by(&mut self, degrees: f64) -> Result<f64, AskError> {
        // To the same actor, so in this order.
        self.thermometer
            .tell(Heat(degrees))
            .await
            .map_err(|refused| refused.error)?;
        Ok(self.thermometer.ask(Measure).await?.0)
    }

    #[handler]
    fn thread(&mut self) -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }
}

async fn story(system: System) -> anyhow::Result<()> {
    let thermometer = system.spawn::<Actix<Thermometer>>(20.0).await?;
    let stove = system.spawn::<Stove>(thermometer).host(Host::Actix).await?;
    let thread = stove.ask(Thread).await?;
    println!("the stove runs on the thread `{thread}`");
    ensure!(thread.starts_with("actix"));

    let hot = stove.ask(HeatBy { degrees: 10.0 }).await??;
    println!("heated by 10: about {hot:.0} degrees");
    ensure!((30.0..31.0).contains(&hot));

    let broken = stove.ask(HeatBy { degrees: 100.0 }).await?;
    println!("heated by 100: {broken:?}");
    ensure!(broken.is_err_and(|error| error.to_string().contains("the glass broke")));

    let (degrees, ticks) = thermometer.ask(Measure).await?;
    println!("a new thermometer: {degrees:.0} degrees after {ticks} ticks");
    ensure!((20.0..21.0).contains(&degrees));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Actix<Thermometer>, Stove].run(story)
}
