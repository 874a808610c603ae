//! The I/O of one application thread: the whole engine (inline mode) or one connection (worker mode), which
//! is checked out to this thread or, with HTTP/2, shared with other threads.
//!
//! `wsgi.input` and `write()` reach their connection through `RequestIo`, with the serial number of their
//! exchange: an object that the application has kept too long finds that its exchange is over.
//!
//! The lock is never held while Python code runs and never waited for with the GIL held
//! (`lock_py_attached`), so a thread that the application has started may read the body, too.
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use towline_io::serve::features::BuiltinResponse;
use towline_io::serve::refusals::RefusedFor;
use towline_io::{Conn, Engine, TakenSocket};
use towline_proto::{BufferPool, Connection, Protocol, StreamId, StreamMut};

use super::application::Application;
use super::control::{MAX_WAIT, ServerControl};
use super::inline_io::InlineIo;
use super::request::{ConnState, RequestReader, WINDOW_BYTES};
use super::response_bounds::ResponseBounds;
use super::shared_conn::{BoxedConn, SharedConn};
use crate::options::Options;
use towline_py_common::errors::client_disconnected;

/// A worker that waits for its client checks at this interval whether requests wait for a thread.
const QUEUE_CHECK: Duration = Duration::from_millis(10);

pub type SharedRequestIo = Arc<Mutex<RequestIo>>;

pub struct RequestIo {
    /// Number of the current exchange.
    serial: u64,
    stream: Option<StreamId>,
    /// The client of the current exchange has disconnected.
    disconnected: bool,
    /// Refuses the exchange with this number: its body could not be decoded.
    pub refusal: Option<(u64, Box<BuiltinResponse>)>,
    /// Time that the thread has waited for this client while other requests waited for the thread.
    delayed: Duration,
    bounds: ResponseBounds,
    control: Arc<ServerControl>,
    mode: IoMode,
}

pub enum IoMode {
    Inline(Box<InlineIo>),
    Worker(Box<WorkerIo>),
}

/// The connection of the stream that this thread serves.
pub struct WorkerIo {
    /// Checked out to this thread, or a shared connection that it owns at the moment.
    peer: Option<BoxedConn>,
    shared: Option<SharedStream>,
    buffers: BufferPool,
    reader: RequestReader,
}

/// A stream of a connection that other threads use as well.
struct SharedStream {
    conn: Arc<SharedConn>,
    stream: StreamId,
    /// The I/O thread has to service the connection after this thread releases it.
    needs_service: bool,
}

/// A locked `RequestIo`. A shared connection is owned until the guard is dropped.
pub struct RequestIoGuard<'a>(MutexGuard<'a, RequestIo>);

impl Deref for RequestIoGuard<'_> {
    type Target = RequestIo;

    fn deref(&self) -> &RequestIo {
        &self.0
    }
}

impl DerefMut for RequestIoGuard<'_> {
    fn deref_mut(&mut self) -> &mut RequestIo {
        &mut self.0
    }
}

impl Drop for RequestIoGuard<'_> {
    fn drop(&mut self) {
        if let IoMode::Worker(worker) = &mut self.0.mode {
            worker.release();
        }
    }
}

impl RequestIo {
    pub fn new_inline(
        engine: Engine<ConnState>,
        control: Arc<ServerControl>,
        application: &Application,
    ) -> Self {
        let options = &application.options;
        let reader = RequestReader::new(
            options.wsgi_request_buffer,
            application.feature_config.clone(),
        );
        let inline = InlineIo::new(engine, reader);
        Self::new(IoMode::Inline(Box::new(inline)), control, options)
    }

    pub fn new_worker(control: Arc<ServerControl>, application: &Application) -> Self {
        let options = &application.options;
        let worker = WorkerIo {
            peer: None,
            shared: None,
            buffers: BufferPool::new(WINDOW_BYTES, 1),
            reader: RequestReader::new(
                options.wsgi_request_buffer,
                application.feature_config.clone(),
            ),
        };
        Self::new(IoMode::Worker(Box::new(worker)), control, options)
    }

