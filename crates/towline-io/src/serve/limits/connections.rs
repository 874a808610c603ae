//! `--limit-connections` and `--limit-connections-per-client`: a connection is counted first and then compared, by every worker
//! in its own counters, so that there are never more than allowed.
//!
//! A client has four counters, which it may share with others: its connections are at most the smallest of them
//! (a count-min sketch, Cormode and Muthukrishnan 2005). So a client never has more than its limit; one is refused too
//! early only if all four are shared with busy clients.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Instant;

use super::memory::{LimitMemory, ROWS};
use super::rate::network;
use crate::serve::forwarded::{PeerIp, TrustedPeers};
use crate::serve::metrics::SlotHandle;
use crate::serve::refusals::{Reason, Refusals};

/// The limits of a worker.
pub struct ConnectionLimits {
    /// Open connections of all workers.
    pub total: Option<u64>,
    /// Open connections of one client.
    pub per_client: Option<u64>,
    /// Proxies, whose connections have the requests of many clients.
    pub proxies: TrustedPeers,
    /// The worker that counts.
    pub slot: SlotHandle,
    pub memory: Arc<LimitMemory>,
    pub refusals: Option<Arc<Refusals>>,
}

impl ConnectionLimits {
    /// Whether a new connection, which is in `connections_open` already, is within the limit of all.
    pub(crate) fn admits_one(&self, client: Option<IpAddr>) -> bool {
        fence(SeqCst);
        let open = |slot: &crate::serve::metrics::Slot| slot.connections_open.load(Relaxed);
        let is_admitted = self
            .total
            .is_none_or(|total| self.slot.slots().in_use().map(open).sum::<u64>() <= total);
        if !is_admitted {
            let rule = "more connections than --limit-connections";
            self.refuse(Reason::Connections, rule, client);
        }
        is_admitted
    }

    /// Counts a connection of a client, which may be none of a proxy; an error refuses it.
    pub(crate) fn admit_client(
        self: &Arc<Self>,
        client: Option<IpAddr>,
    ) -> Result<Option<Box<ClientCount>>, ()> {
        let (Some(limit), Some(ip)) = (self.per_client, client) else {
            return Ok(None);
        };
        if self.proxies.trusts(PeerIp::Ip(ip)) {
            return Ok(None);
        }
        let count = ClientCount::new(Arc::clone(self), self.memory.hash(network(ip)));
        if self.open(count.hash) > limit {
            let rule = "more connections of a client than --limit-connections-per-client";
            self.refuse(Reason::ClientConnections, rule, client);
            return Err(());
        }
        Ok(Some(Box::new(count)))
    }

    /// Whether half of an address's connections are open. The rest is for those who prove that it is theirs: QUIC's
    /// first packet may have a forged address.
    pub(crate) fn requires_proof(&self, ip: IpAddr) -> bool {
        let is_half = |limit| self.open(self.memory.hash(network(ip))) * 2 >= limit;
        self.per_client.is_some_and(is_half) && !self.proxies.trusts(PeerIp::Ip(ip))
    }

    /// Connections of a client with all workers, or a few more.
    fn open(&self, hash: u64) -> u64 {
        fence(SeqCst);
        let workers = self.slot.slots().in_use().count();
        let in_row = |row| {
            let counts = (0..workers).map(|worker| {
                let (word, shift) = self.memory.counter(worker, hash, row);
                word.load(Relaxed) >> shift & 0xffff
            });
            counts.sum()
        };
        (0..ROWS).map(in_row).min().unwrap_or_default()
    }

    #[cold]
    fn refuse(&self, reason: Reason, rule: &str, client: Option<IpAddr>) {
        if let Some(refusals) = &self.refusals {
            refusals.on_connection(reason, rule, client, Instant::now());
        }
    }
}

/// Counts a connection of a client until it is dropped.
pub(crate) struct ClientCount {
    limits: Arc<ConnectionLimits>,
    hash: u64,
}

impl ClientCount {
    fn new(limits: Arc<ConnectionLimits>, hash: u64) -> Self {
        let count = Self { limits, hash };
        count.add(1);
        count
    }

    fn add(&self, n: u64) {
        for row in 0..ROWS {
            let worker = self.limits.slot.index();
            let (word, shift) = self.limits.memory.counter(worker, self.hash, row);
            word.fetch_add(n << shift, Relaxed);
        }
    }
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        self.add(1_u64.wrapping_neg());
    }
}
