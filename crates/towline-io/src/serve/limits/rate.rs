//! `--limit-rate`: which requests count, for which client.

use std::net::IpAddr;
use std::sync::Arc;

use super::bucket::{self, Rate};
use super::memory::LimitMemory;

/// The property that tells clients apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateKey {
    Address,
    /// The value of a header, in lower case; the address if a request does not have it.
    Header(Box<[u8]>),
}

/// The limit on requests of each client.
pub struct RateLimit {
    rate: Rate,
    key: RateKey,
    exempt: Vec<Box<[u8]>>,
    memory: Arc<LimitMemory>,
    /// Value of `ratelimit-policy` (draft-ietf-httpapi-ratelimit-headers-11).
    pub(crate) policy: Box<str>,
}

impl RateLimit {
    /// `(count, seconds, burst)`: `count` requests in `seconds`, of them `burst` at once. `exempt`: paths that do not count.
    /// `None`: the rate is out of range.
    pub fn new(
        (count, seconds, burst): (u32, u32, u32),
        key: RateKey,
        exempt: Vec<Box<[u8]>>,
        memory: Arc<LimitMemory>,
    ) -> Option<Self> {
        Some(Self {
            rate: Rate::new(count, seconds, burst)?,
            key,
            exempt,
            memory,
            policy: format!("\"default\";q={count};w={seconds}").into(),
        })
    }

    /// Counts a request; an error is the number of seconds after which it would be admitted.
    pub(crate) fn admit<'a>(
        &self,
        path: &[u8],
        mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        client: Option<IpAddr>,
        now_ns: u64,
    ) -> Result<(), u64> {
        if self.exempt.iter().any(|exempt| covers(exempt, path)) {
            return Ok(());
        }
        let value = match &self.key {
            RateKey::Address => None,
            RateKey::Header(name) => fields
                .find(|(other, _)| other.eq_ignore_ascii_case(name))
                .map(|(_, value)| value),
        };
        let hash = match (value, client) {
            (Some(value), _) => self.memory.hash(value),
            (None, Some(ip)) => self.memory.hash(network(ip)),
            // All that come through Unix sockets without a forwarded address.
            (None, None) => self.memory.hash(()),
        };
        bucket::admit(self.memory.set(hash), hash, self.rate, now_ns)
            .map_err(|ns| ns.div_ceil(1_000_000_000))
    }
}

/// The part of an address that stands for one client: an IPv4 address, or the /64 of an IPv6 address, which one subscriber has as a whole.
pub(super) fn network(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        // No network of IPv6 begins with 0:ffff (RFC 4291 2.4).
        IpAddr::V4(ip) => 0xffff_0000_0000 | u64::from(u32::from(ip)),
        IpAddr::V6(ip) => (u128::from(ip) >> 64) as u64,
    }
}

/// Whether `path` is `exempt` or below it. One that an application may resolve to another path is not.
fn covers(exempt: &[u8], path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(exempt) else {
        return false;
    };
    let is_below = rest.is_empty() || exempt.ends_with(b"/") || rest[0] == b'/';
    is_below && !rest.contains(&b'%') && !rest.windows(2).any(|two| two == b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exempt_path_covers_what_is_below_it() {
        assert!(covers(b"/live", b"/live") && covers(b"/live", b"/live/now"));
        assert!(covers(b"/a/", b"/a/b") && covers(b"/", b"/any"));
        for other in [
            "/lives",
            "/",
            "/live/../admin",
            "/live/%2e%2e/admin",
            "/Live",
        ] {
            assert!(!covers(b"/live", other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_client_is_an_address_or_the_network_of_a_subscriber() {
        let of = |ip: &str| network(ip.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8:0:0:ffff::9"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_ne!(of("::1"), of("0.0.0.0"));
    }
}
