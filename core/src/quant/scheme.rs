//! Quantization schemes: the format of a number, and how many numbers share a scale.

use std::fmt;
use std::str::FromStr;

use float8::{F8E4M3, F8E5M2};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// Format of one number, before its scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// Whole numbers from -127 to 127.
    Int8,
    /// Whole numbers from -8 to 7.
    Int4,
    /// Four bits of exponent and three of mantissa, up to 448 (arXiv:2209.05433).
    Fp8E4M3,
    /// Five bits of exponent and two of mantissa, up to 57,344 (arXiv:2209.05433).
    Fp8E5M2,
}

impl Number {
    /// All of them.
    pub const ALL: [Number; 4] = [Self::Int8, Self::Int4, Self::Fp8E4M3, Self::Fp8E5M2];

    /// Name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Fp8E4M3 => "fp8-e4m3",
            Self::Fp8E5M2 => "fp8-e5m2",
        }
    }

    /// Bits of one number.
    pub fn bits(self) -> usize {
        if self == Self::Int4 { 4 } else { 8 }
    }

    /// Divisor that turns a block's largest weight into its scale.
    pub fn largest(self) -> f32 {
        match self {
            Self::Int8 => 127.0,
            Self::Int4 => 7.0,
            // E5M2 has range to spare and the same relative precision everywhere, so a smaller
            // divisor keeps its scales within half precision.
            Self::Fp8E4M3 | Self::Fp8E5M2 => 448.0,
        }
    }

    /// The code of the number nearest to a value; int4 codes are offset by 8.
    #[inline]
    pub fn encode(self, value: f32) -> u8 {
        match self {
            Self::Int8 => nearest(value.clamp(-127.0, 127.0)),
            Self::Int4 => nearest(value.clamp(-8.0, 7.0)).wrapping_add(8),
            Self::Fp8E4M3 => F8E4M3::from_f32(value.clamp(-448.0, 448.0)).to_bits(),
            Self::Fp8E5M2 => F8E5M2::from_f32(value.clamp(-57_344.0, 57_344.0)).to_bits(),
        }
    }

    /// The value of a code.
    pub fn decode(self, code: u8) -> f32 {
        match self {
            Self::Int8 => f32::from(code as i8),
            Self::Int4 => f32::from(code & 15) - 8.0,
            Self::Fp8E4M3 => F8E4M3::from_bits(code).to_f32(),
            Self::Fp8E5M2 => F8E5M2::from_bits(code).to_f32(),
        }
    }
}

/// The nearest integer within -128 and 127, halves to even, as a byte of two's complement. Of a number as large as the one
/// that is added nothing is left behind the point, so that it rounds as every CPU does, and in SIMD where `rintf` is a call.
#[inline]
fn nearest(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

/// How a matrix `[outputs, inputs]` is quantized: symmetrically, with one scale per block of
/// neighbouring inputs of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Format of a number.
    pub number: Number,
    /// Numbers that share a scale; `None` is a whole row ("channel").
    pub block: Option<usize>,
}

impl Scheme {
    /// Numbers that share a scale in rows of the given length.
    pub fn block_in(self, inputs: usize) -> usize {
        self.block.unwrap_or(inputs)
    }

    /// Whether a matrix in another scheme already has as few bits.
    pub fn gains_nothing_on(self, kept: Scheme) -> bool {
        kept.number == self.number || kept.number.bits() < self.number.bits()
    }

    /// Whether rows of the given length can be quantized like this.
    ///
    /// # Errors
    /// A block that does not divide the length; the error names blocks that do.
    pub fn check(self, inputs: usize) -> Result<()> {
        let block = self.block_in(inputs);
        if block >= 4 && block.is_multiple_of(4) && inputs.is_multiple_of(block) {
            return Ok(());
        }
        let fits: Vec<String> = [128, 64, 32, 16, 8, 4]
            .iter()
            .filter(|block| inputs.is_multiple_of(**block))
            .map(|block| format!("{}:{block}", self.number.name()))
            .collect();
        let instead = match fits.is_empty() {
            true => "leave this tensor in f32".to_string(),
            false => format!("use one of {}", fits.join(", ")),
        };
        Err(Error::invalid(format!(
            "blocks of {block} do not divide its rows of {inputs}; {instead}"
        )))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(block) => write!(f, "{}:{block}", self.number.name()),
            None => write!(f, "{}:channel", self.number.name()),
        }
    }
}

