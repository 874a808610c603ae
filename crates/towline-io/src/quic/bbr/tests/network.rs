//! A bottleneck with a queue and losses by chance, shared by flows, on a virtual clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use super::super::{Bbr, Controller as _};

const PACKET_BYTES: u64 = 1200;
/// Packets in one acknowledgement, and how long the receiver waits for them.
const ACKED_TOGETHER: u32 = 2;
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Packets acknowledged after a missing one that prove its loss (RFC 9002 6.1.1).
const REORDERED: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Bytes per second.
    pub(super) rate: f64,
    pub(super) rtt: Duration,
    pub(super) loss: f64,
    pub(super) queue_bytes: f64,
}

pub(super) enum Algorithm {
    Bbr(Bbr),
    Cubic(Cubic),
}

/// `CUBIC` (RFC 9438) without its TCP-friendly region's fine print: the competitor.
pub(super) struct Cubic {
    window: f64,
    threshold: f64,
    max: f64,
    epoch: Option<Instant>,
    friendly: f64,
    recovery_until: Instant,
}

impl Cubic {
    fn acked(
        &mut self,
        now: Instant,
        packets: f64,
        rtt: Duration,
        sent: Instant,
        is_app_limited: bool,
    ) {
        if sent < self.recovery_until || is_app_limited {
            return;
        }
        if self.window < self.threshold {
            self.window += packets;
            return;
        }
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.friendly = self.window;
            self.max = self.max.max(self.window);
            now
        });
        let k = (self.max * 0.3 / 0.4).cbrt();
        let t = (now - epoch + rtt).as_secs_f64();
        let target = 0.4 * (t - k).powi(3) + self.max;
        self.friendly += 0.53 * packets / self.window;
        let target = target
            .max(self.friendly)
            .clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window * packets;
    }

    fn lost(&mut self, now: Instant, sent: Instant) {
        if sent < self.recovery_until {
            return;
        }
        self.max = if self.window < self.max {
            self.window * 0.85
        } else {
            self.window
        };
        self.window = (self.window * 0.7).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
        self.recovery_until = now;
    }
}

pub(super) struct Flow {
    pub(super) algorithm: Algorithm,
    left: u64,
    next: u64,
    sent: BTreeMap<u64, Instant>,
    largest_acked: u64,
    srtt: Duration,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    total: u64,
    done: Option<Duration>,
    tokens_at: Instant,
    send_at: Option<Instant>,
    received: Vec<u64>,
    ack_number: u64,
    is_app_limited: bool,
    probes: u32,
    /// Longest time in the queue after the first second.
    pub(super) longest_late_queue: Duration,
}

impl Flow {
    fn new(algorithm: Algorithm, bytes: u64) -> Self {
        let now = Instant::now();
        Self {
            algorithm,
            left: bytes.div_ceil(PACKET_BYTES),
            next: 1,
            sent: BTreeMap::new(),
            largest_acked: 0,
            srtt: Duration::from_millis(333),
            delivered: 0,
            lost: 0,
            total: bytes,
            done: None,
            tokens_at: now,
            send_at: None,
            received: Vec::new(),
            ack_number: 0,
            is_app_limited: false,
            probes: 0,
            longest_late_queue: Duration::ZERO,
        }
    }

    pub(super) fn bbr(bytes: u64) -> Self {
        let now = Instant::now();
        Self::new(
            Algorithm::Bbr(Bbr::new(now, PACKET_BYTES as u16, 32 << 20)),
            bytes,
        )
    }

    pub(super) fn cubic(bytes: u64) -> Self {
        let now = Instant::now();
        let cubic = Cubic {
            window: 12.0,
            threshold: f64::MAX,
            max: 0.0,
            epoch: None,
            friendly: 0.0,
            recovery_until: now,
        };
        Self::new(Algorithm::Cubic(cubic), bytes)
    }

    pub(super) fn done_s(&self) -> f64 {
        self.done.map_or(f64::INFINITY, |at| at.as_secs_f64())
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }

    pub(super) fn lost_share(&self) -> f64 {
        self.lost as f64 / (self.next - 1) as f64
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.sent.len() as u64 * PACKET_BYTES
    }

    fn window(&self) -> u64 {
        match &self.algorithm {
            Algorithm::Bbr(bbr) => bbr.window(),
            Algorithm::Cubic(cubic) => (cubic.window * PACKET_BYTES as f64) as u64,
        }
    }