    fn new(mode: IoMode, control: Arc<ServerControl>, options: &Options) -> Self {
        Self {
            serial: 0,
            stream: None,
            disconnected: false,
            refusal: None,
            delayed: Duration::ZERO,
            bounds: ResponseBounds::new(options),
            control,
            mode,
        }
    }

    pub fn as_inline(&mut self) -> Option<&mut InlineIo> {
        match &mut self.mode {
            IoMode::Inline(inline) => Some(inline),
            IoMode::Worker(_) => None,
        }
    }

    pub fn as_worker(&mut self) -> Option<&mut WorkerIo> {
        match &mut self.mode {
            IoMode::Worker(worker) => Some(worker),
            IoMode::Inline(_) => None,
        }
    }

    /// Starts an exchange and returns its serial number; older serial numbers are over.
    pub fn begin(&mut self, stream: StreamId) -> u64 {
        self.serial += 1;
        self.stream = Some(stream);
        self.disconnected = false;
        self.delayed = Duration::ZERO;
        self.serial
    }

    pub fn end(&mut self, now: Instant) {
        self.serial += 1;
        if let (Some(stream), Some(peer)) = (self.stream.take(), self.peer()) {
            peer.release_stream(stream);
        }
        if let IoMode::Inline(inline) = &mut self.mode {
            // The application may have taken any time.
            inline.engine.set_clock(now);
        }
    }

    pub fn peer(&mut self) -> Option<&mut Conn<ConnState>> {
        match &mut self.mode {
            IoMode::Inline(inline) => inline.peer(),
            IoMode::Worker(worker) => worker.peer.as_deref_mut(),
        }
    }

    /// The connection of a request that has waited for this thread; `None` if its client has left.
    pub fn waiting_peer(&mut self, may_have_left: bool) -> Option<&mut Conn<ConnState>> {
        let worker = self.as_worker()?;
        let peer = worker.peer.as_deref_mut()?;
        match &worker.shared {
            Some(SharedStream { conn, stream, .. }) => {
                if conn.is_failed(*stream) {
                    peer.release_stream(*stream);
                    return None;
                }
            }
            None => {
                if may_have_left && peer.check_reset(Instant::now()) {
                    return None;
                }
            }
        }
        Some(peer)
    }

    pub fn conn(&mut self) -> Option<&mut Connection> {
        self.peer().map(|peer| &mut peer.proto)
    }

    /// The stream of exchange `serial`, if it is the current one and its client is connected.
    pub fn current(&self, serial: u64) -> Option<StreamId> {
        self.stream
            .filter(|_| serial == self.serial && !self.disconnected)
    }

