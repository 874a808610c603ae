//! File bodies: sent by `sendfile(2)` on plain HTTP/1, copied where the bytes are framed or encrypted. HTTP/2
//! may have one per stream; they are sent round-robin, a portion each.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use towline_proto::{Protocol, StreamId, StreamMut, UserError};

use crate::conn::Conn;
use crate::conn::spool::Spool;

/// Size of one `sendfile`, so that a fast disk and a fast peer do not occupy a turn for long.
const SENDFILE_BYTES: usize = 512 * 1024;
/// Size of one read where `sendfile` cannot be used.
const READ_BYTES: usize = 16 * 1024;
/// A file up to this size is sent with the head in one system call. Copying it costs less than a second call does.
const COPIED_BYTES: u64 = 16 * 1024;
/// Bytes read before they are offered to the socket, for all files together.
const FILL_BYTES: usize = 64 * 1024;

/// Opens a regular file and returns its size; `None` for anything else. Never waits: opening a FIFO would wait
/// for its writer.
pub fn open_regular(path: &Path) -> io::Result<Option<(File, u64)>> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    Ok(meta.is_file().then_some((file, meta.len())))
}

/// File bodies of one connection that are still to be sent, in order.
#[derive(Default)]
pub(crate) struct Files {
    #[expect(clippy::box_collection, reason = "most connections send none")]
    queue: Option<Box<VecDeque<FileBody>>>,
    /// A file has ended or been aborted since `take_file_ended`.
    ended: bool,
}

/// The part of a file that is still to be sent.
struct FileBody {
    source: Source,
    offset: u64,
    left: u64,
    stream: StreamId,
    /// `sendfile` cannot be used: the bytes are framed or encrypted, or the file system does not support it.
    must_copy: bool,
    /// More bytes may follow: a spool whose writer has not finished.
    grows: bool,
}

enum Source {
    File(File),
    /// Boxed because a queue has mostly files.
    Spool(Box<Spool>),
}

impl Source {
    fn read_at(&self, space: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read_at(space, offset),
            Self::Spool(spool) => spool.read_at(space, offset),
        }
    }
}

/// Outcome of `flush_file`.
pub(crate) enum FileFlush {
    /// Number of bytes written to the socket by `sendfile`.
    Sent(usize),
    /// The output has new bytes, or must be checked again.
    Queued,
    /// No file can continue now.
    Idle,
    /// The kernel accepts no more for now.
    Blocked,
}

/// Outcome of reading one portion.
enum Portion {
    Read(usize),
    Last,
    /// There is no room: the peer reads slowly.
    Blocked,
    Failed,
}

impl Files {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &FileBody> {
        self.queue.iter().flat_map(|queue| queue.iter())
    }

    fn len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.len())
    }

    fn front_mut(&mut self) -> Option<&mut FileBody> {
        self.queue.as_mut()?.front_mut()
    }

    fn push(&mut self, body: FileBody) {
        self.queue.get_or_insert_default().push_back(body);
    }

    /// Whether `sendfile` will be called once the output is empty.
    pub(crate) fn next_uses_sendfile(&self) -> bool {
        let next = self.queue.as_ref().and_then(|queue| queue.front());
        next.is_some_and(|body| !body.must_copy && body.left > 0)
    }

    fn growing(&self, stream: StreamId) -> Option<&FileBody> {
        self.iter().find(|body| body.stream == stream && body.grows)
    }

    /// The spool of a stream whose writer has not finished.
    fn spool(&mut self, stream: StreamId) -> Option<&mut FileBody> {
        let mut bodies = self.queue.as_mut()?.iter_mut();
        bodies.find(|body| body.stream == stream && body.grows)
    }

    /// Drops all files.
    pub(crate) fn clear(&mut self) {
        self.ended |= self.queue.take().is_some();
    }

    /// Removes the first file.
    fn pop(&mut self) -> Option<FileBody> {
        self.ended = true;
        let body = self.queue.as_mut()?.pop_front();
        self.queue.take_if(|queue| queue.is_empty());
        body
    }
}

