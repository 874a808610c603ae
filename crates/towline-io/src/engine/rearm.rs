//! What follows every activity on a connection, and what follows from none at all.

use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Poll};

use crate::conn::flush::Flushed;
use crate::conn::id::ConnId;
use crate::conn::{Output, Peer};
use crate::engine::Engine;
use crate::engine::conn_table::Place;

impl<S: Default> Engine<S> {
    /// To be called after anything was done with a connection: sends what waits, watches what must be
    /// watched, keeps the clock, gives the receive block back, and closes what is over. New events that
    /// come of it are announced by `next_ready`.
    pub fn settle(&mut self, id: ConnId) {
        let now = self.now();
        let Some(peer) = self.table.peer(id) else {
            return;
        };
        let mut is_news = peer.tell_broken(now);
        if peer.output == Output::Broken && peer.has_ended() {
            // It has ended, what it would still say goes nowhere, and nothing comes that could tell so.
            peer.broke(now, "connection closed while we were sending");
            is_news = true;
        }
        if peer.conn.interest().closed {
            // The face first learns of it, if it does not know yet, and reads what came before the end.
            if peer.kept || is_news && peer.conn.has_events() {
                if peer.conn.has_events() {
                    self.enqueue(id);
                }
            } else if !peer.queued {
                self.close(id, now);
            }
            return;
        }
        let mut again = false;
        if peer.output != Output::Blocked {
            again = peer.flush(now, self.config.settle_bytes) == Flushed::Budget;
        }
        let interest = peer.conn.interest();
        if interest.shutdown && peer.output == Output::Open {
            peer.finish_output(now);
        }
        if peer.output == Output::Blocked && !peer.write_armed {
            peer.write_armed = true;
            arm_write(&self.poll, peer);
        }
        // What has just been sent, or failed, may be news to the face; an end certainly is.
        again |= interest.closed || peer.conn.has_events();
        again |= peer.input.readable && !peer.input.over && interest.read;
        peer.conn.release(&mut self.buffers);
        if let Some(deadline) = peer.deadline() {
            self.deadlines.promise(id, &mut peer.looked, deadline);
        }
        if again {
            self.enqueue(id);
        }
        if !self.turn.running {
            self.set_alarm(now);
        }
    }

    /// Gives the receive block of a connection back before it is settled.
    pub(crate) fn release(&mut self, id: ConnId) {
        if let Some(peer) = self.table.peer(id) {
            peer.conn.release(&mut self.buffers);
        }
    }

    /// Puts a connection in line again: its events have not all been taken, or the exchange that held
    /// back the next request has ended.
    pub fn revisit(&mut self, id: ConnId) {
        self.enqueue(id);
    }

    pub(crate) fn close(&mut self, id: ConnId, now: Instant) {
        if let Some(Place::Here(mut peer)) = self.table.remove(id) {
            peer.conn.release(&mut self.buffers);
            peer.part(now);
        }
    }

    /// Drops a connection at once: its socket is reset, its state is dropped.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(Place::Here(peer)) = self.table.remove(id) {
            let _ = peer.io.socket.set_linger(Some(Duration::ZERO));
        }
    }

    /// Looks at the connections whose promised time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.pop_due(now) {
            let peer = match self.table.place(id) {
                Some(Place::Here(peer)) => peer,
                Some(Place::Away(away)) => {
                    away.looked = true;
                    self.enqueue(id);
                    continue;
                }
                None => continue,
            };
            if peer.looked != Some(at) {
                continue;
            }
            peer.looked = None;
            match peer.deadline() {
                Some(deadline) if deadline <= now => {
                    peer.timed_out(now);
                    self.enqueue(id);
                }
                Some(later) => self.deadlines.promise(id, &mut peer.looked, later),
                None => {}
            }
        }
    }
}

fn arm_write<S>(poll: &Poll, peer: &Peer<S>) {
    let (fd, token) = (peer.as_raw_fd(), peer.id().token());
    let interest = Interest::READABLE | Interest::WRITABLE;
    // It is registered; without the news of room the write timeout ends the connection.
    let _ = poll
        .registry()
        .reregister(&mut SourceFd(&fd), token, interest);
}
