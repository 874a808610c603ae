//! Space on the disk, reserved before it is written to: writing to a hole of a mapped file on a full disk ends the process.
//!
//! A change copies the pages that it touches, so even a removal needs space. Each write that adds something therefore leaves
//! as much in reserve as a copy of all pages of the trees takes: then any removal fits, on a full disk, too. Where the disk has
//! no more, pages that earlier changes have freed count as well.
use std::io;
use std::sync::atomic::Ordering;

use crate::disk::reserve;
use crate::error::{Error, Result};
use crate::files::PAGE;
use crate::lmdb::{Db, Txn};
use crate::store::{Change, OpenFiles};

/// Pages that one item may copy: those from the root to its leaf, in two trees.
const ITEM_PAGES: u64 = 8;
/// Pages for the list of free pages and for the expired values that a write removes besides.
const BESIDES: u64 = 256;
/// Pages in a row that a long list of free pages may need.
const LIST: u64 = BESIDES / 4;
/// Steps in which the file grows.
const STEP: u64 = 64;
/// Least number of pages to ask for when the disk is nearly full.
const LEAST_STEP: u64 = 4;

impl OpenFiles {
    /// Make sure that the disk has space for the pages that a change may use. The caller is the only writer.
    pub fn reserve(&self, change: Change) -> Result<()> {
        let used = self.env.used_pages()?;
        let known = self.reserved.load(Ordering::Relaxed);
        let needed = needed(change, self.tree_pages.load(Ordering::Relaxed));
        if used + needed + 2 * BESIDES <= known && is_small(change) {
            return Ok(());
        }
        let needed = self::needed(change, self.env.read(tree_pages)?);
        let bound = self.settings.map_bytes() / PAGE;
        let wanted = (used + needed + 2 * BESIDES).min(bound);
        if wanted <= known {
            return Ok(());
        }
        let end = wanted.next_multiple_of(STEP).min(bound);
        match self.extend(used.max(known), end, true) {
            Err(error) if !self.fits_into_rest(change, used, needed)? => Err(self.no_space(error)),
            _ => Ok(()),
        }
    }

    /// Whether a change fits into what is reserved and what is free, when there is no more.
    fn fits_into_rest(&self, change: Change, used: u64, needed: u64) -> Result<bool> {
        let left = self.reserved.load(Ordering::Relaxed).saturating_sub(used);
        // Large values need pages in a row, which the free ones may not be.
        let in_a_row = (change.bytes as u64).div_ceil(PAGE) + LIST;
        let are_values_small = change.bytes as u64 <= PAGE / 2 * change.items as u64;
        let free = if are_values_small {
            self.env.free_pages()?
        } else {
            0
        };
        // The added space is more than a removal asks for.
        let slack = if change.bytes > 0 { LIST } else { 0 };
        Ok(needed + BESIDES + slack <= left + free && in_a_row <= left)
    }

    fn no_space(&self, error: io::Error) -> Error {
        let path = self.folder.path.display();
        Error::io(format!("{path}: no space for the store"))(error)
    }

    /// Reserve what the trees have, and what a first change needs. On a full disk, what there is: reading needs no more.
    pub fn reserve_at_open(&self, is_new: bool) -> Result<()> {
        let wanted = self.env.used_pages()? + 2 * BESIDES;
        let wanted = wanted.min(self.settings.map_bytes() / PAGE);
        let from = if is_new { self.env.used_pages()? } else { 0 };
        match self.extend(from, wanted, is_new) {
            Err(error) if is_new => Err(self.no_space(error)),
            _ => Ok(()),
        }
    }

    /// Note how many pages a removal may copy, after a change.
    pub fn note_tree(&self, txn: &Txn<'_>) -> Result<()> {
        self.tree_pages.store(tree_pages(txn)?, Ordering::Relaxed);
        Ok(())
    }

    /// Reserve pages up to `end`, or as many as there are. `may_write`: what follows the used pages may be overwritten.
    fn extend(&self, from: u64, end: u64, may_write: bool) -> io::Result<()> {
        let (mut from, mut step) = (from, end.saturating_sub(from));
        while from < end {
            let to = (from + step).min(end);
            match reserve(&self.data, from * PAGE, to * PAGE, may_write) {
                Ok(true) => {
                    self.reserved.fetch_max(to, Ordering::Relaxed);
                    from = to;
                }
                Ok(false) => return Ok(()),
                Err(_) if step > LEAST_STEP => step /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Pages that a change may copy or add. One that adds values leaves as many as a removal of everything copies.
fn needed(change: Change, tree: u64) -> u64 {
    let copied = change.items as u64 * ITEM_PAGES;
    if change.bytes == 0 {
        copied.min(tree + ITEM_PAGES)
    } else {
        (change.bytes as u64).div_ceil(PAGE) + copied + tree
    }
}

/// Whether the number of pages of the trees does not matter much: it may be that of some writes ago.
fn is_small(change: Change) -> bool {
    change.items as u64 * ITEM_PAGES <= BESIDES
}

fn tree_pages(txn: &Txn<'_>) -> Result<u64> {
    Ok(txn.size(Db::Values)?.tree_pages + txn.size(Db::Expiry)?.tree_pages)
}
