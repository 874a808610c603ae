//! Decides when freed memory is returned to the system.
//!
//! The C library keeps memory that many concurrent connections have used: 100 connections with 100 unread streams
//! each left hundreds of megabytes. Returning it costs milliseconds, so it is done once, after most of the
//! connections have closed.

/// Memory is returned only after a peak of at least this many connections.
const MIN_PEAK: usize = 64;

#[derive(Default)]
pub(crate) struct MemoryTrim {
    /// Most connections since the last trim.
    peak: usize,
}

impl MemoryTrim {
    /// Whether three quarters of the connections of a peak have closed. Call it once per turn with the number of
    /// connections.
    pub(crate) fn is_due(&mut self, conns: usize) -> bool {
        if conns >= self.peak {
            self.peak = conns;
            return false;
        }
        let is_due = self.peak >= MIN_PEAK && conns <= self.peak / 4;
        if is_due {
            self.peak = conns;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_most_connections_have_closed() {
        let mut trim = MemoryTrim::default();
        let due: Vec<bool> = [1, 0, 63, 0, 100, 50, 26, 25, 20, 0]
            .map(|conns| trim.is_due(conns))
            .to_vec();
        let at = due.iter().position(|&due| due);
        assert_eq!((at, due.iter().filter(|&&due| due).count()), (Some(7), 1));
    }
}