impl<S> Conn<S> {
    /// Sends `len` bytes of `file` from `offset` as the rest of `stream`'s body, then ends the message.
    /// Call it after `respond` with the known size and after any other bytes of the body. If the file is
    /// shorter, the exchange is aborted, so that the body is not taken for complete.
    pub fn send_file(
        &mut self,
        stream: StreamId,
        file: File,
        offset: u64,
        len: u64,
    ) -> Result<(), UserError> {
        let is_http1 = self.proto.protocol() == Some(Protocol::Http1);
        let mut body = self.proto.stream(stream)?;
        let left = match body.body_left() {
            // A response to HEAD has no body, so nothing is read.
            Some(0) => return body.finish(),
            left => left,
        };
        let framed = left.is_none_or(|left| left < len) || !is_http1;
        let mut file = FileBody {
            source: Source::File(file),
            offset,
            left: len,
            stream,
            must_copy: framed || self.io.tls().is_some(),
            grows: false,
        };
        if len <= COPIED_BYTES && body.send_capacity() as u64 >= len {
            match file.read_portion(&mut body) {
                Portion::Last => {
                    self.files.ended = true;
                    return body.finish();
                }
                Portion::Failed => {
                    self.files.ended = true;
                    return Ok(());
                }
                Portion::Read(_) | Portion::Blocked => {}
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Appends body bytes of `stream` to a temporary file, from which they are sent as the peer reads. Call it
    /// after `respond`; bytes written to the stream before are sent first. Nothing may be written to the
    /// stream while [`spooled_bytes`](Self::spooled_bytes) is not 0.
    pub(crate) fn spool(&mut self, stream: StreamId, data: &[u8]) {
        if self.files.spool(stream).is_none() {
            self.files.push(FileBody {
                source: Source::Spool(Box::default()),
                offset: 0,
                left: 0,
                stream,
                must_copy: true,
                grows: true,
            });
        }
        let Some(FileBody {
            source: Source::Spool(spool),
            offset,
            left,
            ..
        }) = self.files.spool(stream)
        else {
            return;
        };
        if *left == 0 && *offset > 0 {
            spool.clear();
            *offset = 0;
        }
        spool.append(data);
        *left += data.len() as u64;
    }

    /// Ends the body of `stream` once its spool has been sent; false if it has no spool.
    pub(crate) fn end_spool(&mut self, stream: StreamId) -> bool {
        match self.files.spool(stream) {
            Some(body) => {
                body.grows = false;
                true
            }
            None => false,
        }
    }

    /// Number of bytes of `stream` in its temporary file that are still to be sent.
    pub fn spooled_bytes(&self, stream: StreamId) -> u64 {
        self.files.growing(stream).map_or(0, |body| body.left)
    }

    /// Whether more of `stream` would stay in memory, because its temporary file has no space.
    pub fn is_spool_full(&self, stream: StreamId) -> bool {
        self.files
            .growing(stream)
            .is_some_and(|body| matches!(&body.source, Source::Spool(spool) if spool.is_full()))
    }

    /// Whether the file of this stream is still being sent.
    pub fn is_sending_file(&self, stream: StreamId) -> bool {
        self.files.iter().any(|body| body.stream == stream)
    }

    /// Whether any file is still being sent.
    pub fn is_sending_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether a file has ended, sent or aborted, since the last call.
    pub fn take_file_ended(&mut self) -> bool {
        std::mem::take(&mut self.files.ended)
    }

    /// Number of file bytes not yet read.
    pub(crate) fn files_left(&self) -> u64 {
        self.files.iter().map(|body| body.left).sum()
    }

    /// Sends one portion of a file. The output must be empty.
    pub(crate) fn flush_file(&mut self, now: Instant) -> io::Result<FileFlush> {
        let Some(body) = self.files.front_mut() else {
            return Ok(FileFlush::Idle);
        };
        if body.must_copy || body.left == 0 {
            return Ok(if self.fill_from_files() {
                FileFlush::Queued
            } else {
                FileFlush::Idle
            });
        }
        let portion = usize::try_from(body.left)
            .unwrap_or(usize::MAX)
            .min(SENDFILE_BYTES);
        let offset = body.offset as usize;
        let (Source::File(file), Some(socket)) = (&body.source, self.io.socket()) else {
            body.must_copy = true;
            return Ok(FileFlush::Queued);
        };
        match socket.sendfile(file, offset, NonZeroUsize::new(portion)) {
            // The file is shorter than announced.
            Ok(0) => self.abort_file(),
            Ok(n) => {
                body.offset += n as u64;
                body.left -= n as u64;
                let (stream, over) = (body.stream, body.left == 0);
                self.count_sent(now, n);
                if self.proto.sent_externally(now, stream, n as u64).is_err() {
                    self.abort_file();
                } else if over {
                    self.end_file();
                }
                return Ok(FileFlush::Sent(n));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let stream = body.stream;
                    if self.proto.sent_externally(now, stream, 0).is_err() {
                        self.abort_file();
                    }
                    return Ok(FileFlush::Blocked);
                }
                io::ErrorKind::Interrupted => {}
                // `sendfile` does not support this file.
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => body.must_copy = true,
                _ => return Err(error),
            },
        }
        Ok(FileFlush::Queued)
    }

    /// Copies portions of the files to the output, round-robin, while there is room. Returns whether there
    /// was progress.
    pub(crate) fn fill_from_files(&mut self) -> bool {
        let (mut filled, mut blocked, mut ended) = (0, 0, false);
        while filled < FILL_BYTES && blocked < self.files.len() {
            let Some(body) = self.files.front_mut() else {
                break;
            };
            let portion = match self.proto.stream(body.stream) {
                Ok(mut stream) => body.read_portion(&mut stream),
                Err(_) => Portion::Failed,
            };
            match portion {
                Portion::Read(bytes) => {
                    filled += bytes;
                    blocked = 0;
                }
                Portion::Blocked => blocked += 1,
                Portion::Last => self.end_file(),
                Portion::Failed => drop(self.files.pop()),
            }
            if matches!(portion, Portion::Last | Portion::Failed) {
                ended = true;
            } else if let Some(queue) = &mut self.files.queue {
                queue.rotate_left(1);
            }
        }
        filled > 0 || ended
    }

    fn end_file(&mut self) {
        if let Some(body) = self.files.pop()
            && let Ok(mut stream) = self.proto.stream(body.stream)
            && stream.finish().is_err()
        {
            stream.reset();
        }
    }

    fn abort_file(&mut self) {
        if let Some(body) = self.files.pop()
            && let Ok(mut stream) = self.proto.stream(body.stream)
        {
            stream.reset();
        }
    }
}

impl FileBody {
    fn read_portion(&mut self, stream: &mut StreamMut<'_>) -> Portion {
        if self.left == 0 {
            return if self.grows {
                Portion::Blocked
            } else {
                Portion::Last
            };
        }
        if stream.send_capacity() == 0 {
            // A failed stream never sends anything.
            if stream.write(&[]).is_err() {
                stream.reset();
                return Portion::Failed;
            }
            return Portion::Blocked;
        }
        let mut space = [0; READ_BYTES];
        let wanted = READ_BYTES.min(usize::try_from(self.left).unwrap_or(READ_BYTES));
        let n = self.source.read_at(&mut space[..wanted], self.offset);
        // The file cannot be read or is shorter than announced, or the client has disconnected.
        let Some(n) = n
            .ok()
            .filter(|&n| n > 0 && stream.write(&space[..n]).is_ok())
        else {
            stream.reset();
            return Portion::Failed;
        };
        self.offset += n as u64;
        self.left -= n as u64;
        if self.left == 0 && !self.grows {
            Portion::Last
        } else {
            Portion::Read(n)
        }
    }
}
