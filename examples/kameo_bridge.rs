//! An existing kameo actor behind an odeon reference: supervised, and in a process of its own.

use anyhow::ensure;
use odeon::Kameo;
use odeon::prelude::*;
use serde::{Deserialize, Serialize};

// What a kameo program has: an actor and its messages.

#[derive(Clone, Serialize, Deserialize, kameo::Actor)]
struct Account {
    balance: u64,
}

/// The one line that is new for a message. It needs serde, for it may travel.
#[odeon::message(reply = Result<u64, String>)]
struct Withdraw {
    amount: u64,
}

impl kameo::message::Message<Withdraw> for Account {
    type Reply = Result<u64, String>;

    async fn handle(
        &mut self,
        Withdraw { amount }: Withdraw,
        _: &mut kameo::message::Context<Self, Self::Reply>,
    ) -> Self::Reply {
        assert_ne!(amount, 666, "the number of the beast");
        let left = self.balance.checked_sub(amount);
        self.balance = left.ok_or_else(|| format!("only {} left", self.balance))?;
        Ok(self.balance)
    }
}

// And the one line that is new for the actor. `#[derive(kameo::Actor)]` makes it its own arguments.
odeon::register_kameo!(Account as "bank.Account": Withdraw);

async fn story(system: System) -> anyhow::Result<()> {
    let first = Account { balance: 100 };
    let account = system
        .spawn::<Kameo<Account>>(first)
        .isolated()
        .restart(Restart::Permanent)
        .await?;

    let left = account.ask(Withdraw { amount: 30 }).await?;
    println!("withdrew 30: {left:?}");
    ensure!(left == Ok(70));

    let refused = account.ask(Withdraw { amount: 300 }).await?;
    println!("withdrew 300: {refused:?}");
    ensure!(refused == Err("only 70 left".to_owned()));

    let Err(error) = account.ask(Withdraw { amount: 666 }).await else {
        anyhow::bail!("a panic was answered");
    };
    println!("withdrew 666: {error}");
    ensure!(matches!(error, AskError::Died(_)) && error.to_string().contains("beast"));

    let left = account.ask(Withdraw { amount: 1 }).await?;
    println!("made again by its supervisor, withdrew 1: {left:?}");
    ensure!(left == Ok(99));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Kameo<Account>].run(story)
}
