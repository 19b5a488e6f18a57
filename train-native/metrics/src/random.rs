//! The random numbers of NumPy and Python, so that samples are the ones that mteb draws.
//!
//! Both libraries use the Mersenne Twister; what differs is how it is seeded and how its numbers
//! become indices.

use std::collections::HashSet;

use rand_mt::Mt;

/// `numpy.random.RandomState(seed)`.
#[derive(Debug, Clone)]
pub struct NumpyRandom(Mt);

/// `random.Random(seed)`.
#[derive(Debug, Clone)]
pub struct PythonRandom(Mt);

/// A number in `[0, 1)` with 53 random bits.
fn unit(twister: &mut Mt) -> f64 {
    let (a, b) = (twister.next_u32() >> 5, twister.next_u32() >> 6);
    (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
}

impl NumpyRandom {
    /// The generator of a seed.
    pub fn new(seed: u32) -> Self {
        Self(Mt::new(seed))
    }

    /// A number of `0..=max` by masked rejection.
    fn interval(&mut self, max: u32) -> u32 {
        if max == 0 {
            return 0;
        }
        let mask = u32::MAX >> max.leading_zeros();
        loop {
            let value = self.0.next_u32() & mask;
            if value <= max {
                return value;
            }
        }
    }

    /// `random_sample()`: a number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        unit(&mut self.0)
    }

    /// `randint(0, below, count)`.
    pub fn integers(&mut self, below: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.interval(below.saturating_sub(1) as u32) as usize).collect()
    }

    /// `shuffle(values)`.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.interval(i as u32) as usize);
        }
    }

    /// `choice(of, count, replace=False)`.
    pub fn distinct(&mut self, of: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        self.shuffle(&mut all);
        all.truncate(count);
        all
    }

    /// `choice(len, count, p=weights)`; `cumulative` holds the weights' running sums, the last is 1.
    pub fn weighted(&mut self, cumulative: &[f64], count: usize) -> Vec<usize> {
        (0..count)
            .map(|_| {
                let value = self.unit();
                cumulative.partition_point(|edge| *edge <= value).min(cumulative.len() - 1)
            })
            .collect()
    }
}

impl PythonRandom {
    /// The generator of a seed.
    pub fn new(seed: u32) -> Self {
        Self(Mt::new_with_key([seed]))
    }

    fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let value = (self.0.next_u32() >> (32 - bits)) as usize;
            if value < n {
                return value;
            }
        }
    }

    /// `sample(range(of), count)`; `count` is at most `of`.
    pub fn sample(&mut self, of: usize, count: usize) -> Vec<usize> {
        let mut set_size = 21;
        if count > 5 {
            set_size += 4usize.pow(((count * 3) as f64).log(4.0).ceil() as u32);
        }
        if of <= set_size {
            let mut pool: Vec<usize> = (0..of).collect();
            (0..count)
                .map(|i| {
                    let drawn = self.below(of - i);
                    let value = pool[drawn];
                    pool[drawn] = pool[of - i - 1];
                    value
                })
                .collect()
        } else {
            let mut seen = HashSet::new();
            (0..count)
                .map(|_| {
                    loop {
                        let drawn = self.below(of);
                        if seen.insert(drawn) {
                            return drawn;
                        }
                    }
                })
                .collect()
        }
    }

    /// `choices(range(of), k=count)`: with repetitions.
    pub fn choices(&mut self, of: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| (unit(&mut self.0) * of as f64) as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpys_numbers() {
        // numpy.random.RandomState(42)
        let mut random = NumpyRandom::new(42);
        assert_eq!(random.unit(), 0.374_540_118_847_362_5);
        let mut random = NumpyRandom::new(42);
        assert_eq!(random.integers(10, 8), [6, 3, 7, 4, 6, 9, 2, 6]);
        let mut values: Vec<usize> = (0..10).collect();
        NumpyRandom::new(42).shuffle(&mut values);
        assert_eq!(values, [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]);
        assert_eq!(NumpyRandom::new(42).distinct(10, 3), [8, 1, 5]);
        assert_eq!(NumpyRandom::new(42).integers(16, 5), [6, 3, 12, 14, 10]);
        assert_eq!(NumpyRandom::new(42).integers(17, 5), [6, 14, 10, 7, 6]);
        let tenths: Vec<f64> = (1..=10).map(|n| f64::from(n) / 10.0).collect();
        assert_eq!(NumpyRandom::new(42).weighted(&tenths, 6), [3, 9, 7, 5, 1, 1]);
    }

    #[test]
    fn pythons_numbers() {
        // random.Random(42)
        assert_eq!(PythonRandom::new(42).sample(100, 5), [81, 14, 3, 94, 35]);
        assert_eq!(PythonRandom::new(42).sample(1000, 5), [654, 114, 25, 759, 281]);
        assert_eq!(PythonRandom::new(42).sample(20, 8), [3, 0, 8, 7, 16, 2, 11, 1]);
        assert_eq!(PythonRandom::new(42).choices(10, 6), [6, 0, 2, 2, 7, 6]);
    }
}
