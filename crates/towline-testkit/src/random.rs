//! A seeded generator (`SplitMix64`), so that a failing cut can be repeated from the seed in the message.

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            0
        } else {
            (self.next_u64() % bound as u64) as usize
        }
    }

    /// Sizes of consecutive pieces of `total` bytes, most of them small, some large.
    pub fn pieces(&mut self, total: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut left = total;
        while left > 0 {
            let scale = 1 << self.below(12);
            let size = (1 + self.below(scale)).min(left);
            sizes.push(size);
            left -= size;
        }
        sizes
    }
}
