//! Listening: plain on this machine, over TLS beyond it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use odeon::{Clock, NodeIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Where the API listens.
#[derive(Clone, Debug)]
pub(crate) struct ApiConfig {
    pub(crate) listen: SocketAddr,
}

/// A listening API.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    tls: bool,
    stop: watch::Sender<bool>,
    done: oneshot::Receiver<()>,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(stream.remote_addr().ip())
    }
}

impl Connected<IncomingStream<'_, Secured>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Secured>) -> Self {
        Self(stream.remote_addr().ip())
    }
}

/// The time that requests may take to end when the daemon does.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The time that a stranger may take to say hello.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

impl Server {
    /// Begins to listen. Beyond this machine it speaks TLS with the node's certificate.
    pub(crate) async fn begin(
        config: &ApiConfig,
        identity: &NodeIdentity,
        router: Router,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
            anyhow::anyhow!(
                "the API cannot listen on {}: {error}; choose another address with --api",
                config.listen
            )
        })?;
        let address = listener.local_addr()?;
        let tls = !address.ip().is_loopback();
        let (stop, stopped) = watch::channel(false);
        let (end, done) = oneshot::channel();
        let ending = async move {
            let mut stopped = stopped;
            // The sender lives as long as the server.
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        let service = router.into_make_service_with_connect_info::<Peer>();
        if tls {
            let listener = Secured::new(listener, identity)?;
            let serving = axum::serve(listener, service).with_graceful_shutdown(ending);
            tokio::spawn(async move { over(serving.await, end) });
        } else {
            let serving = axum::serve(listener, service).with_graceful_shutdown(ending);
            tokio::spawn(async move { over(serving.await, end) });
        }
        Ok(Self {
            address,
            tls,
            stop,
            done,
        })
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is for whoever reaches it at this address.
    pub(crate) fn url(&self, reached: SocketAddr) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{reached}")
    }

    /// Returns true if it speaks TLS.
    pub(crate) const fn is_secured(&self) -> bool {
        self.tls
    }

    /// Takes no more requests, and lets those under way end.
    pub(crate) async fn end(self) {
        self.stop.send_replace(true);
        // Whoever waits for news would keep it longer.
        let _ = Clock::timeout(END_PATIENCE, self.done).await;
    }
}

fn over(outcome: io::Result<()>, end: oneshot::Sender<()>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "the API has ended");
    }
    // Nobody may wait for it.
    let _ = end.send(());
}

/// Connections with TLS. Handshakes do not wait for each other.
#[derive(Debug)]
struct Secured {
    address: SocketAddr,
    ready: tokio::sync::mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    task: tokio::task::JoinHandle<()>,
}

/// Connections whose handshake is done and that nobody has taken yet.
const READY_MAX: usize = 64;

impl Secured {
    fn new(listener: TcpListener, identity: &NodeIdentity) -> anyhow::Result<Self> {
        let certificate = CertificateDer::from_pem_slice(identity.certificate_pem().as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let address = listener.local_addr()?;
        let (give, ready) = tokio::sync::mpsc::channel(READY_MAX);
        let task = tokio::spawn(async move {
            loop {
                let (stream, from) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not taken");
                        Clock::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                let (acceptor, give) = (acceptor.clone(), give.clone());
                tokio::spawn(async move {
                    let shaken = Clock::timeout(HANDSHAKE_PATIENCE, acceptor.accept(stream)).await;
                    if let Some(Ok(stream)) = shaken {
                        // The server may be ending.
                        let _ = give.send((stream, from)).await;
                    }
                });
            }
        });
        Ok(Self {
            address,
            ready,
            task,
        })
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