    /// Bytes per second: the lower of quinn's and of the controller's.
    fn pacing_rate(&self) -> f64 {
        let quinn = self.window() as f64 * 1.25 / self.srtt.as_secs_f64();
        match &self.algorithm {
            Algorithm::Bbr(bbr) => quinn.min(bbr.pacing_rate() as f64),
            Algorithm::Cubic(_) => quinn,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Probe(u64),
    /// A packet may be lost by time.
    Late,
    Arrived(u64),
    AckDue(u64),
    /// The acknowledgement with this number.
    Acked(u64),
}

pub(super) struct Network {
    pub(super) now: Instant,
    start: Instant,
    pub(super) path: Path,
    pub(super) flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(Instant, u64, usize, Event)>>,
    acks: BTreeMap<u64, Vec<u64>>,
    number: u64,
    free_at: Instant,
    random: u64,
}

impl Network {
    pub(super) fn new(path: Path, flows: Vec<Flow>, seed: u64) -> Self {
        let now = Instant::now();
        let mut network = Self {
            now,
            start: now,
            path,
            flows,
            events: BinaryHeap::new(),
            acks: BTreeMap::new(),
            number: 0,
            free_at: now,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        for flow in 0..network.flows.len() {
            network.at(now, flow, Event::Send);
        }
        network
    }

    /// The program of a flow has more to send.
    pub(super) fn give(&mut self, id: usize, bytes: u64) {
        let flow = &mut self.flows[id];
        flow.left += bytes.div_ceil(PACKET_BYTES);
        flow.total += bytes;
        flow.done = None;
        self.send(id);
    }

    fn draw(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / 2_f64.powi(53)
    }

    fn at(&mut self, at: Instant, flow: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, flow, event)));
    }

    /// Runs until all flows are done, or for this time.
    pub(super) fn run(&mut self, longest: Duration) {
        while let Some(Reverse((at, _, flow, event))) = self.events.pop() {
            if at - self.start > longest || self.flows.iter().all(Flow::is_done) {
                self.events.push(Reverse((at, self.number, flow, event)));
                self.number += 1;
                self.now = self.now.max((self.start + longest).min(at));
                return;
            }
            self.now = at;
            match event {
                Event::Send => {
                    self.flows[flow].send_at = None;
                    self.send(flow);
                }
                Event::Probe(number) => self.probe(flow, number),
                Event::Late => {
                    self.detect_losses(flow);
                    self.send(flow);
                }
                Event::Arrived(packet) => self.arrived(flow, packet),
                Event::AckDue(number) => self.acknowledge(flow, Some(number)),
                Event::Acked(number) => self.acked(flow, number),
            }
        }
    }

    fn send(&mut self, id: usize) {
        let now = self.now;
        loop {
            let flow = &mut self.flows[id];
            if flow.left == 0 {
                flow.is_app_limited = true;
                return;
            }
            flow.is_app_limited = false;
            if flow.in_flight() + PACKET_BYTES > flow.window() {
                return;
            }
            // A bucket of 4 ms and at least 10 packets, as Connection's.
            let rate = flow.pacing_rate();
            let depth =
                Duration::from_secs_f64((rate * 0.004).max(10.0 * PACKET_BYTES as f64) / rate);
            flow.tokens_at = flow.tokens_at.max(now.checked_sub(depth).unwrap_or(now));
            let cost = Duration::from_secs_f64(PACKET_BYTES as f64 / rate);
            if flow.tokens_at + cost > now {
                if flow.send_at.is_none() {
                    let at = flow.tokens_at + cost + Duration::from_micros(500);
                    flow.send_at = Some(at);
                    self.at(at, id, Event::Send);
                }
                return;
            }
            flow.tokens_at += cost;
            flow.left -= 1;
            self.launch(id);
        }
    }

