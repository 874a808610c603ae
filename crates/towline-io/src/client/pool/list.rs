//! Doubly linked lists through the entries of a slab: append, and removal from the middle, both O(1).

use slab::Slab;

const NONE: u32 = u32::MAX;

/// The neighbours of an entry in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    before: u32,
    after: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            before: NONE,
            after: NONE,
        }
    }
}

/// An entry that can be in list number `LIST`.
pub(super) trait Node<const LIST: usize> {
    fn links(&mut self) -> &mut Links;
}

/// The ends of one list. Membership is recorded in the entry's own state.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const LIST: usize> {
    first: u32,
    last: u32,
    len: usize,
}

impl<const LIST: usize> Default for List<LIST> {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }
}

impl<const LIST: usize> List<LIST> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<usize> {
        (self.first != NONE).then_some(self.first as usize)
    }

    pub(super) fn last(&self) -> Option<usize> {
        (self.last != NONE).then_some(self.last as usize)
    }

    pub(super) fn push_front<T: Node<LIST>>(&mut self, slab: &mut Slab<T>, index: usize) {
        let (index, after) = (index as u32, self.first);
        self.join(slab, NONE, index);
        self.join(slab, index, after);
        self.len += 1;
    }

    pub(super) fn push_back<T: Node<LIST>>(&mut self, slab: &mut Slab<T>, index: usize) {
        let (index, before) = (index as u32, self.last);
        self.join(slab, index, NONE);
        self.join(slab, before, index);
        self.len += 1;
    }

    /// `index` must be in this list.
    pub(super) fn remove<T: Node<LIST>>(&mut self, slab: &mut Slab<T>, index: usize) {
        let Some(node) = slab.get_mut(index) else {
            return;
        };
        let Links { before, after } = std::mem::take(node.links());
        self.join(slab, before, after);
        self.len -= 1;
    }

    /// Makes `before` and `after` neighbours; `None` on one side is the end of the list.
    fn join<T: Node<LIST>>(&mut self, slab: &mut Slab<T>, before: u32, after: u32) {
        match slab.get_mut(before as usize) {
            Some(node) if before != NONE => node.links().after = after,
            _ => self.first = after,
        }
        match slab.get_mut(after as usize) {
            Some(node) if after != NONE => node.links().before = before,
            _ => self.last = before,
        }
    }
}
