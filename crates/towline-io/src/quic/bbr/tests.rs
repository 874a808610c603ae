//! BBR on a simulated network: a bottleneck with a queue, losses by chance, and senders of BBR and CUBIC, on a virtual
//! clock.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "sizes and rates of a simulation"
)]

mod network;

use super::*;
use network::{Algorithm, Flow, Network, Path};

const MS: Duration = Duration::from_millis(1);
const MTU: u64 = 1200;

/// A path whose queue holds `queue` products of rate and round trip.
fn path(mbit: f64, rtt_ms: u32, loss: f64, queue: f64) -> Path {
    let rate = mbit * 1e6 / 8.0;
    let rtt = rtt_ms * MS;
    Path {
        rate,
        rtt,
        loss,
        queue_bytes: rate * rtt.as_secs_f64() * queue,
    }
}

/// Share of the path's rate that a transfer of `bytes` uses, its beginning included.
fn use_of(path: Path, flow: Flow, bytes: u64) -> (f64, Network) {
    let mut network = Network::new(path, vec![flow], 1);
    network.run(Duration::from_secs(120));
    let used = bytes as f64 / path.rate / network.flows[0].done_s();
    (used, network)
}

fn bbr_of(network: &Network) -> &Bbr {
    match &network.flows[0].algorithm {
        Algorithm::Bbr(bbr) => bbr,
        Algorithm::Cubic(_) => panic!("a flow of CUBIC"),
    }
}

#[test]
fn a_path_without_losses_is_full_and_its_queue_is_not() {
    for (mbit, rtt, queue) in [(10.0, 50, 4.0), (100.0, 10, 4.0), (100.0, 50, 4.0)] {
        let path = path(mbit, rtt, 0.0, queue);
        let bytes = (path.rate * 20.0) as u64;
        let (used, network) = use_of(path, Flow::bbr(bytes), bytes);
        assert!(used > 0.93, "{mbit} Mbit/s, {rtt} ms: {used}");
        // One product of rate and round trip after the first second; CUBIC fills all four.
        let longest = network.flows[0].longest_late_queue;
        assert!(longest < path.rtt, "{mbit} Mbit/s, {rtt} ms: {longest:?}");
    }
}

#[test]
fn losses_by_chance_do_not_slow_it() {
    for (mbit, rtt) in [(10.0, 50), (100.0, 10), (100.0, 50)] {
        let path = path(mbit, rtt, 0.02, 1.0);
        let bytes = (path.rate * 8.0) as u64;
        let (used, _) = use_of(path, Flow::bbr(bytes), bytes);
        let (of_cubic, _) = use_of(path, Flow::cubic(bytes), bytes);
        assert!(used > 0.88, "{mbit} Mbit/s, {rtt} ms: {used}");
        assert!(used > 1.5 * of_cubic, "{used}, CUBIC {of_cubic}");
    }
}

#[test]
fn a_short_queue_costs_few_packets() {
    let path = path(100.0, 20, 0.0, 0.2);
    let bytes = (path.rate * 20.0) as u64;
    let (used, network) = use_of(path, Flow::bbr(bytes), bytes);
    assert!(used > 0.93, "{used}");
    assert!(network.flows[0].lost_share() < 0.05);
}

#[test]
fn flows_share_a_queue() {
    let share = |path: Path, other: Flow| {
        let flows = vec![Flow::bbr(1 << 40), other];
        let mut network = Network::new(path, flows, 2);
        network.run(Duration::from_secs(60));
        let [a, b] = [0, 1].map(|flow| network.flows[flow].delivered as f64);
        a / (a + b)
    };
    for queue in [1.0, 2.0, 4.0] {
        let path = path(50.0, 20, 0.0, queue);
        let beside_bbr = share(path, Flow::bbr(1 << 40));
        assert!((0.3..0.7).contains(&beside_bbr), "{queue}: {beside_bbr}");
        let beside_cubic = share(path, Flow::cubic(1 << 40));
        assert!(
            (0.2..0.85).contains(&beside_cubic),
            "{queue}: {beside_cubic}"
        );
    }
}

#[test]
fn a_slower_path_is_noticed_and_a_faster_one_is_used() {
    let mut network = Network::new(path(50.0, 40, 0.0, 1.0), vec![Flow::bbr(1 << 40)], 3);
    let mut rates = Vec::new();
    for (second, mbit) in [(10, 50.0), (20, 5.0), (40, 50.0)] {
        network.path.rate = mbit * 1e6 / 8.0;
        network.run(Duration::from_secs(second));
        rates.push(bbr_of(&network).rate() as f64 / network.path.rate);
    }
    assert!(
        rates.iter().all(|rate| (0.85..1.15).contains(rate)),
        "{rates:?}"
    );
}

#[test]
fn a_longer_round_trip_is_believed_after_ten_seconds_and_a_probe() {
    let mut network = Network::new(path(20.0, 20, 0.0, 1.0), vec![Flow::bbr(1 << 40)], 4);
    network.run(Duration::from_secs(5));
    network.path.rtt = 80 * MS;
    network.run(Duration::from_secs(25));
    let bbr = bbr_of(&network);
    assert!(
        (80 * MS..100 * MS).contains(&bbr.min_rtt),
        "{:?}",
        bbr.min_rtt
    );
    let before = network.flows[0].delivered;
    network.run(Duration::from_secs(30));
    let used = (network.flows[0].delivered - before) as f64 / 5.0 / network.path.rate;
    assert!(used > 0.9, "{used}");
}

