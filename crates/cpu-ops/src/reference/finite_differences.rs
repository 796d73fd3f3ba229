//! Checks gradients of the oracles by central differences in f64.

/// Panics unless `gradient` is that of `loss` at `at`. A central difference with step h = 1e-5 is wrong by
/// h²/6 times a third derivative (values here are about 1: 1e-10 times a small factor) and by the rounding of
/// the loss, 2^-53 · |loss| / h = 1e-11: 1e-7 leaves room for large derivatives and is far below any mistake.
pub(crate) fn assert_gradient(loss: impl Fn(&[f64]) -> f64, at: &[f64], gradient: &[f64]) {
    const STEP: f64 = 1e-5;
    assert_eq!(at.len(), gradient.len());
    assert!(!at.is_empty());
    for i in 0..at.len() {
        let shifted = |by: f64| {
            let mut x = at.to_vec();
            x[i] += by;
            loss(&x)
        };
        let difference = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
        let tolerance = 1e-7 * (1.0 + difference.abs());
        assert!(
            (difference - gradient[i]).abs() <= tolerance,
            "element {i}: {} is not {difference}",
            gradient[i]
        );
    }
}

#[test]
#[should_panic(expected = "element 1")]
fn a_wrong_gradient_is_found() {
    assert_gradient(|x| x[0] * x[0] + x[1], &[3.0, 1.0], &[6.0, 1.001]);
}