/// `int8`, `int4` (both in blocks of 32), `int8:64`, `int8:channel`, `fp8-e4m3` (by channel).
impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, block) = text.split_once(':').map_or((text, None), |(n, b)| (n, Some(b)));
        let number = Number::ALL.into_iter().find(|number| number.name() == name);
        let number = number.ok_or_else(|| {
            let known = Number::ALL.map(Number::name).join(", ");
            Error::invalid(format!(
                "unknown scheme {text:?}; there are {known}, each with :32, :64, :128 or :channel"
            ))
        })?;
        let block = match block {
            Some("channel") => None,
            None if matches!(number, Number::Fp8E4M3 | Number::Fp8E5M2) => None,
            None => Some(32),
            Some(block) => match block.parse::<usize>() {
                Ok(block) if block >= 4 && block.is_multiple_of(4) => Some(block),
                _ => {
                    return Err(Error::invalid(format!(
                        "{text:?}: a block is a multiple of 4, or \"channel\""
                    )));
                }
            },
        };
        Ok(Self { number, block })
    }
}

impl Serialize for Scheme {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scheme {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The numbers in which a model's matrices (projections and tables) are computed, whatever its file
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WeightPrecision {
    /// As in the file.
    #[default]
    Kept,
    /// In floating point, activations too.
    Full,
    /// Projections in bf16, to which the CPU rounds their inputs as well; sums and all else in f32.
    Bf16,
    /// Quantized at loading, with smaller blocks where a row's length requires them; projections
    /// then use int8 activations where the device computes with packed weights.
    Rounded(Scheme),
}

impl WeightPrecision {
    /// Scheme in which a matrix is loaded, from the length of its rows and its scheme in the file.
    pub fn of(self, kept: Option<Scheme>, inputs: usize) -> Option<Scheme> {
        let Self::Rounded(scheme) = self else {
            return kept.filter(|_| self == Self::Kept);
        };
        let smaller = [32, 16, 8, 4].map(|block| Scheme { block: Some(block), ..scheme });
        let mut fits = std::iter::once(scheme).chain(smaller);
        let enough = kept.filter(|kept| scheme.gains_nothing_on(*kept));
        enough.or_else(|| fits.find(|scheme| scheme.check(inputs).is_ok())).or(kept)
    }

    /// Name as part of a file's name.
    pub fn name(self) -> String {
        match self {
            Self::Kept => "kept".into(),
            Self::Full => "f32".into(),
            Self::Bf16 => "bf16".into(),
            Self::Rounded(Scheme { number, block: Some(32) }) => number.name().into(),
            Self::Rounded(scheme) => scheme.to_string().replace(':', "-"),
        }
    }

    /// The precision that has such a [`WeightPrecision::name`].
    ///
    /// # Errors
    /// A name of none.
    pub fn by_name(name: &str) -> Result<Self> {
        // A number by itself is in blocks of 32 here, whatever it is on the command line.
        let is_number = Number::ALL.iter().any(|number| number.name() == name);
        match name.rsplit_once('-') {
            _ if is_number => format!("{name}:32").parse(),
            Some((number, block)) => format!("{number}:{block}").parse(),
            None => name.parse(),
        }
    }
}

/// `kept`, `f32`, `bf16`, or a scheme.
impl FromStr for WeightPrecision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "kept" => Ok(Self::Kept),
            "f32" => Ok(Self::Full),
            "bf16" => Ok(Self::Bf16),
            _ => text.parse().map(Self::Rounded).map_err(|error| {
                Error::invalid(format!(
                    "{error}; f32, bf16 and kept (as in its file) are possible too"
                ))
            }),
        }
    }
}

