//! kameo with its `remote` feature: a libp2p swarm in each process, over the two transports of its
//! `bootstrap`. The swarms are built by hand, as kameo advises for production: without discovery,
//! since the client knows the server's address, and with room for all asks.

use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt;
use kameo::actor::{RemoteActorRef, Spawn};
use kameo::message::{Context, Message};
use kameo::{Actor, RemoteActor, remote, remote_message};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, SwarmBuilder, noise, tcp, yamux};
use odeon::Clock;
use serde::{Deserialize, Serialize};

use super::Subject;
use crate::figures::{Figures, OUTSTANDING, PAYLOAD, Payload};
use crate::server::{Server, serve_at};

const NAME: &str = "mirror";

/// Each ask is a stream. Beyond the defaults (100 of kameo, 256 of QUIC, 512 of yamux) asks fail.
const STREAMS: usize = 2 * OUTSTANDING;

#[derive(Actor, RemoteActor)]
struct Mirror;

#[derive(Serialize, Deserialize)]
struct Reflect(Payload);

#[remote_message]
impl Message<Reflect> for Mirror {
    type Reply = Payload;

    async fn handle(&mut self, Reflect(words): Reflect, _: &mut Context<Self, Payload>) -> Payload {
        words
    }
}

pub(super) async fn measure(subject: Subject) -> Result<Figures> {
    let server = Server::start(subject, tempfile::tempdir()?)?;
    let address: Multiaddr = server.address.parse()?;
    let Some(Protocol::P2p(peer)) = address.iter().last() else {
        bail!("{address} names no peer");
    };
    let mut swarm = swarm()?;
    // The lookup asks the peers whose addresses it knows.
    swarm.add_peer_address(peer, address.clone());
    swarm.dial(address)?;
    until(&mut swarm, |event| {
        matches!(event, SwarmEvent::ConnectionEstablished { .. }).then_some(())
    })
    .await;
    drop(tokio::spawn(drive(swarm)));
    let mirror = loop {
        if let Some(found) = RemoteActorRef::<Mirror>::lookup(NAME).await? {
            break found;
        }
        Clock::sleep(Duration::from_millis(10)).await;
    };
    Figures::of(move || {
        let mirror = mirror.clone();
        async move { Ok(mirror.ask(&Reflect(PAYLOAD)).send().await?) }
    })
    .await
}

pub(super) async fn serve(listen: &str) -> Result<()> {
    let mut swarm = swarm()?;
    swarm.listen_on(listen.parse()?)?;
    let address = until(&mut swarm, |event| match event {
        SwarmEvent::NewListenAddr { address, .. } => Some(address),
        _ => None,
    })
    .await;
    let address = address.with(Protocol::P2p(*swarm.local_peer_id()));
    drop(tokio::spawn(drive(swarm)));
    Mirror::spawn(Mirror).register(NAME).await?;
    serve_at(address).await
}

fn swarm() -> Result<Swarm<remote::Behaviour>> {
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(STREAMS);
    let messaging = remote::messaging::Config::default().with_max_concurrent_streams(STREAMS);
    let swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, || yamux)?
        .with_quic_config(|mut quic| {
            quic.max_concurrent_stream_limit = STREAMS as u32;
            quic
        })
        .with_behaviour(|key| remote::Behaviour::new(key.public().to_peer_id(), messaging))?
        .build();
    swarm.behaviour().try_init_global()?;
    Ok(swarm)
}

/// Drives the swarm until it tells what is waited for.
async fn until<T>(
    swarm: &mut Swarm<remote::Behaviour>,
    awaited: impl Fn(SwarmEvent<remote::Event>) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = awaited(swarm.select_next_some().await) {
            return found;
        }
    }
}

async fn drive(mut swarm: Swarm<remote::Behaviour>) {
    loop {
        swarm.select_next_some().await;
    }
}
