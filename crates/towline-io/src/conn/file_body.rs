//! Bodies that are files: sent by the kernel on plain HTTP/1, read and written where something frames or
//! encrypts them. HTTP/2 may have one for every stream; they take turns, a portion each.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use towline_proto::{Protocol, StreamId, StreamMut, UserError};

use crate::conn::Peer;

/// One `sendfile`, so that a fast disk and a fast peer do not hold a turn for long.
const SENDFILE_BYTES: usize = 512 * 1024;
/// One read where `sendfile` is of no use.
const READ_BYTES: usize = 16 * 1024;
/// Read before it is offered to the socket, whatever the number of files.
const FILL_BYTES: usize = 64 * 1024;

/// The files of one connection that are still to be sent. The front one is next.
#[derive(Default)]
pub(crate) struct Files {
    queue: VecDeque<FileBody>,
    /// One has ended, or been given up, since the face asked.
    ended: bool,
}

/// The part of a file that is still to be sent.
struct FileBody {
    file: File,
    offset: u64,
    left: u64,
    stream: StreamId,
    /// The kernel cannot send it: it must be framed or encrypted, or the kernel does not know how.
    must_copy: bool,
}

/// What an empty output got from the files.
pub(crate) enum FileFlush {
    /// So many bytes went straight into the socket.
    Sent(usize),
    /// Look at the output again.
    Queued,
    /// None of them can go on now.
    Idle,
    /// The kernel takes nothing now.
    Blocked,
}

/// What became of one portion.
enum Portion {
    Read(usize),
    Last,
    /// No room for it: its reader is slow.
    Waits,
    Over,
}

impl Files {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// None of them will be sent.
    pub(crate) fn clear(&mut self) {
        self.ended |= !self.queue.is_empty();
        self.queue = VecDeque::new();
    }

    /// The front one is done with.
    fn pop(&mut self) -> Option<FileBody> {
        self.ended = true;
        let body = self.queue.pop_front();
        if self.queue.is_empty() {
            // Most connections send none: no memory for the few that did.
            self.queue = VecDeque::new();
        }
        body
    }
}

impl<S> Peer<S> {
    /// Sends `len` bytes of `file` from `offset` as the rest of `stream`'s body, then ends the message.
    /// Call it after `respond` with the known size and after any other bytes of the body. A file that
    /// turns out shorter aborts the exchange: its end must not look like the body's.
    pub fn send_file(
        &mut self,
        stream: StreamId,
        file: File,
        offset: u64,
        len: u64,
    ) -> Result<(), UserError> {
        let mut body = self.conn.stream(stream)?;
        let left = match body.body_left() {
            // To HEAD nothing is sent, so nothing is read.
            Some(0) => return body.finish(),
            left => left,
        };
        let framed =
            left.is_none_or(|left| left < len) || self.conn.protocol() != Some(Protocol::Http1);
        self.files.queue.push_back(FileBody {
            file,
            offset,
            left: len,
            stream,
            must_copy: framed || self.io.tls.is_some(),
        });
        Ok(())
    }

    /// The file of this stream is still being sent.
    pub fn is_sending_file(&self, stream: StreamId) -> bool {
        let mut files = self.files.queue.iter();
        files.any(|body| body.stream == stream)
    }

    /// Some file is still being sent.
    pub fn is_sending_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether a file has ended since this was asked, sent or not.
    pub fn take_file_ended(&mut self) -> bool {
        std::mem::take(&mut self.files.ended)
    }

    /// Bytes of files that have not been taken from them.
    pub(crate) fn files_left(&self) -> u64 {
        self.files.queue.iter().map(|body| body.left).sum()
    }

    /// One portion, the output being empty.
    pub(crate) fn flush_file(&mut self, now: Instant) -> io::Result<FileFlush> {
        let Some(body) = self.files.queue.front_mut() else {
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
        match self
            .io
            .socket
            .sendfile(&body.file, offset, NonZeroUsize::new(portion))
        {
            // The file ends before its announced length.
            Ok(0) => self.abort_file(),
            Ok(n) => {
                body.offset += n as u64;
                body.left -= n as u64;
                let (stream, over) = (body.stream, body.left == 0);
                self.count_sent(now, n);
                if self.conn.sent_externally(now, stream, n as u64).is_err() {
                    self.abort_file();
                } else if over {
                    self.end_file();
                }
                return Ok(FileFlush::Sent(n));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let stream = body.stream;
                    if self.conn.sent_externally(now, stream, 0).is_err() {
                        self.abort_file();
                    }
                    return Ok(FileFlush::Blocked);
                }
                io::ErrorKind::Interrupted => {}
                // The kernel cannot map this kind of file.
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => body.must_copy = true,
                _ => return Err(error),
            },
        }
        Ok(FileFlush::Queued)
    }

    /// Copies from files to where their bodies wait to be sent, in turn, while there is room. Whether
    /// any of them came further.
    pub(crate) fn fill_from_files(&mut self) -> bool {
        let (mut filled, mut waiting, mut ended) = (0, 0, false);
        while filled < FILL_BYTES && waiting < self.files.queue.len() {
            let Some(body) = self.files.queue.front_mut() else {
                break;
            };
            let portion = match self.conn.stream(body.stream) {
                Ok(mut stream) => body.read_portion(&mut stream),
                Err(_) => Portion::Over,
            };
            match portion {
                Portion::Read(bytes) => {
                    filled += bytes;
                    waiting = 0;
                }
                Portion::Waits => waiting += 1,
                Portion::Last => self.end_file(),
                Portion::Over => drop(self.files.pop()),
            }
            if matches!(portion, Portion::Last | Portion::Over) {
                ended = true;
            } else {
                self.files.queue.rotate_left(1);
            }
        }
        filled > 0 || ended
    }

    fn end_file(&mut self) {
        if let Some(body) = self.files.pop()
            && let Ok(mut stream) = self.conn.stream(body.stream)
            && stream.finish().is_err()
        {
            stream.reset();
        }
    }

    fn abort_file(&mut self) {
        if let Some(body) = self.files.pop()
            && let Ok(mut stream) = self.conn.stream(body.stream)
        {
            stream.reset();
        }
    }
}

impl FileBody {
    fn read_portion(&mut self, stream: &mut StreamMut<'_>) -> Portion {
        if self.left == 0 {
            return Portion::Last;
        }
        if stream.send_capacity() == 0 {
            // Nothing that a failed exchange is given will ever leave.
            if stream.write(&[]).is_err() {
                stream.reset();
                return Portion::Over;
            }
            return Portion::Waits;
        }
        let mut space = [0; READ_BYTES];
        let wanted = READ_BYTES.min(usize::try_from(self.left).unwrap_or(READ_BYTES));
        let n = self.file.read_at(&mut space[..wanted], self.offset);
        // A file that cannot be read or has become shorter, or a client that has gone.
        let Some(n) = n
            .ok()
            .filter(|&n| n > 0 && stream.write(&space[..n]).is_ok())
        else {
            stream.reset();
            return Portion::Over;
        };
        self.offset += n as u64;
        self.left -= n as u64;
        if self.left == 0 {
            Portion::Last
        } else {
            Portion::Read(n)
        }
    }
}
