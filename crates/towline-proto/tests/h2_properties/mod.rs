//! Any sequence of requests, responses, reads, resets, changed windows and closes, cut at random bytes: written
//! bytes are read in order, both ends agree on how each exchange ended, no event is lost or repeated, memory is
//! bounded.
//!
//! Each end's program is strict: after `Pending` it reads only after `Readable`, and without send capacity it
//! writes only after `Writable`. A lost event would leave its exchange unfinished.

mod program;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use towline_proto::{CloseReason, Limits, Side, StreamError};
use towline_testkit::h2;

use program::{MAX_WRITE_BYTES, Program};

struct Harness {
    client: Program,
    server: Program,
    limits: [Arc<Limits>; 2],
    now: Instant,
}

impl Harness {
    fn new(client: Limits, server: Limits) -> Self {
        let now = Instant::now();
        let limits = [Arc::new(client), Arc::new(server)];
        Self {
            client: Program::new(Side::Client, &limits[0], now),
            server: Program::new(Side::Server, &limits[1], now),
            limits,
            now,
        }
    }

    fn program(&mut self, how: usize) -> &mut Program {
        if how.is_multiple_of(2) {
            &mut self.client
        } else {
            &mut self.server
        }
    }

    fn apply(&mut self, what: u8, how: usize) {
        let half = how / 2;
        match what % 16 {
            0 | 1 => self.client.request(how),
            2 | 3 => self.server.respond(how),
            4..=6 => {
                let program = self.program(how);
                if let Some(id) = program.pick(half) {
                    program.write(id, how * 31);
                }
            }
            7..=9 => {
                let program = self.program(how);
                if let Some(id) = program.pick(half) {
                    program.read(id, half);
                }
            }
            10 | 11 => drop(self.deliver(1 << (how % 16), true)),
            12 | 13 => drop(self.deliver(1 << (how % 16), false)),
            14 if how.is_multiple_of(9) => {
                let program = self.program(half);
                if let Some(id) = program.pick(half) {
                    program.reset(id);
                }
            }
            14 => self.change_window(how),
            _ if how.is_multiple_of(50) => {
                self.program(half).conn.close();
            }
            _ => {
                self.client.conn.release(&mut self.client.buffers);
                self.server.conn.release(&mut self.server.buffers);
            }
        }
        self.client.events();
        self.server.events();
        self.client.assert_bounded(&self.limits[0]);
        self.server.assert_bounded(&self.limits[1]);
    }

    fn deliver(&mut self, max: usize, up: bool) -> bool {
        let Self { client, server, .. } = self;
        let (from, to) = if up {
            (client, server)
        } else {
            (server, client)
        };
        from.flush(self.now);
        to.receive(&mut from.pipe, self.now, max)
    }

    /// The client changes the initial window of its streams, between two of its frames.
    fn change_window(&mut self, how: usize) {
        // Never more than its limit.
        let max = self.limits[0].http2.stream_window_bytes;
        self.send_initial_window([0, 1, 500, max / 2, max][how % 5]);
    }

    fn send_initial_window(&mut self, size: u32) {
        self.client.flush(self.now);
        let settings = h2::settings(&[(h2::INITIAL_WINDOW_SIZE, size)]);
        // Not before the preface.
        if self.client.conn.error().is_none() {
            self.client.pipe.extend(settings);
        }
    }

    /// Delivers, reads, responds and writes until nothing changes.
    fn finish(&mut self) {
        self.send_initial_window(self.limits[0].http2.stream_window_bytes);
        for _ in 0..100_000 {
            let mut moved = self.deliver(usize::MAX, true) | self.deliver(usize::MAX, false);
            for program in [&mut self.client, &mut self.server] {
                program.events();
                let open: Vec<u64> = program.exchanges.keys().copied().collect();
                for id in open {
                    let before = program.progress(id);
                    program.read(id, 100_000);
                    program.write(id, 2 * MAX_WRITE_BYTES - 1);
                    moved |= program.progress(id) != before;
                }
                let unanswered = program
                    .exchanges
                    .values()
                    .any(|e| e.writing.is_none() && !e.is_finished());
                if program.side == Side::Server && unanswered && program.closed.is_none() {
                    program.respond(7);
                    moved = true;
                }
                program.events();
            }
            moved |= self.client.conn.pending_bytes() + self.server.conn.pending_bytes() > 0;
            if !moved {
                return;
            }
        }
        panic!("no end");
    }

