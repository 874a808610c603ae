//! Streams that were reset, for as long as frames of them may still arrive.

/// Number of reset streams that are remembered individually.
const MAX_REMEMBERED: usize = 128;

/// The streams that either side has reset.
#[derive(Debug, Default)]
pub(super) struct Resets {
    pub local: LocalResets,
    pub peer: PeerResets,
}

/// Streams that we reset: until the peer has received the reset (RFC 9113 5.1) it continues to send DATA within
/// the windows. Identifiers dropped from the list raise a mark: every stream below it is taken for a reset one,
/// and the windows of the dropped ones are summed up.
#[derive(Debug, Default)]
pub(super) struct LocalResets {
    ids: Vec<(u32, u64)>,
    /// Position of the next entry when the list is full.
    next: usize,
    mark: u32,
    below_mark: u64,
}

impl LocalResets {
    /// `window`: the bytes that the peer may still send.
    pub fn add(&mut self, id: u32, window: u64) {
        if self.ids.len() < MAX_REMEMBERED {
            self.ids.push((id, window));
            return;
        }
        let (old, rest) = std::mem::replace(&mut self.ids[self.next], (id, window));
        self.mark = self.mark.max(old);
        self.below_mark = self.below_mark.saturating_add(rest);
        self.next = (self.next + 1) % MAX_REMEMBERED;
    }

    /// Removes a stream whose reset the peer has received. The mark is unchanged.
    pub fn remove(&mut self, id: u32) {
        if let Some(entry) = self.ids.iter_mut().find(|entry| entry.0 == id) {
            // No stream has this identifier.
            *entry = (0, 0);
        }
    }

    pub fn has(&self, id: u32) -> bool {
        id <= self.mark || self.ids.iter().any(|entry| entry.0 == id)
    }

    /// Bytes that the peer may still send on it; `None`: it is not one of these streams.
    pub fn window(&mut self, id: u32) -> Option<&mut u64> {
        match self.ids.iter_mut().find(|entry| entry.0 == id) {
            Some((_, window)) => Some(window),
            None => (id <= self.mark).then_some(&mut self.below_mark),
        }
    }
}

/// Streams that the peer reset recently: some clients repeat the reset for each frame that still reaches them
/// there.
#[derive(Debug, Default)]
pub(super) struct PeerResets {
    ids: Vec<u32>,
    /// Position of the next entry when the list is full.
    next: usize,
}

impl PeerResets {
    pub fn add(&mut self, id: u32) {
        if self.ids.len() < MAX_REMEMBERED {
            self.ids.push(id);
            return;
        }
        self.ids[self.next] = id;
        self.next = (self.next + 1) % MAX_REMEMBERED;
    }

    pub fn has(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_dropped_from_the_list_are_covered_by_the_mark() {
        let mut resets = LocalResets::default();
        let ids = || (1..=4 * MAX_REMEMBERED as u32).step_by(2);
        for id in ids() {
            assert!(!resets.has(id) && resets.window(id).is_none());
            resets.add(id, 10);
        }
        assert!(ids().all(|id| resets.has(id)));
        let last = 4 * MAX_REMEMBERED as u32 - 1;
        assert_eq!(resets.window(last), Some(&mut 10));
        assert_eq!(resets.window(1), Some(&mut (10 * MAX_REMEMBERED as u64)));
        assert!(!resets.has(last + 2));
    }
}
