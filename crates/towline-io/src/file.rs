//! Bodies that are files: sent by the kernel on plain TCP, read and encrypted under TLS.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use towline_proto::{StreamId, UserError};

use crate::peer::Peer;

/// One `sendfile`, so that a fast disk and a fast peer do not hold a turn for long.
const SENDFILE_BYTES: usize = 512 * 1024;
/// One read where `sendfile` is of no use.
const READ_BYTES: usize = 16 * 1024;

/// The part of a file that is still to be sent.
pub(crate) struct FileBody {
    file: File,
    offset: u64,
    left: u64,
    stream: StreamId,
    /// Set when this file cannot be sent by the kernel (a pipe, some file systems).
    by_reading: bool,
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
        self.file = Some(Box::new(FileBody {
            file,
            offset,
            left: len,
            stream,
            // The kernel cannot frame chunks or encrypt.
            by_reading: self.io.tls.is_some() || left.is_none_or(|left| left < len),
        }));
        Ok(())
    }

    /// A file is still being sent.
    pub fn is_sending_file(&self) -> bool {
        self.file.is_some()
    }

    /// Bytes of the file that have not been taken from it.
    pub(crate) fn file_left(&self) -> u64 {
        self.file.as_ref().map_or(0, |body| body.left)
    }

    /// One portion of the file, the output being empty. `None`: the kernel takes nothing now.
    pub(crate) fn flush_file(&mut self, now: Instant) -> io::Result<Option<usize>> {
        let Some(body) = &mut self.file else {
            return Ok(Some(0));
        };
        if body.by_reading || body.left == 0 {
            self.fill_from_file()?;
            return Ok(Some(0));
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
            Ok(0) => self.give_file_up(),
            Ok(n) => {
                body.offset += n as u64;
                body.left -= n as u64;
                let (stream, over) = (body.stream, body.left == 0);
                self.count_sent(n);
                if self.conn.sent_outside(now, stream, n as u64).is_err() {
                    self.give_file_up();
                } else if over {
                    self.end_file();
                }
                return Ok(Some(n));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let stream = body.stream;
                    if self.conn.sent_outside(now, stream, 0).is_err() {
                        self.give_file_up();
                    }
                    return Ok(None);
                }
                io::ErrorKind::Interrupted => {}
                // The kernel cannot map this kind of file.
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => body.by_reading = true,
                _ => return Err(error),
            },
        }
        Ok(Some(0))
    }

    /// Copies a portion of the file into the send buffer while there is room.
    pub(crate) fn fill_from_file(&mut self) -> io::Result<()> {
        let Some(body) = &mut self.file else {
            return Ok(());
        };
        let Ok(mut stream) = self.conn.stream(body.stream) else {
            self.file = None;
            return Ok(());
        };
        let mut space = [0; READ_BYTES];
        while body.left > 0 && stream.room() > 0 {
            let wanted = READ_BYTES.min(usize::try_from(body.left).unwrap_or(READ_BYTES));
            let n = body.file.read_at(&mut space[..wanted], body.offset)?;
            if n == 0 || stream.write(&space[..n]).is_err() {
                stream.reset();
                self.file = None;
                return Ok(());
            }
            body.offset += n as u64;
            body.left -= n as u64;
        }
        let stuck = stream.room() == 0 && self.conn.pending_bytes() == 0;
        if body.left == 0 {
            self.end_file();
        } else if stuck {
            // The exchange failed: nothing it is given will ever leave.
            self.file = None;
        }
        Ok(())
    }

    fn end_file(&mut self) {
        if let Some(body) = self.file.take()
            && let Ok(mut stream) = self.conn.stream(body.stream)
            && stream.finish().is_err()
        {
            stream.reset();
        }
    }

    fn give_file_up(&mut self) {
        if let Some(body) = self.file.take()
            && let Ok(mut stream) = self.conn.stream(body.stream)
        {
            stream.reset();
        }
    }
}
