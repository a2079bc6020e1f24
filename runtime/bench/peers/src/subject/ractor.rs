//! ractor with `ractor_cluster`: a node server in each process, over TCP, which is its default, and
//! over a unix socket, which it takes as a transport of one's own. Neither is encrypted.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use odeon::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, pg};
use ractor_cluster::{
    BoxRead, BoxWrite, BytesConvertable, ClusterBidiStream, NodeServer, NodeServerMessage,
    RactorClusterMessage,
};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::{Subject, loopback};
use crate::figures::{Figures, PAYLOAD, Payload};
use crate::server::{Server, serve_at};

const MIRROR: &str = "mirror";

/// [`Payload`] in the form that the cluster sends.
struct Words(Payload);

impl BytesConvertable for Words {
    fn into_bytes(self) -> Vec<u8> {
        self.0.map(u64::to_le_bytes).as_flattened().to_vec()
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        let mut words = Payload::default();
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self(words)
    }
}

#[derive(RactorClusterMessage)]
enum Ask {
    #[rpc]
    Reflect(Words, RpcReplyPort<Words>),
}

struct Mirror;

impl Actor for Mirror {
    type Msg = Ask;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Ask>, (): ()) -> Result<(), ActorProcessingErr> {
        // The members of groups are what the nodes tell each other of.
        pg::join(MIRROR.to_owned(), vec![myself.get_cell()]);
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Ask>,
        Ask::Reflect(words, reply): Ask,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(reply.send(words)?)
    }
}

/// A unix socket under the protocol of the cluster.
struct Unix(UnixStream);

impl ClusterBidiStream for Unix {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = self.0.into_split();
        (Box::new(reader), Box::new(writer))
    }
}

pub(super) async fn measure(subject: Subject) -> Result<Figures> {
    let server = Server::start(subject, tempfile::tempdir()?)?;
    let node = node("client", 0).await?;
    if subject == Subject::RactorTcp {
        ractor_cluster::client_connect(&node, &server.address).await?;
    } else {
        let socket = Unix(UnixStream::connect(&server.address).await?);
        ractor_cluster::client_connect_external(&node, Box::new(socket)).await?;
    }
    let mirror: ActorRef<Ask> = loop {
        if let Some(found) = pg::get_members(&MIRROR.to_owned()).pop() {
            break found.into();
        }
        Clock::sleep(Duration::from_millis(10)).await;
    };
    Figures::of(move || {
        let mirror = mirror.clone();
        async move {
            let ask = |reply| Ask::Reflect(Words(PAYLOAD), reply);
            let Words(words) = mirror
                .call(ask, None)
                .await?
                .success_or_else(|| anyhow!("there was no reply"))?;
            Ok(words)
        }
    })
    .await
}

pub(super) async fn serve_tcp() -> Result<()> {
    // A node server does not say which port it was given, so it gets one that was free just now.
    let address = TcpListener::bind(loopback()).await?.local_addr()?;
    let _node = node("server", address.port()).await?;
    let _mirror = Actor::spawn(None, Mirror, ()).await?;
    serve_at(address).await
}

pub(super) async fn serve_unix(folder: &Path) -> Result<()> {
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path)?;
    let node = node("server", 0).await?;
    let _mirror = Actor::spawn(None, Mirror, ()).await?;
    drop(tokio::spawn(async move {
        let (socket, _) = listener.accept().await?;
        node.cast(NodeServerMessage::ConnectionOpenedExternal {
            stream: Box::new(Unix(socket)),
            is_server: true,
        })?;
        anyhow::Ok(())
    }));
    serve_at(path.display()).await
}

async fn node(name: &str, port: u16) -> Result<ActorRef<NodeServerMessage>> {
    let (cookie, host) = ("cookie".to_owned(), Ipv4Addr::LOCALHOST);
    let server = NodeServer::new(port, cookie, name.to_owned(), host.to_string(), None, None)
        .with_listen_addr(host.into());
    let (node, _) = Actor::spawn(None, server, ()).await?;
    Ok(node)
}