#[test]
fn pauses_of_the_program_lower_no_estimate_and_end_no_startup() {
    let mut network = Network::new(path(50.0, 40, 0.0, 1.0), vec![Flow::bbr(20_000)], 5);
    for turn in 1..20_u32 {
        network.run(turn * 200 * MS);
        network.give(0, 20_000);
    }
    assert_eq!(bbr_of(&network).phase, Phase::Startup);
    network.give(0, 40_000_000);
    network.run(Duration::from_secs(9));
    let rate = bbr_of(&network).rate();
    assert!(rate as f64 > 0.9 * network.path.rate, "{rate}");
    // Small responses again, which are far below the rate.
    for turn in 0..50_u32 {
        network.run(Duration::from_secs(20) + turn * 200 * MS);
        network.give(0, 20_000);
    }
    let rate = bbr_of(&network).rate();
    assert!(rate as f64 > 0.9 * network.path.rate, "{rate}");
}

#[test]
fn after_a_pause_it_sends_at_the_rate() {
    let mut network = Network::new(path(20.0, 40, 0.0, 4.0), vec![Flow::bbr(20_000_000)], 6);
    network.run(Duration::from_secs(60));
    assert!(network.flows[0].is_done());
    network.flows[0].longest_late_queue = Duration::ZERO;
    network.give(0, 1_000_000);
    network.run(Duration::from_secs(70));
    let longest = network.flows[0].longest_late_queue;
    assert!(longest < 15 * MS, "{longest:?}");
}

/// A controller, driven by hand: each round sends the window and has it acknowledged after `rtt`.
struct Rounds {
    bbr: Bbr,
    now: Instant,
}

impl Rounds {
    fn new(max_window_bytes: u64) -> Self {
        let now = Instant::now();
        Self {
            bbr: Bbr::new(now, MTU as u16, max_window_bytes),
            now,
        }
    }

    /// Returns the bytes acknowledged.
    fn round(&mut self, rtt: Duration, lost: u64) -> u64 {
        let window = self.bbr.window() / MTU;
        let sent: Vec<_> = (0..window)
            .map(|number| self.now + rtt.mul_f64(number as f64 / window as f64 / 2.0))
            .collect();
        for at in &sent {
            self.bbr.on_sent(*at, 0, 0);
        }
        for at in &sent {
            self.bbr.acked(*at, MTU);
            self.now = self.now.max(*at + rtt);
            self.bbr.on_end_acks(self.now, MTU, false, None);
        }
        if lost > 0 {
            self.bbr
                .on_congestion_event(self.now, self.now, false, lost);
        }
        window * MTU
    }
}

#[test]
fn acknowledgements_of_what_has_not_arrived_yet_do_not_raise_the_window_above_its_bound() {
    const MAX_BYTES: u64 = 2 << 20;
    let mut liar = Rounds::new(MAX_BYTES);
    for _ in 0..1000 {
        let acked = liar.round(MS, 0);
        assert!(acked <= MAX_BYTES);
    }
    // And not the estimate above what was sent: a window in half of a round trip.
    let sent_rate = per_second(MAX_BYTES, MS / 2);
    assert!(liar.bbr.rate() <= sent_rate, "{}", liar.bbr.rate());
}

#[test]
fn acknowledgements_that_come_together_do_not_raise_the_estimate() {
    let mut bbr = Rounds::new(1 << 20);
    let start = bbr.now;
    // 100 packets in 100 ms, acknowledged at once by a peer that waited for all of them.
    for number in 0..100 {
        bbr.bbr.on_sent(start + number * MS, 0, 0);
    }
    for number in 0..100 {
        bbr.bbr.acked(start + number * MS, MTU);
    }
    bbr.bbr.on_end_acks(start + 100 * MS, 0, false, None);
    assert!(bbr.bbr.rate() <= per_second(100 * MTU, 99 * MS));
}

#[test]
fn too_many_losses_end_startup_and_lower_the_estimate_by_less_than_a_third() {
    let mut line = Rounds::new(1 << 30);
    for _ in 0..5 {
        line.round(50 * MS, 0);
    }
    assert_eq!(line.bbr.phase, Phase::Startup);
    let lost = line.bbr.window() / 4;
    line.round(50 * MS, lost);
    line.round(50 * MS, lost);
    assert!(line.bbr.is_full);
    for _ in 0..20 {
        let before = line.bbr.rate();
        line.round(50 * MS, before);
        assert!(line.bbr.rate() * 100 >= before * LOSS_FACTOR - 100);
    }
    // Nobody starves: four packets per round trip remain.
    assert!(line.bbr.window() >= 4 * MTU);
}

#[test]
fn a_mark_of_congestion_counts_as_losses() {
    let mut line = Rounds::new(1 << 30);
    for _ in 0..3 {
        line.round(50 * MS, 0);
    }
    line.bbr.on_congestion_event(line.now, line.now, false, 0);
    line.round(50 * MS, 0);
    assert!(line.bbr.is_full);
}

#[test]
fn persistent_congestion_leaves_the_smallest_window() {
    let mut line = Rounds::new(1 << 30);
    for _ in 0..5 {
        line.round(50 * MS, 0);
    }
    let before = line.bbr.window();
    line.bbr.on_congestion_event(line.now, line.now, true, MTU);
    assert_eq!(line.bbr.window(), 4 * MTU);
    for _ in 0..8 {
        line.round(50 * MS, 0);
    }
    assert!(line.bbr.window() >= before / 2);
}