impl fmt::Display for WeightPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept"),
            Self::Full => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Rounded(scheme) => scheme.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for text in ["int8:32", "int4:128", "int8:channel", "fp8-e4m3:channel", "fp8-e5m2:64"] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!("int4".parse::<Scheme>().unwrap().to_string(), "int4:32");
        for wrong in ["int5", "int8:", "int8:6", "int4:0", "q4_0"] {
            assert!(wrong.parse::<Scheme>().is_err(), "{wrong}");
        }
        let error = "int8:128".parse::<Scheme>().unwrap().check(96).unwrap_err().to_string();
        assert!(error.contains("int8:32"), "{error}");
    }

    #[test]
    fn codes_are_of_the_nearest_integers() {
        let halves = (-600..600).map(|twice| twice as f32 / 2.0);
        let around = halves.flat_map(|half| [half.next_down(), half, half.next_up()]);
        let extreme = [0.0, -0.0, 1e-40, -1e-40, f32::MAX, f32::MIN, f32::INFINITY, f32::NAN];
        for value in around.chain(extreme) {
            let of = |least: f32, most: f32| value.round_ties_even().clamp(least, most) as i8;
            assert_eq!(Number::Int8.encode(value), of(-127.0, 127.0) as u8, "{value}");
            assert_eq!(Number::Int4.encode(value), (of(-8.0, 7.0) + 8) as u8, "{value}");
        }
    }

    #[test]
    fn precisions_take_blocks_that_fit() {
        let scheme = |text: &str| text.parse::<Scheme>().unwrap();
        let of = |text: &str, kept: Option<&str>, inputs| {
            text.parse::<WeightPrecision>().unwrap().of(kept.map(scheme), inputs)
        };
        assert_eq!(of("kept", Some("int4:64"), 64), Some(scheme("int4:64")));
        assert_eq!(of("kept", None, 64), None);
        assert_eq!(of("f32", Some("int4:64"), 64), None);
        assert_eq!(of("int8", None, 64), Some(scheme("int8:32")));
        assert_eq!(of("int8:128", None, 48), Some(scheme("int8:16")));
        assert_eq!(of("int8", None, 7), None);
        // Already in fewer bits.
        assert_eq!(of("int8", Some("int4:64"), 64), Some(scheme("int4:64")));
        assert_eq!(of("int8", Some("int8:64"), 64), Some(scheme("int8:64")));
        assert_eq!(of("int8", Some("fp8-e4m3"), 64), Some(scheme("int8:32")));
        assert_eq!(of("int4", Some("int8:64"), 64), Some(scheme("int4:32")));
        let error = "int3".parse::<WeightPrecision>().unwrap_err().to_string();
        assert!(error.contains("int3") && error.contains("f32"), "{error}");
        assert_eq!("int8:64".parse::<WeightPrecision>().unwrap().name(), "int8-64");
        assert_eq!("int4".parse::<WeightPrecision>().unwrap().name(), "int4");
    }

    #[test]
    fn precisions_are_known_by_their_names() {
        let schemes = Number::ALL.iter().flat_map(|number| {
            ["4", "32", "128", "channel"].map(|block| format!("{}:{block}", number.name()))
        });
        for text in schemes.chain(["kept", "f32", "bf16"].map(String::from)) {
            let precision = text.parse::<WeightPrecision>().unwrap();
            let name = precision.name();
            assert_eq!(WeightPrecision::by_name(&name).unwrap(), precision, "{name}");
        }
        assert!(WeightPrecision::by_name("int8-6").is_err());
    }

    #[test]
    fn numbers_round_to_the_nearest() {
        for number in Number::ALL {
            let values: Vec<f32> = (0..=255u8)
                .map(|code| number.decode(code))
                .filter(|value| value.is_finite())
                .collect();
            for i in -3000..3000 {
                let x = i as f32 * number.largest() / 3000.0;
                let actual = number.decode(number.encode(x));
                let best = values.iter().fold(f32::INFINITY, |best, v| best.min((v - x).abs()));
                assert!((actual - x).abs() <= best * 1.0001, "{} {x} {actual}", number.name());
            }
        }
    }
}
