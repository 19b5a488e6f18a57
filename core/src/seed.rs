//! Seeds made of other numbers.

/// A seed from several numbers, the same for the same numbers in the same order.
pub fn mixed(numbers: &[u64]) -> u64 {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