    pub fn stream(&mut self, serial: u64) -> Option<StreamMut<'_>> {
        let stream = self.current(serial)?;
        self.conn()?.stream(stream).ok()
    }

    pub fn is_disconnected(&self, serial: u64) -> bool {
        self.disconnected || serial != self.serial
    }

    /// The reason for which the server has failed exchange `serial`, and the status that it has sent.
    pub fn refused(&mut self, serial: u64) -> Option<(u16, RefusedFor)> {
        let stream = self.stream.filter(|_| serial == self.serial)?;
        self.peer()?.refused(stream)
    }

    /// Hands the socket of exchange `serial` to the application, for which its client then counts as disconnected.
    /// `None` if a byte has been received behind the request, or sent.
    pub fn take_over(&mut self, serial: u64) -> io::Result<Option<TakenSocket>> {
        if self.current(serial).is_none() {
            return Ok(None);
        }
        self.flush();
        let taken = self.peer().map_or(Ok(None), Conn::take_over)?;
        self.disconnected |= taken.is_some();
        Ok(taken)
    }

    /// Writes what can be written without blocking.
    pub fn flush(&mut self) {
        match &mut self.mode {
            IoMode::Inline(inline) => {
                inline.flush();
            }
            IoMode::Worker(worker) => worker.flush(),
        }
    }

    /// Whether the body of exchange `serial` has the length that its head announces, and nothing of it is in a file.
    pub fn is_complete(&mut self, serial: u64) -> bool {
        let left = self.stream(serial).and_then(|stream| stream.body_left());
        left == Some(0) && self.spooled_bytes() == 0
    }

    /// Whether a complete response may wait until those of other connections are sent.
    pub fn may_wait(&mut self) -> bool {
        match &mut self.mode {
            IoMode::Inline(inline) => inline.may_wait(),
            IoMode::Worker(_) => false,
        }
    }

    /// Sends the window updates (HTTP/2) that reading has produced.
    pub fn flush_window_updates(&mut self) {
        if self.conn().is_some_and(|conn| conn.pending_bytes() > 0) {
            self.flush();
        }
    }

    /// Whether everything written has been sent. HTTP/2 windows may hold some of it back; with threads the I/O
    /// thread goes on sending it, so then only a full queue makes this false.
    fn is_written_out(&mut self, serial: u64) -> bool {
        if self.spooled_bytes() > 0 {
            return false;
        }
        let is_inline = matches!(self.mode, IoMode::Inline(_));
        let Some(peer) = self.peer() else {
            return false;
        };
        let send_window = peer.service().limits.send_window_bytes;
        let has_streams = peer.proto.protocol() != Some(Protocol::Http1);
        if has_streams && !is_inline {
            return self
                .stream(serial)
                .is_some_and(|mut stream| stream.send_capacity() > 0);
        }
        let sent = peer.proto.pending_bytes() == 0;
        sent && (!has_streams
            || self
                .stream(serial)
                .is_some_and(|mut stream| stream.send_capacity() >= send_window))
    }

    /// Waits until this connection may have made progress. In inline mode the I/O of other connections
    /// continues, but no other application call begins: PEP 3333 applications keep state in their thread
    /// (database connections, locals), which a nested call would share.
    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        match &mut self.mode {
            IoMode::Inline(inline) => inline.run_turn(&self.control)?,
            IoMode::Worker(worker) => {
                if let Some(SharedStream { conn, stream, .. }) = &worker.shared {
                    conn.wait(*stream, at_most);
                    self.disconnected |= conn.is_failed(*stream) || self.control.is_stopping();
                    return Ok(());
                }
                worker.wait(at_most)?;
            }
        }
        let stream = self.stream;
        let disconnected = match &mut self.mode {
            IoMode::Inline(inline) => inline.process_events(stream),
            IoMode::Worker(worker) => match &mut worker.peer {
                Some(peer) => worker.reader.process_events(peer, stream),
                None => true,
            },
        };
        self.disconnected |= disconnected || self.control.is_stopping();
        Ok(())
    }

    fn spooled_bytes(&mut self) -> u64 {
        match (self.stream, self.peer()) {
            (Some(stream), Some(peer)) => peer.spooled_bytes(stream),
            _ => 0,
        }
    }

    /// Whether another request waits for this thread.
    fn delays_others(&mut self) -> bool {
        match &mut self.mode {
            IoMode::Inline(inline) => {
                let same_conn = inline
                    .peer()
                    .is_some_and(|conn| !conn.state.ready.is_empty());
                same_conn || inline.has_deferred()
            }
            IoMode::Worker(_) => self.control.has_queued(),
        }
    }

    /// Whether the application may continue although the client has not read everything: another request waits
    /// for this thread, and there is room in the temporary file.
    fn may_run_ahead(&mut self) -> bool {
        let is_full = match (self.stream, self.peer()) {
            (Some(stream), Some(peer)) => peer.is_spool_full(stream),
            _ => false,
        };
        !is_full && self.delays_others() && self.spooled_bytes() < self.bounds.buffer_bytes
    }

    /// Counts time for which other requests have waited for this client. Over the bound the response is aborted.
    fn count_delay(&mut self, serial: u64, waited: Duration) -> PyResult<()> {
        if !self.delays_others() {
            return Ok(());
        }
        self.delayed += waited;
        let timeout = self.bounds.client_timeout;
        if timeout.is_zero() || self.delayed < timeout {
            return Ok(());
        }
        if let Some(mut stream) = self.stream(serial) {
            stream.reset();
        }
        Err(PyTimeoutError::new_err(format!(
            "other requests waited {} s for a client that reads too slowly (--timeout-wsgi-client)",
            timeout.as_secs_f64()
        )))
    }
}

