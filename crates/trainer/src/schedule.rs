//! The learning rate of each step, exactly as transformers defines its schedules. Knows nothing of optimisers.
//!
//! Step s (counted from 1) uses the factor of `s - 1` finished steps: the first step of a warmup has rate 0.

use std::f64::consts::PI;

/// How the rate changes over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The same rate at every step; no warmup.
    Constant,
    /// A linear rise over the warmup, then the same rate.
    ConstantWithWarmup,
    /// A linear rise over the warmup, then a linear fall to 0 at the end.
    Linear,
    /// A linear rise over the warmup, then half a cosine down to 0 at the end.
    Cosine,
}

impl Shape {
    /// The names that `train.lr_scheduler` takes, as transformers spells them.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("constant", Self::Constant),
        ("constant_with_warmup", Self::ConstantWithWarmup),
        ("linear", Self::Linear),
        ("cosine", Self::Cosine),
    ];

    /// The name of this shape.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The length of a warmup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// So many steps.
    Steps(u64),
    /// A share of all steps, in 0..1, rounded up.
    Share(f64),
}

impl Warmup {
    /// The number of steps, of `total`.
    pub fn steps(self, total: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Share(share) => (share * total as f64).ceil() as u64,
        }
    }
}

/// The rate of every step of a run.
///
/// ```
/// use trainer::schedule::{Schedule, Shape};
/// let schedule = Schedule { shape: Shape::Linear, peak: 1.0, warmup: 2, total: 6 };
/// let rates: Vec<f64> = (1..=6).map(|step| schedule.rate(step)).collect();
/// assert_eq!(rates, [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The curve.
    pub shape: Shape,
    /// The highest rate.
    pub peak: f64,
    /// Steps of the linear rise.
    pub warmup: u64,
    /// Steps of the whole run.
    pub total: u64,
}

impl Schedule {
    /// The rate that step `step`, counted from 1, uses. Past the end it stays at its last value.
    pub fn rate(&self, step: u64) -> f64 {
        let done = step.saturating_sub(1);
        if self.shape == Shape::Constant {
            return self.peak;
        }
        if done < self.warmup {
            return self.peak * (done as f64 / self.warmup as f64);
        }
        // From the end of the warmup (0) to the end of the run (1), and never past it: a cosine would rise again.
        let span = self.total.saturating_sub(self.warmup).max(1) as f64;
        let progress = if done < self.total { (done - self.warmup) as f64 / span } else { 1.0 };
        let factor = match self.shape {
            Shape::Constant | Shape::ConstantWithWarmup => 1.0,
            Shape::Linear => self.total.saturating_sub(done) as f64 / span,
            Shape::Cosine => (0.5 * (1.0 + (PI * progress).cos())).max(0.0),
        };
        self.peak * factor
    }

    /// Whether no step of the run would change anything.
    pub fn is_zero(&self) -> bool {
        (1..=self.total).all(|step| self.rate(step) == 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(shape: Shape, warmup: u64, total: u64) -> Vec<f64> {
        let schedule = Schedule { shape, peak: 1.0, warmup, total };
        (1..=total).map(|step| schedule.rate(step)).collect()
    }

    // B96: the definition of transformers, and the rate of the first warmup step is 0.
    #[test]
    fn schedules_equal_those_of_transformers() {
        assert_eq!(rates(Shape::Linear, 2, 6), [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]);
        assert_eq!(rates(Shape::Constant, 0, 3), [1.0; 3]);
        assert_eq!(rates(Shape::ConstantWithWarmup, 2, 4), [0.0, 0.5, 1.0, 1.0]);
        let expected = [0.0, 0.5, 1.0, 0.853_553, 0.5, 0.146_447];
        for (got, want) in rates(Shape::Cosine, 2, 6).into_iter().zip(expected) {
            // The expected values are given to six decimals.
            assert!((got - want).abs() <= 5e-7, "{got} instead of {want}");
        }
    }

    // B98: the rate never rises after the warmup, and stays at its minimum from the end on.
    #[test]
    fn rates_do_not_rise_after_the_warmup() {
        for shape in [Shape::Constant, Shape::ConstantWithWarmup, Shape::Linear, Shape::Cosine] {
            for (warmup, total) in [(0, 1), (0, 10), (3, 10), (9, 10), (10, 10), (12, 10)] {
                let schedule = Schedule { shape, peak: 2e-4, warmup, total };
                let after: Vec<f64> =
                    (warmup + 1..=3 * total + warmup + 2).map(|step| schedule.rate(step)).collect();
                assert!(after.windows(2).all(|pair| pair[1] <= pair[0]), "{schedule:?}: {after:?}");
                let end = schedule.rate(total.max(warmup) + 1);
                assert_eq!(schedule.rate(2 * total.max(warmup) + 5), end, "{schedule:?}");
                if matches!(shape, Shape::Linear | Shape::Cosine) && warmup < total {
                    assert_eq!(end, 0.0, "{schedule:?}");
                }
            }
        }
    }

    #[test]
    fn a_run_without_any_rate_is_recognised() {
        let run = |shape, warmup, total| Schedule { shape, peak: 1.0, warmup, total }.is_zero();
        assert!(run(Shape::Linear, 1, 1));
        assert!(run(Shape::Cosine, 5, 1));
        assert!(!run(Shape::Linear, 0, 1));
        assert!(!run(Shape::Linear, 1, 2));
    }

    #[test]
    fn a_share_of_the_steps_is_rounded_up() {
        assert_eq!(Warmup::Share(0.03).steps(100), 3);
        assert_eq!(Warmup::Share(0.03).steps(101), 4);
        assert_eq!(Warmup::Steps(7).steps(3), 7);
    }
}
