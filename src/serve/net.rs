//! Connections: who is let in, how long a peer may take, and how they end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};
use tower::ServiceExt;

use super::Limits;
use super::stream::Cut;
use crate::error::{Error, Result};

/// Bytes of a response that the web library holds for a slow peer.
const WRITE_BUFFER: usize = 64 << 10;
/// Bytes of a response that the system holds for a slow peer (Linux doubles it).
const SEND_BUFFER: u32 = 64 << 10;
/// Connections waiting to be accepted.
const BACKLOG: u32 = 1024;
/// Rest after a failure to accept, which is a lack of file descriptors as a rule.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The other side of a connection, for handlers.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection gave it up.
    pub cut: Cut,
}

/// Opens the socket that is listened on.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?; // those accepted inherit it
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|error: io::Error| Error::input("--bind", format!("cannot listen on {address}: {error}")))
}

/// Serves connections until the server is gone. When `draining` turns true, idle connections are closed.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Limits, draining: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                super::log(&format!("cannot accept a connection: {error}"));
                sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let (router, draining) = (router.clone(), draining.clone());
        tokio::spawn(async move {
            connection(stream, address, router, limits, draining).await;
            drop(place);
        });
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    router: Router,
    limits: Limits,
    mut draining: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true); // a frame is small and shall not wait for the next
    let peer = Peer { address, cut: Cut::default() };
    let cut = peer.cut.clone();
    let io = TokioIo::new(Patient { stream, limit: limits.write_timeout, timer: None, cut });
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let router = router.clone();
        async move { router.oneshot(request.map(Body::new)).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(WRITE_BUFFER)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let already = *draining.borrow_and_update(); // such a one may still ask how the server is, once
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = draining.changed(), if !already => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A connection whose peer must take bytes within a time limit.
struct Patient {
    stream: TcpStream,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Set when the limit is over.
    cut: Cut,
}

impl Patient {
    /// Starts, keeps or ends the clock that runs while the peer takes nothing.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(context));
        self.cut.set();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
