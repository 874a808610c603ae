//! The structure of `data.mdb`, checked before LMDB maps it. LMDB trusts its pages: a damaged one can end the process.
//!
//! The first process that opens a store checks every page of the trees and the list of free pages: where a page is, its kind,
//! its nodes, the order of its keys, that no page is used twice, and the counts. It reads no values. What this does not find
//! is damage within a value or a message, and a damaged newest head, in place of which LMDB uses the one before.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Names of the databases beside the unnamed one.
const NAMED: [&[u8]; 2] = [b"expiry", b"log"];
const MAGIC: u32 = 0xBEEF_C0DE;
const HEADER: usize = 16;
const NODE_HEADER: usize = 8;
const HEAD_BYTES: usize = 48;
const MAX_DEPTH: usize = 32;
const MAX_KEY: usize = 511;
/// Flags of pages, of which LMDB may leave `DIRTY`.
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const META: u16 = 8;
const DIRTY: u16 = 16;
/// Flags of nodes.
const ON_PAGES: u16 = 1;
const DATABASE: u16 = 2;
/// Root of an empty tree.
const NO_PAGE: u64 = u64::MAX;

/// A fault of a file.
#[derive(Debug)]
pub enum Fault {
    Damaged(&'static str),
    Io(io::Error),
}

type Result<T> = std::result::Result<T, Fault>;

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => SHORT,
            _ => Self::Io(error),
        }
    }
}

const SHORT: Fault = Fault::Damaged("it is shorter than its contents");
const TREE: Fault = Fault::Damaged("the tree of its pages is not whole");
const FREE_LIST: Fault = Fault::Damaged("its list of free pages is not whole");

/// Head of a database: the part of LMDB's `MDB_db` that says where its tree is.
#[derive(Clone, Copy)]
struct Head {
    flags: u16,
    depth: u16,
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    root: u64,
}

impl Head {
    fn read(bytes: &[u8]) -> Self {
        Self {
            flags: u16_at(bytes, 4),
            depth: u16_at(bytes, 6),
            branch_pages: u64_at(bytes, 8),
            leaf_pages: u64_at(bytes, 16),
            overflow_pages: u64_at(bytes, 24),
            entries: u64_at(bytes, 32),
            root: u64_at(bytes, 40),
        }
    }
}

/// The newest of the two heads of a file.
struct Meta {
    page_bytes: usize,
    last_page: u64,
    transaction: u64,
    free: Head,
    main: Head,
}

/// Check the two pages from which LMDB starts, and that the file is as long as they say.
pub fn heads(file: &File) -> Result<()> {
    newest(file).map(drop)
}

/// Check all pages. No process may have the file open.
pub fn pages(file: &File) -> Result<()> {
    let meta = newest(file)?;
    let mut check = Check {
        file,
        page_bytes: meta.page_bytes,
        last_page: meta.last_page,
        used: vec![0; (meta.last_page / 64 + 1) as usize],
        databases: Vec::new(),
    };
    if meta.main.flags != 0 {
        return Err(TREE);
    }
    check.tree(Tree::Values, meta.main)?;
    for (name, head) in std::mem::take(&mut check.databases) {
        if !NAMED.contains(&name.as_slice()) || head.flags != 0 {
            return Err(TREE);
        }
        check.tree(Tree::Other, head)?;
    }
    check.tree(Tree::Free(meta.transaction), meta.free)
}

fn newest(file: &File) -> Result<Meta> {
    const FOREIGN: Fault = Fault::Damaged("it does not begin as a file of LMDB does");
    const FIRST: Fault = Fault::Damaged("it ends within its first pages");
    let len = file.metadata()?.len();
    let mut page_bytes = 0;
    let mut found: Option<Meta> = None;
    for number in 0..2 {
        let mut page = [0; 152];
        match file.read_exact_at(&mut page, number * page_bytes as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(FIRST),
            read => read?,
        }
        let (magic, version) = (u64_at(&page, 16) as u32, (u64_at(&page, 16) >> 32) as u32);
        if magic != MAGIC || version != 1 || u16_at(&page, 10) & !DIRTY != META {
            return Err(FOREIGN);
        }
        let bytes = u64_at(&page, 40) as u32 as usize;
        if !bytes.is_power_of_two() || !(512..=1 << 16).contains(&bytes) {
            return Err(FOREIGN);
        }
        let meta = Meta {
            page_bytes: bytes,
            last_page: u64_at(&page, 136),
            transaction: u64_at(&page, 144),
            free: Head::read(&page[40..]),
            main: Head::read(&page[88..]),
        };
        page_bytes = bytes;
        if found
            .as_ref()
            .is_none_or(|one| meta.transaction > one.transaction)
        {
            found = Some(meta);
        }
    }
    let meta = found.ok_or(FOREIGN)?;
    if meta.page_bytes != page_bytes || meta.last_page < 1 {
        return Err(FOREIGN);
    }
    if len / (page_bytes as u64) <= meta.last_page {
        return Err(if len < 2 * page_bytes as u64 {
            FIRST
        } else {
            SHORT
        });
    }
    Ok(meta)
}

