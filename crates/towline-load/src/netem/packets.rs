//! The emulator as a network interface (TUN): whole IP packets of TCP and UDP, whose senders are the kernel and QUIC
//! themselves, so that losses have their real effect on retransmission and congestion control.
//!
//! ```text
//! client ──► 198.18.x.2 ──► kernel ──► interface ──► shaper ──► heap, by time ──► addresses exchanged ──► kernel ──► server
//! ```
//!
//! The interface has the address 198.18.x.1. A packet for its neighbour 198.18.x.2 comes out here and goes back in with
//! source and destination exchanged, which leaves all checksums as they are: whatever listens on the own address is
//! reached at the neighbour's, through the emulated network, and responses take the same way.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use super::conditions::NetworkConditions;
use super::poll_wait::await_readable;
use super::shaper::{DATAGRAM_HEADER_BYTES, Shaper};
use super::transit::Transit;

const DEVICE: &str = "/dev/net/tun";
const SET_INTERFACE: libc::Ioctl = 0x4004_54ca;
const IFF_TUN: libc::c_short = 1;
/// Packets without a header of the interface's own.
const IFF_NO_PI: libc::c_short = 0x1000;
const NAME_BYTES: usize = 16;
/// Larger than any packet: the interface's MTU is 1500.
const MAX_PACKET_BYTES: usize = 2048;
const IPV4_HEADER_BYTES: usize = 20;
const PER_TURN: usize = 256;
/// Longest wait, so that a shutdown is noticed.
const TICK: Duration = Duration::from_millis(20);

/// The emulated network of one interface.
pub struct PacketNetem {
    interface: File,
    server_port: u16,
    shapers: [Shaper; 2],
    last_due: [Instant; 2],
    transit: Transit<Vec<u8>>,
}

impl PacketNetem {
    /// Makes the interface `name`; its address is set from outside. Packets to `server`'s port are one direction, all
    /// others the other.
    pub fn new(name: &str, server: SocketAddr, conditions: &NetworkConditions) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            interface: open(name)?,
            server_port: server.port(),
            shapers: [0, 1].map(|direction| Shaper::new(conditions, direction, now)),
            last_due: [now; 2],
            transit: Transit::new(),
        })
    }

    /// Waits for packets and due times, at most for a tick, and handles them.
    pub fn turn(&mut self) -> io::Result<()> {
        let wait = self.transit.next_due().map_or(TICK, |due| {
            due.saturating_duration_since(Instant::now()).min(TICK)
        });
        await_readable(self.interface.as_raw_fd(), wait)?;
        let now = Instant::now();
        let mut space = [0; MAX_PACKET_BYTES];
        for _ in 0..PER_TURN {
            match self.interface.read(&mut space) {
                Ok(bytes) => self.pass(&space[..bytes], now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        while let Some(packet) = self.transit.next_arrived(now) {
            // A packet that the kernel refuses is lost.
            let _ = self.interface.write(&packet);
        }
        Ok(())
    }

    fn pass(&mut self, packet: &[u8], now: Instant) {
        // Other versions are neighbour discovery of IPv6, to which nobody answers.
        if packet.len() < IPV4_HEADER_BYTES || packet[0] >> 4 != 4 {
            return;
        }
        let direction = usize::from(destination_port(packet) != Some(self.server_port));
        // The headers that the shaper adds to a datagram are in the packet already.
        let payload = packet.len().saturating_sub(DATAGRAM_HEADER_BYTES);
        let (shaper, last_due) = (&mut self.shapers[direction], &mut self.last_due[direction]);
        if let Some(passage) = shaper.datagram(now, payload, last_due) {
            let mut packet = packet.to_vec();
            let (source, destination) = packet[12..IPV4_HEADER_BYTES].split_at_mut(4);
            source.swap_with_slice(destination);
            self.transit.send(packet, passage);
        }
    }
}

/// The destination port of TCP or UDP.
fn destination_port(packet: &[u8]) -> Option<u16> {
    let header_bytes = usize::from(packet[0] & 0x0f) * 4;
    let (tcp, udp) = (6, 17);
    if packet[9] != tcp && packet[9] != udp {
        return None;
    }
    let port = packet.get(header_bytes + 2..header_bytes + 4)?;
    Some(u16::from_be_bytes([port[0], port[1]]))
}

fn open(name: &str) -> io::Result<File> {
    if name.is_empty() || name.len() >= NAME_BYTES {
        let why = "the name of an interface has 1 to 15 bytes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{DEVICE}: {error}"));
    let interface = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICE)
        .map_err(named)?;
    // SAFETY: all fields of the structure are plain numbers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (at, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *at = libc::c_char::from_ne_bytes([byte]);
    }
    request.ifr_ifru.ifru_flags = IFF_TUN | IFF_NO_PI;
    // SAFETY: an open descriptor and a structure that outlives the call, of the type that this request takes.
    let result = unsafe { libc::ioctl(interface.as_raw_fd(), SET_INTERFACE, &raw mut request) };
    if result < 0 {
        return Err(named(io::Error::last_os_error()));
    }
    Ok(interface)
}