impl WorkerIo {
    /// Starts a request of a connection that is checked out to this thread until `detach`.
    pub fn begin_exclusive(&mut self, peer: BoxedConn) {
        self.peer = Some(peer);
    }

    /// Starts a request of a connection that other threads use as well.
    pub fn begin_shared(&mut self, conn: Arc<SharedConn>, stream: StreamId) {
        self.shared = Some(SharedStream {
            conn,
            stream,
            needs_service: false,
        });
    }

    /// Takes ownership of a shared connection, waiting for it if another thread owns it.
    fn acquire(&mut self, py: Python<'_>) {
        if self.peer.is_some() {
            return;
        }
        let Some(SharedStream { conn, stream, .. }) = &self.shared else {
            return;
        };
        let stream = *stream;
        let peer = conn.try_take(stream);
        self.peer = peer.or_else(|| py.detach(|| conn.take(stream)));
    }

    fn release(&mut self) {
        if let Some(shared) = &mut self.shared
            && let Some(peer) = self.peer.take()
        {
            let needs_service = std::mem::take(&mut shared.needs_service);
            shared.conn.put(peer, needs_service);
        }
    }

    /// An error of the socket is reported as an event of the connection.
    fn flush(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        match &mut self.shared {
            Some(shared) => shared.needs_service |= peer.flush_checked_out(Instant::now()),
            None => {
                let _ = peer.flush_blocking(Some(Instant::now()));
            }
        }
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        let until = Some(Instant::now() + at_most);
        if peer.proto.pending_bytes() > 0 {
            peer.flush_blocking(until)?;
        } else {
            peer.read_blocking(&mut self.buffers, until)?;
        }
        Ok(())
    }

    /// Ends a request. Returns a connection that was checked out, without its receive block.
    pub fn detach(&mut self) -> Option<BoxedConn> {
        if let Some(shared) = &self.shared {
            shared.conn.remove_stream(shared.stream);
            self.release();
            self.shared = None;
            return None;
        }
        let mut peer = self.peer.take()?;
        peer.proto.release(&mut self.buffers);
        Some(peer)
    }
}

/// Waits with the GIL released until `done` returns a value or the client disconnects.
pub fn wait_until<T>(
    py: Python<'_>,
    request_io: &Mutex<RequestIo>,
    serial: u64,
    mut done: impl FnMut(&mut RequestIo) -> Option<T>,
) -> PyResult<T> {
    loop {
        let mut guard = lock(py, request_io);
        if let Some(value) = done(&mut guard) {
            return Ok(value);
        }
        if guard.is_disconnected(serial) {
            return Err(client_disconnected());
        }
        drop(guard);
        wait(py, request_io, MAX_WAIT)?;
    }
}

fn wait(py: Python<'_>, request_io: &Mutex<RequestIo>, at_most: Duration) -> PyResult<()> {
    py.detach(|| {
        request_io
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wait(at_most)
    })?;
    py.check_signals()
}

/// Passes everything written so far to the kernel (PEP 3333, "Buffering and Streaming": a block is transmitted
/// before the next one is requested). If the client is too slow for that, the thread waits for it until another
/// request needs the thread; then the application continues, and its response goes to a temporary file.
pub fn write_out(py: Python<'_>, request_io: &Mutex<RequestIo>, serial: u64) -> PyResult<()> {
    loop {
        let mut guard = lock(py, request_io);
        if guard.is_disconnected(serial) {
            return Err(client_disconnected());
        }
        guard.flush();
        if guard.is_written_out(serial) || guard.may_run_ahead() {
            return Ok(());
        }
        drop(guard);
        let since = Instant::now();
        wait(py, request_io, QUEUE_CHECK)?;
        lock(py, request_io).count_delay(serial, since.elapsed())?;
    }
}

pub fn lock<'a>(py: Python<'_>, request_io: &'a Mutex<RequestIo>) -> RequestIoGuard<'a> {
    let request_io = request_io.lock_py_attached(py);
    let mut request_io = request_io.unwrap_or_else(PoisonError::into_inner);
    if let IoMode::Worker(worker) = &mut request_io.mode {
        worker.acquire(py);
    }
    RequestIoGuard(request_io)
}
