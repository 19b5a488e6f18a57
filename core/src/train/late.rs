//! Numbers that a device computes and the host looks at later, so that a step does not wait for the device.

use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion as _, FloatDType, Tensor, try_read_sync};

use crate::kernels::{Kernels, Reading};
use crate::{Error, Result};

/// A loss or a norm while its step is computed. What the host knows is added up in f64, and what is on a device in f32.
#[derive(Debug, Clone)]
pub enum Late<B: Backend> {
    /// The host knows it.
    Known(f64),
    /// `[1]`, f32, on a device, which may still compute it.
    OnDevice(Tensor<B, 1>),
}

impl<B: Kernels> Late<B> {
    /// A number `[1]`: left on its device where `late`, else read at once.
    pub fn of(number: Tensor<B, 1>, late: bool) -> Self {
        match late {
            true => Self::OnDevice(number.cast(FloatDType::F32)),
            false => Self::Known(number.into_scalar().elem::<f64>()),
        }
    }

    /// The sum of two.
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Known(one), Self::Known(other)) => Self::Known(one + other),
            (Self::OnDevice(one), Self::OnDevice(other)) => Self::OnDevice(one + other),
            (Self::Known(known), Self::OnDevice(number))
            | (Self::OnDevice(number), Self::Known(known)) => Self::OnDevice(match known == 0.0 {
                true => number,
                false => number.add_scalar(known),
            }),
        }
    }

    /// Divided by a number.
    pub fn over(self, divisor: f64) -> Self {
        match self {
            Self::Known(number) => Self::Known(number / divisor),
            Self::OnDevice(number) if divisor == 1.0 => Self::OnDevice(number),
            Self::OnDevice(number) => Self::OnDevice(number.div_scalar(divisor)),
        }
    }

    /// False where the host knows that it is none.
    pub fn may_be_finite(&self) -> bool {
        match self {
            Self::Known(number) => number.is_finite(),
            Self::OnDevice(_) => true,
        }
    }

    /// Begins to bring it to the host. Whatever the device is given from here on is not waited for.
    pub fn coming(self) -> Coming {
        match self {
            Self::Known(number) => Coming::Known(number),
            Self::OnDevice(number) => Coming::OnItsWay(B::begin_reading(number)),
        }
    }

    /// Its value, which is waited for.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn read(self) -> Result<f64> {
        self.coming().read()
    }
}

/// A number on its way to the host.
pub enum Coming {
    /// It is there.
    Known(f64),
    /// A device brings it once it is computed.
    OnItsWay(Reading),
}

impl Coming {
    /// Its value, which is waited for.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn read(self) -> Result<f64> {
        let reading = match self {
            Self::Known(number) => return Ok(number),
            Self::OnItsWay(reading) => reading,
        };
        let number = try_read_sync(reading);
        match number.unwrap_or_else(|| Err("a page cannot wait for it".into())) {
            Ok(number) => Ok(f64::from(number)),
            Err(error) => Err(Error::invalid(format!(
                "a loss or a norm could not be read back from the device: {error}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn sums_and_means_are_the_same_on_a_device() {
        let number = |value: f32, late| {
            Late::<Flex>::of(Tensor::from_data([value], &Default::default()), late)
        };
        for late in [false, true] {
            let sum = Late::Known(0.0).plus(number(1.5, late)).plus(number(2.0, late));
            assert_eq!(matches!(sum, Late::OnDevice(_)), late);
            assert_eq!(sum.plus(Late::Known(0.25)).over(2.0).over(1.0).read().unwrap(), 1.875);
            let nan = number(f32::NAN, late);
            // On a device nobody knows it yet.
            assert_eq!(nan.may_be_finite(), late);
            assert!(nan.coming().read().unwrap().is_nan());
        }
    }
}
