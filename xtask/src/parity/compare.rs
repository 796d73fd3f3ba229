//! Comparing what a kernel left with what it should have: bit for bit, or by a bound for each element. A NaN equals a
//! NaN, whatever its payload, and nothing else.

use anyhow::{Result, ensure};
use kernels_ptx::Element;

use super::case::{Data, Want};

/// How well results agree.
#[derive(Debug, Clone, Default)]
pub struct Agreement {
    /// Elements compared.
    pub elements: usize,
    /// Largest difference in units in the last place of the wanted value.
    pub ulps: f64,
    /// Largest share of its bound that a difference has.
    pub of_bound: f64,
    /// Whether any element was compared by a bound.
    pub bounded: bool,
    /// The first element that differs by more than it may.
    pub first_failure: Option<String>,
}

impl Agreement {
    /// Takes in the agreement of further results.
    pub fn join(&mut self, other: Self) {
        self.elements += other.elements;
        self.ulps = self.ulps.max(other.ulps);
        self.of_bound = self.of_bound.max(other.of_bound);
        self.bounded |= other.bounded;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// Compares a buffer with what it should hold.
///
/// # Errors
/// Lengths or types differ: a fault of the case.
pub fn compare(got: &Data, want: &Want) -> Result<Agreement> {
    let mut agreement = Agreement::default();
    match want {
        Want::Exact(want) => {
            ensure!(
                got.element() == want.element(),
                "{:?} is compared with {:?}",
                got.element(),
                want.element()
            );
            ensure!(got.len() == want.len(), "{} elements are compared with {}", got.len(), want.len());
            for i in 0..got.len() {
                agreement.elements += 1;
                let (x, y) = (got.value(i), want.value(i));
                if got.bits(i) != want.bits(i) && !(x.is_nan() && y.is_nan()) {
                    agreement.ulps = agreement.ulps.max(ulps(got.element(), x, y));
                    agreement.first_failure.get_or_insert_with(|| {
                        format!("element {i} is {x:e} ({:#x}), not {y:e} ({:#x})", got.bits(i), want.bits(i))
                    });
                }
            }
        }
        Want::Within { values, bounds } => {
            ensure!(got.len() == values.len(), "{} elements are compared with {}", got.len(), values.len());
            agreement.bounded = true;
            for (i, (&want, &bound)) in values.iter().zip(bounds).enumerate() {
                agreement.elements += 1;
                let x = got.value(i);
                if x == want || (x.is_nan() && want.is_nan()) {
                    continue;
                }
                let difference = (x - want).abs();
                if difference <= bound {
                    agreement.of_bound = agreement.of_bound.max(difference / bound);
                    agreement.ulps = agreement.ulps.max(ulps(got.element(), x, want));
                } else {
                    agreement.of_bound = f64::INFINITY;
                    agreement.first_failure.get_or_insert_with(|| {
                        format!("element {i} is {x:e}, not {want:e}; {difference:e} is more than {bound:e}")
                    });
                }
            }
        }
    }
    Ok(agreement)
}

/// The difference in units in the last place that `want` has in the type; integers count as they are.
fn ulps(element: Element, got: f64, want: f64) -> f64 {
    let (digits, smallest) = match element {
        Element::F16 => (10, -24),
        Element::Bf16 => (7, -133),
        Element::F32 => (23, -149),
        Element::F64 => (52, -1074),
        Element::U8 | Element::U32 | Element::I32 | Element::U64 => return (got - want).abs(),
    };
    if want.is_nan() || got.is_nan() || want.is_infinite() || got.is_infinite() {
        return f64::INFINITY;
    }
    let exponent =
        if want == 0.0 { smallest } else { (want.abs().log2().floor() as i32 - digits).max(smallest) };
    (got - want).abs() / 2f64.powi(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_agrees_with_nan_only() {
        let data = |x: f32| Data::F32(vec![x]);
        let exact = |x, y| compare(&data(x), &Want::Exact(data(y))).unwrap().first_failure.is_none();
        assert!(exact(f32::NAN, f32::from_bits(0xFFFF_FFFF)));
        assert!(!exact(f32::NAN, 0.0) && !exact(0.0, f32::NAN) && !exact(0.0, -0.0));
        let within = |x, y| {
            let want = Want::Within { values: vec![y], bounds: vec![f64::INFINITY] };
            compare(&data(x), &want).unwrap().first_failure.is_none()
        };
        assert!(within(f32::NAN, f64::NAN) && within(1.0, 2.0));
        assert!(!within(f32::NAN, 1.0) && !within(1.0, f64::NAN));
    }

    #[test]
    fn a_difference_is_counted_in_units_of_the_last_place() {
        let got = Data::F32(vec![1.0 + 3.0 * f32::EPSILON]);
        let agreement = compare(&got, &Want::Within { values: vec![1.0], bounds: vec![1e-6] }).unwrap();
        assert_eq!(agreement.ulps, 3.0);
        assert!(agreement.of_bound > 0.35 && agreement.of_bound < 0.36);
        assert!(compare(&got, &Want::Within { values: vec![], bounds: vec![] }).is_err());
    }
}
