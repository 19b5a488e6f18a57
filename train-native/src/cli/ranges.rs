//! Numbers on the command line, each with the range that makes sense: what is beyond is refused before
//! it overflows, or asks for memory that no machine has.

use clap::builder::RangedU64ValueParser;

/// Most rows or hits.
pub(super) const ROWS: u64 = 1 << 32;
/// Most tokens of a text, and largest width of a vector, as in models.
pub(super) const SIZE: u64 = 1 << 24;
/// Most neighbours of a text.
pub(super) const NEIGHBOURS: u64 = 100_000;

/// A whole number from `least` to `most`.
pub(super) fn whole(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

/// A seed, which recipes keep as a TOML number.
pub(super) fn seed() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(0..=i64::MAX as u64)
}

/// A number from `least` to `most`.
pub(super) fn number(
    least: f64,
    most: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(number) => Err(format!("{number} is not in {least}..={most}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The same in single precision.
pub(super) fn single(
    least: f64,
    most: f64,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    let number = number(least, most);
    move |text| number(text).map(|number| number as f32)
}