/// Contents of the leaves of a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// Values, and the heads of the databases with names.
    Values,
    Other,
    /// Lists of free pages by transaction, of which this one is the last.
    Free(u64),
}

/// Keys of a page are at least the first and less than the second.
type Bounds<'k> = (Option<&'k [u8]>, Option<&'k [u8]>);

struct Check<'f> {
    file: &'f File,
    page_bytes: usize,
    last_page: u64,
    /// A bit for each page: it has been found, and must not be found again.
    used: Vec<u64>,
    databases: Vec<(Vec<u8>, Head)>,
}

#[derive(Default)]
struct Counts {
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
}

impl Check<'_> {
    fn tree(&mut self, tree: Tree, head: Head) -> Result<()> {
        let mut counts = Counts::default();
        if head.root != NO_PAGE {
            let depth = usize::from(head.depth);
            if depth == 0 || depth > MAX_DEPTH {
                return Err(TREE);
            }
            self.page(tree, (head.root, depth), (None, None), &mut counts)?;
        }
        let is_right = counts.entries == head.entries
            && counts.branch_pages == head.branch_pages
            && counts.leaf_pages == head.leaf_pages
            && counts.overflow_pages == head.overflow_pages;
        if is_right { Ok(()) } else { Err(TREE) }
    }

    /// Check a page and those below it. `height`: 1 is a leaf.
    fn page(
        &mut self,
        tree: Tree,
        (number, height): (u64, usize),
        bounds: Bounds<'_>,
        counts: &mut Counts,
    ) -> Result<()> {
        self.claim(number, 1, TREE)?;
        let mut page = vec![0; self.page_bytes];
        self.file
            .read_exact_at(&mut page, number * self.page_bytes as u64)?;
        let kind = if height == 1 { LEAF } else { BRANCH };
        let (lower, upper) = (
            usize::from(u16_at(&page, 12)),
            usize::from(u16_at(&page, 14)),
        );
        let is_page = u64_at(&page, 0) == number
            && u16_at(&page, 10) & !DIRTY == kind
            && lower % 2 == 0
            && (HEADER + 2..=upper).contains(&lower)
            && upper <= self.page_bytes;
        if !is_page {
            return Err(TREE);
        }
        let nodes = nodes(&page, (lower, upper), kind).ok_or(TREE)?;
        check_order(tree, &nodes, kind, bounds)?;
        if kind == LEAF {
            counts.leaf_pages += 1;
            counts.entries += nodes.len() as u64;
            return nodes
                .iter()
                .try_for_each(|node| self.leaf(tree, node, counts));
        }
        counts.branch_pages += 1;
        if nodes.len() < 2 && !matches!(tree, Tree::Free(_)) {
            return Err(TREE);
        }
        for (at, node) in nodes.iter().enumerate() {
            let low = if at == 0 { bounds.0 } else { Some(node.key) };
            let high = nodes.get(at + 1).map_or(bounds.1, |next| Some(next.key));
            self.page(tree, (node.child, height - 1), (low, high), counts)?;
        }
        Ok(())
    }

    fn leaf(&mut self, tree: Tree, node: &Node<'_>, counts: &mut Counts) -> Result<()> {
        let mut far = Vec::new();
        match node.flags {
            0 => {}
            ON_PAGES => {
                let pages = self.overflow(node)?;
                counts.overflow_pages += pages;
                if matches!(tree, Tree::Free(_)) {
                    far = vec![0; node.len];
                    let at = u64_at(node.data, 0) * self.page_bytes as u64 + HEADER as u64;
                    self.file.read_exact_at(&mut far, at)?;
                }
            }
            DATABASE if tree == Tree::Values && node.len == HEAD_BYTES => {
                self.databases
                    .push((node.key.to_vec(), Head::read(node.data)));
            }
            _ => return Err(TREE),
        }
        match tree {
            Tree::Free(newest) => {
                let list = if far.is_empty() { node.data } else { &far };
                self.free_list(list, (u64_at(node.key, 0), newest))
            }
            Tree::Values | Tree::Other => Ok(()),
        }
    }

    /// Check the pages of a value that is not in its leaf; returns their number.
    fn overflow(&mut self, node: &Node<'_>) -> Result<u64> {
        let number = u64_at(node.data, 0);
        if number > self.last_page {
            return Err(TREE);
        }
        let mut header = [0; HEADER];
        self.file
            .read_exact_at(&mut header, number * self.page_bytes as u64)?;
        let pages = u64::from(u16_at(&header, 12)) | u64::from(u16_at(&header, 14)) << 16;
        let needed = (HEADER + node.len).div_ceil(self.page_bytes) as u64;
        if u64_at(&header, 0) != number
            || u16_at(&header, 10) & !DIRTY != OVERFLOW
            || pages < needed
        {
            return Err(TREE);
        }
        self.claim(number, pages, TREE)?;
        Ok(pages)
    }

    /// A record of the list of free pages: their count, and their numbers in descending order.
    fn free_list(&mut self, list: &[u8], (transaction, newest): (u64, u64)) -> Result<()> {
        if list.len() < 8 || transaction == 0 || transaction > newest {
            return Err(FREE_LIST);
        }
        let count = usize::try_from(u64_at(list, 0)).map_err(|_| FREE_LIST)?;
        if count > list.len() / 8 - 1 {
            return Err(FREE_LIST);
        }
        let mut before = NO_PAGE;
        for at in 1..=count {
            let number = u64_at(list, at * 8);
            if number >= before {
                return Err(FREE_LIST);
            }
            self.claim(number, 1, FREE_LIST)?;
            before = number;
        }
        Ok(())
    }

    /// Note that pages are in use. They must exist, and not be in use already.
    fn claim(&mut self, first: u64, count: u64, fault: Fault) -> Result<()> {
        if first < 2 || first > self.last_page || count > self.last_page - first + 1 {
            return Err(fault);
        }
        for number in first..first + count {
            let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
            if self.used[word] & bit != 0 {
                return Err(fault);
            }
            self.used[word] |= bit;
        }
        Ok(())
    }
}

