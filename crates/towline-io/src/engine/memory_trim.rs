//! When to give freed memory back to the system.
//!
//! The C library keeps what a crowd of connections has used: 100 connections with 100 unread streams each left
//! hundreds of megabytes. Giving it back costs milliseconds, so it is done once after a crowd has left.

/// The fewest connections that count as a crowd.
const MIN_CROWD: usize = 64;

#[derive(Default)]
pub(crate) struct MemoryTrim {
    /// Most connections since the last trim.
    peak: usize,
}

impl MemoryTrim {
    /// Whether three quarters of a crowd have left. Call it once per turn with the number of connections.
    pub(crate) fn is_due(&mut self, conns: usize) -> bool {
        if conns >= self.peak {
            self.peak = conns;
            return false;
        }
        let is_due = self.peak >= MIN_CROWD && conns <= self.peak / 4;
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
    fn once_after_most_of_a_crowd_has_left() {
        let mut trim = MemoryTrim::default();
        let due: Vec<bool> = [1, 0, 63, 0, 100, 50, 26, 25, 20, 0]
            .map(|conns| trim.is_due(conns))
            .to_vec();
        let at = due.iter().position(|&due| due);
        assert_eq!((at, due.iter().filter(|&&due| due).count()), (Some(7), 1));
    }
}