    fn launch(&mut self, id: usize) {
        let now = self.now;
        let flow = &mut self.flows[id];
        let packet = flow.next;
        flow.next += 1;
        flow.sent.insert(packet, now);
        if let Algorithm::Bbr(bbr) = &mut flow.algorithm {
            bbr.on_sent(now, 0, 0);
        }
        let probe_after = (flow.srtt * 2 + ACK_DELAY) * (1 << flow.probes.min(6));
        self.at(now + probe_after, id, Event::Probe(packet));
        let backlog = self.free_at.saturating_duration_since(now).as_secs_f64() * self.path.rate;
        if backlog + PACKET_BYTES as f64 > self.path.queue_bytes.max(2.0 * PACKET_BYTES as f64) {
            return;
        }
        let time = Duration::from_secs_f64(PACKET_BYTES as f64 / self.path.rate);
        self.free_at = self.free_at.max(now) + time;
        let queued = self.free_at - now;
        if now - self.start > Duration::from_secs(1) {
            let longest = &mut self.flows[id].longest_late_queue;
            *longest = queued.max(*longest);
        }
        if self.draw() >= self.path.loss {
            self.at(self.free_at + self.path.rtt / 2, id, Event::Arrived(packet));
        }
    }

    /// A probe timeout, if nothing was acknowledged since the packet was sent.
    fn probe(&mut self, id: usize, packet: u64) {
        let flow = &mut self.flows[id];
        if flow.next == packet + 1 && flow.sent.contains_key(&packet) {
            flow.probes += 1;
            self.launch(id);
        }
    }

    fn arrived(&mut self, id: usize, packet: u64) {
        let flow = &mut self.flows[id];
        let has_gap = flow.received.last().is_some_and(|last| *last + 1 != packet);
        flow.received.push(packet);
        if flow.received.len() as u32 >= ACKED_TOGETHER || has_gap {
            self.acknowledge(id, None);
        } else {
            let number = flow.ack_number;
            self.at(self.now + ACK_DELAY, id, Event::AckDue(number));
        }
    }

    fn acknowledge(&mut self, id: usize, due: Option<u64>) {
        let flow = &mut self.flows[id];
        if due.is_some_and(|number| number != flow.ack_number) || flow.received.is_empty() {
            return;
        }
        flow.ack_number += 1;
        let packets = std::mem::take(&mut flow.received);
        self.number += 1;
        let number = self.number;
        self.acks.insert(number, packets);
        self.at(self.now + self.path.rtt / 2, id, Event::Acked(number));
    }

    fn acked(&mut self, id: usize, number: u64) {
        let now = self.now;
        let packets = self.acks.remove(&number).expect("sent");
        let flow = &mut self.flows[id];
        flow.probes = 0;
        for packet in packets {
            flow.largest_acked = flow.largest_acked.max(packet);
            let Some(sent) = flow.sent.remove(&packet) else {
                continue;
            };
            let rtt = now - sent;
            flow.srtt = if flow.delivered == 0 {
                rtt
            } else {
                (flow.srtt * 7 + rtt) / 8
            };
            flow.delivered += PACKET_BYTES;
            match &mut flow.algorithm {
                Algorithm::Bbr(bbr) => bbr.acked(sent, PACKET_BYTES),
                Algorithm::Cubic(cubic) => {
                    cubic.acked(now, 1.0, flow.srtt, sent, flow.is_app_limited);
                }
            }
        }
        let in_flight = flow.in_flight();
        if let Algorithm::Bbr(bbr) = &mut flow.algorithm {
            bbr.on_end_acks(now, in_flight, flow.is_app_limited, None);
        }
        self.detect_losses(id);
        let flow = &mut self.flows[id];
        if flow.delivered >= flow.total && flow.done.is_none() {
            flow.done = Some(now - self.start);
        }
        self.send(id);
    }

    /// By the number of later packets, and by time (RFC 9002 6.1).
    fn detect_losses(&mut self, id: usize) {
        let now = self.now;
        let flow = &mut self.flows[id];
        let late = flow.srtt * 9 / 8;
        let largest = flow.largest_acked;
        let lost: Vec<_> = flow
            .sent
            .range(..largest)
            .filter(|(packet, sent)| largest >= **packet + REORDERED || now - **sent >= late)
            .map(|(packet, sent)| (*packet, *sent))
            .collect();
        for (packet, sent) in lost {
            flow.sent.remove(&packet);
            flow.lost += 1;
            flow.left += 1;
            match &mut flow.algorithm {
                Algorithm::Bbr(bbr) => bbr.on_congestion_event(now, sent, false, PACKET_BYTES),
                Algorithm::Cubic(cubic) => cubic.lost(now, sent),
            }
        }
        let first_due = flow
            .sent
            .range(..largest)
            .next()
            .map(|(_, sent)| *sent + late);
        if let Some(at) = first_due {
            self.at(at.max(now), id, Event::Late);
        }
    }
}