/// An item of a page.
struct Node<'p> {
    flags: u16,
    key: &'p [u8],
    /// In a branch: the page below.
    child: u64,
    /// In a leaf: the value's length, and its bytes or the number of its page.
    len: usize,
    data: &'p [u8],
}

fn nodes(page: &[u8], (lower, upper): (usize, usize), kind: u16) -> Option<Vec<Node<'_>>> {
    let mut nodes = Vec::with_capacity((lower - HEADER) / 2);
    let mut bytes = 0;
    for at in (HEADER..lower).step_by(2) {
        let start = usize::from(u16_at(page, at));
        if start < upper || start % 2 != 0 {
            return None;
        }
        let node = page.get(start..)?;
        let head = node.get(..NODE_HEADER)?;
        let (low, high) = (u16_at(head, 0), u16_at(head, 2));
        let (flags, key_len) = (u16_at(head, 4), usize::from(u16_at(head, 6)));
        let len = usize::from(low) | usize::from(high) << 16;
        let rest = &node[NODE_HEADER..];
        let key = rest.get(..key_len).filter(|key| key.len() <= MAX_KEY)?;
        let stored = match kind {
            BRANCH => 0,
            _ if flags == ON_PAGES => 8,
            _ => len,
        };
        let data = rest[key_len..].get(..stored)?;
        bytes += (NODE_HEADER + key_len + stored).next_multiple_of(2);
        nodes.push(Node {
            flags,
            key,
            child: len as u64 | u64::from(flags) << 32,
            len,
            data,
        });
    }
    (bytes <= page.len() - upper).then_some(nodes)
}

/// Keys ascend and are within the bounds. The first key of a branch has no meaning.
fn check_order(tree: Tree, nodes: &[Node<'_>], kind: u16, (low, high): Bounds<'_>) -> Result<()> {
    let skipped = usize::from(kind == BRANCH);
    let keys = || nodes.iter().skip(skipped).map(|node| node.key);
    let is_key = |key: &[u8]| match tree {
        Tree::Free(_) => key.len() == 8,
        Tree::Values | Tree::Other => !key.is_empty(),
    };
    let is_less = |one: &[u8], other: &[u8]| match tree {
        Tree::Free(_) => u64_at(one, 0) < u64_at(other, 0),
        Tree::Values | Tree::Other => one < other,
    };
    let is_right = keys().all(is_key)
        && keys()
            .zip(keys().skip(1))
            .all(|(one, next)| is_less(one, next))
        && keys()
            .next()
            .is_none_or(|first| low.is_none_or(|low| !is_less(first, low)))
        && keys()
            .next_back()
            .is_none_or(|last| high.is_none_or(|high| is_less(last, high)));
    if is_right { Ok(()) } else { Err(TREE) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].try_into();
    u64::from_ne_bytes(word.expect("eight bytes"))
}
