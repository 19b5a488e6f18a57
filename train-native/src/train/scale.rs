//! Loss scaling: f16 gradients are computed of a loss multiplied by a factor, which falls when they
//! overflow and rises after a long time without (Micikevicius et al., arXiv:1710.03740).

/// Factor and good steps at the start.
pub(super) const START: (f64, usize) = (65_536.0, 0);
/// Good steps after which the factor doubles.
const PATIENCE: usize = 2000;

/// The factor of the loss.
#[derive(Debug, Clone, Copy)]
pub(super) struct LossScale {
    active: bool,
    value: f64,
    good: usize,
}

impl LossScale {
    pub(super) fn new(active: bool, (value, good): (f64, usize)) -> Self {
        Self { active, value, good }
    }

    /// The factor; 1 where there is no scaling.
    pub(super) fn value(&self) -> f64 {
        if self.active { self.value } else { 1.0 }
    }

    /// For the checkpoint.
    pub(super) fn state(&self) -> (f64, usize) {
        (self.value, self.good)
    }

    /// A step whose gradients were numbers.
    pub(super) fn good(&mut self) {
        self.good += 1;
        if self.good == PATIENCE {
            (self.value, self.good) = (self.value * 2.0, 0);
        }
    }

    /// A step whose gradients were not; false where scaling cannot be the reason.
    pub(super) fn bad(&mut self) -> bool {
        (self.value, self.good) = (self.value / 2.0, 0);
        self.active && self.value >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_on_overflow_and_rises_with_patience() {
        let mut scale = LossScale::new(true, START);
        assert!(scale.bad() && scale.value() == 32_768.0);
        (0..PATIENCE).for_each(|_| scale.good());
        assert_eq!(scale.state(), (65_536.0, 0));
        while scale.value() > 1.0 {
            assert!(scale.bad());
        }
        assert!(!scale.bad(), "a factor below one cannot help");
        assert!(!LossScale::new(false, START).bad());
        assert_eq!(LossScale::new(false, START).value(), 1.0);
    }
}
