//! Numbers that follow from a seed.

/// splitmix64: small, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5bf0_3635_d1e1_7a91)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to below `bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// From `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// True so many times in a million.
    pub(crate) fn ppm(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len() as u64);
        of[usize::try_from(at).expect("an index")]
    }

    /// Mostly small, rarely large: half of them below `middle`, a quarter above twice that, and so on.
    pub(crate) fn skewed(&mut self, middle: u64) -> u64 {
        let mut sum = self.below(middle);
        while self.one_in(2) {
            sum += middle;
        }
        sum
    }
}
