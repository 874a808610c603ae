//! A client and a server connected in memory on one virtual clock.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::Limits;

use crate::{App, End, Random};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// Two ends and the two pipes between them. Nothing moves unless a method moves it.
pub struct Pair {
    pub client: End,
    pub server: End,
    /// Capacity of a pipe.
    pub pipe_bytes: usize,
    fin: [Fin; 2],
}

/// State of the FIN of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    Open,
    Delivered,
}

impl Pair {
    /// Both programs read what arrives; requests and responses are written by the test.
    pub fn new(limits: &Arc<Limits>) -> Self {
        Self::of(End::manual_client(limits), End::server(limits, App::Manual))
    }

    pub fn of(client: End, server: End) -> Self {
        Self {
            client,
            server,
            pipe_bytes: usize::MAX,
            fin: [Fin::Open; 2],
        }
    }

    fn ends(&mut self, direction: Direction) -> (&mut End, &mut End) {
        match direction {
            Direction::ToServer => (&mut self.client, &mut self.server),
            Direction::ToClient => (&mut self.server, &mut self.client),
        }
    }

    /// Moves at most `max` bytes; then the FIN, if the sender requests it and no byte is left.
    pub fn step(&mut self, direction: Direction, max: usize) -> bool {
        let pipe_bytes = self.pipe_bytes;
        let fin = self.fin[direction as usize];
        let (from, to) = self.ends(direction);
        from.send_room = pipe_bytes.saturating_sub(from.output_len() + to.unread_bytes());
        from.run_until_idle();
        let bytes = from.take_output(max);
        if !bytes.is_empty() {
            to.feed(&bytes);
            return true;
        }
        let interest = from.conn.interest();
        if max > 0
            && from.output_len() == 0
            && fin == Fin::Open
            && (interest.shutdown || interest.closed)
        {
            to.feed_eof();
            self.fin[direction as usize] = Fin::Delivered;
            return true;
        }
        false
    }

    /// Moves everything both ways until nothing moves.
    pub fn run(&mut self) {
        while self.step(Direction::ToServer, usize::MAX)
            | self.step(Direction::ToClient, usize::MAX)
        {}
    }

    /// Like [`Pair::run`], in pieces of random size and random direction.
    pub fn run_cut(&mut self, random: &mut Random) {
        loop {
            let first = if random.below(2) == 0 {
                Direction::ToServer
            } else {
                Direction::ToClient
            };
            let second = if first == Direction::ToServer {
                Direction::ToClient
            } else {
                Direction::ToServer
            };
            let scale = 1 << random.below(14);
            let max = 1 + random.below(scale);
            if !self.step(first, max) && !self.step(second, max) {
                return;
            }
        }
    }

    /// Advances both clocks and handles deadlines.
    pub fn advance(&mut self, by: Duration) {
        self.client.advance(by);
        self.server.advance(by);
    }

    /// The connection fails: bytes in flight are lost, both ends see a reset.
    pub fn abort(&mut self) {
        self.fin = [Fin::Delivered; 2];
        self.client.feed_abort();
        self.server.feed_abort();
    }
}
