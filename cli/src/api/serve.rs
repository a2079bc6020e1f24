//! Listening: plain on this machine, over TLS beyond it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use odeon::{Clock, NodeIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

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

/// The time that requests may take to end when the daemon does.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The time that a stranger may take to say hello.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// The time that the head of a request may take to come, the wait for its first byte included. Longer
/// than our client keeps a connection that nobody uses, so that it does not use one that ends.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);

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
        if tls {
            let listener = Secured::new(listener, identity)?;
            tokio::spawn(serve(listener, router, stopped, end));
        } else {
            tokio::spawn(serve(listener, router, stopped, end));
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

/// Serves connections until it is stopped, and those that are open until what was asked is answered.
/// One on which no request comes is closed.
async fn serve<L>(
    mut listener: L,
    router: Router,
    mut stopped: watch::Receiver<bool>,
    end: oneshot::Sender<()>,
) where
    L: Listener<Addr = SocketAddr>,
{
    let open = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE);
    loop {
        let (stream, from) = tokio::select! {
            biased;
            // The sender lives as long as the server.
            _ = stopped.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let peer = ConnectInfo(Peer(from.ip()));
            request.extensions_mut().insert(peer);
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, %from, "a connection has ended");
            }
        });
    }
    drop(listener);
    open.shutdown().await;
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
