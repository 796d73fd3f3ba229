//! What the CPU can do, proven once: holding an [`Avx2`] or [`Avx512`] value means that the instructions are
//! there, and is the reason why calling a function compiled for them is sound.
//!
//! [`multiversion`] compiles one safe body three times. The body uses neither fused multiply-add nor
//! reassociation, so that every version gives the same bits and differs in speed only.

/// Proof that this CPU has AVX2, FMA, BMI and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

/// Proof that this CPU has AVX-512 F, BW, DQ and VL besides all that [`Avx2`] proves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

/// The best instructions that this crate has code for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Simd {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Avx512(Avx512),
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Avx2(Avx2),
    Portable,
}

impl Avx2 {
    /// The proof, where the CPU has the instructions. The standard library asks the CPU once and remembers.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

impl Avx512 {
    /// The proof, where the CPU has the instructions.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return Some(Self(()));
        }
        None
    }
}

impl From<Avx512> for Avx2 {
    fn from(_: Avx512) -> Self {
        Self(())
    }
}

impl Simd {
    /// The best that this CPU has.
    #[inline]
    pub(crate) fn detect() -> Self {
        if let Some(proof) = Avx512::detect() {
            Simd::Avx512(proof)
        } else if let Some(proof) = Avx2::detect() {
            Simd::Avx2(proof)
        } else {
            Simd::Portable
        }
    }

    /// Everything that this CPU can run, for tests that compare the paths with each other.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let avx2 = Avx2::detect().map(Simd::Avx2);
        let avx512 = Avx512::detect().map(Simd::Avx512);
        [Some(Simd::Portable), avx2, avx512].into_iter().flatten().collect()
    }
}

/// Lanes of partial sums in `multiversion` bodies: the widest vector.
pub(crate) const LANES: usize = 16;

/// Reduces partial results by halves, always in the same order.
#[inline(always)]
pub(crate) fn fold_lanes(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

/// Defines a function that takes a [`Simd`] before its other arguments and runs the body as compiled for it.
/// The body must be an `#[inline(always)]` function of safe code.
macro_rules! multiversion {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;) => {
        $(#[$meta])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visibility fn $name(simd: $crate::simd::Simd, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                match simd {
                    // SAFETY: an `Avx512` exists only where `Avx512::detect` found every feature that the
                    // function is compiled for.
                    $crate::simd::Simd::Avx512(_) => return unsafe { avx512($($arg),*) },
                    // SAFETY: an `Avx2` exists only where `Avx2::detect` found every such feature.
                    $crate::simd::Simd::Avx2(_) => return unsafe { avx2($($arg),*) },
                    $crate::simd::Simd::Portable => {}
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = simd;
            $body($($arg),*)
        }
    };
}
pub(crate) use multiversion;