    fn check(&self) {
        for (id, asked) in &self.client.exchanges {
            let served = self.server.exchanges.get(id);
            assert!(
                asked.is_finished(),
                "client, {id}: {asked:?}; server: {served:?}"
            );
            let Some(served) = served else {
                let error = asked.failed.as_ref();
                let unseen = asked.reset || error.is_some_and(StreamError::is_unprocessed);
                assert!(unseen, "{id} never came: {asked:?}");
                continue;
            };
            let is_refused = asked
                .failed
                .as_ref()
                .is_some_and(StreamError::is_unprocessed);
            assert!(!is_refused, "{id} is served and refused");
            assert!(
                served.is_finished(),
                "server, {id}: {served:?}; client: {asked:?}"
            );
            let is_whole = asked.failed.is_none() && !asked.reset;
            let (request, response) = (asked.writing.as_ref(), served.writing.as_ref());
            if is_whole {
                let response = response.expect("answered");
                assert_eq!(
                    asked.reading.read, response.len,
                    "{id}: an answer that is not whole"
                );
            }
            let request = request.expect("a request");
            assert!(served.reading.read <= request.written, "{id}");
            if !is_whole {
                let blamed = asked.reset || served.reset;
                assert!(
                    blamed,
                    "{id} failed and nobody gave it up: {asked:?} {served:?}"
                );
            }
        }
        assert!(self.server.exchanges.len() <= self.client.exchanges.len());
    }

    /// Closes both ends gracefully.
    fn close(&mut self) {
        self.client.conn.close();
        self.server.conn.close();
        self.finish_closing();
        for program in [&mut self.client, &mut self.server] {
            assert_eq!(
                program.closed,
                Some(CloseReason::Done),
                "{:?}",
                program.side
            );
            program.conn.received_eof(self.now);
            program
                .conn
                .handle_timeout(self.now + Duration::from_secs(60));
            assert!(program.conn.interest().closed && program.conn.deadline().is_none());
        }
    }

    fn finish_closing(&mut self) {
        while self.deliver(usize::MAX, true) | self.deliver(usize::MAX, false) {
            self.client.events();
            self.server.events();
        }
        self.client.events();
        self.server.events();
    }
}

fn limits(side: Side) -> impl Strategy<Value = Limits> {
    let sizes = (
        select(vec![1_000_u32, 65_535, 262_144]),
        select(vec![1_000_usize, 65_536]),
        select(vec![65_535_u32, 1_048_576]),
        select(vec![1_u32, 3, 128]),
        select(vec![1_000_usize, 60_000, usize::MAX]),
    );
    sizes.prop_map(move |(stream, send, connection, streams, unsent)| {
        let mut limits = match side {
            Side::Client => Limits::client(),
            Side::Server => Limits::server(),
        };
        limits.send_window_bytes = send;
        limits.http2.stream_window_bytes = stream;
        limits.http2.connection_window_bytes = connection;
        limits.http2.max_concurrent_streams = streams;
        limits.http2.max_unsent_bytes = unsent;
        // No time passes, and updates of a window below 1024 bytes are charged.
        limits.http2.control_frames.burst = 1_000_000;
        limits
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_agree_on_every_exchange(
        client in limits(Side::Client),
        server in limits(Side::Server),
        script in vec((any::<u8>(), any::<u16>()), 0..300),
    ) {
        let mut world = Harness::new(client, server);
        for (what, how) in script {
            world.apply(what, usize::from(how));
        }
        world.finish();
        world.check();
        world.close();
    }
}
