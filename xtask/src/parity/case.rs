//! What a parity case is: buffers, launches over them, and what must stand in some of them afterwards.

use half::{bf16, f16};
use kernels_ptx::{Element, Kernel, Kind};

/// The content of a device buffer.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// Runs the same expression for whichever vector is inside.
macro_rules! for_each_type {
    ($data:expr, $values:ident => $body:expr) => {
        match $data {
            Data::U8($values) => $body,
            Data::U32($values) => $body,
            Data::I32($values) => $body,
            Data::U64($values) => $body,
            Data::F16($values) => $body,
            Data::Bf16($values) => $body,
            Data::F32($values) => $body,
            Data::F64($values) => $body,
        }
    };
}
pub(super) use for_each_type;

impl Data {
    /// Elements of a type, filled with what shows if it is read or left: NaN, and large integers.
    pub fn poison(element: Element, len: usize) -> Self {
        match element {
            Element::U8 => Self::U8(vec![0xA5; len]),
            Element::U32 => Self::U32(vec![0xA5A5_A5A5; len]),
            Element::I32 => Self::I32(vec![-0x5A5A_5A5B; len]),
            Element::U64 => Self::U64(vec![0xA5A5_A5A5_A5A5_A5A5; len]),
            Element::F16 => Self::F16(vec![f16::from_bits(0x7EA5); len]),
            Element::Bf16 => Self::Bf16(vec![bf16::from_bits(0x7FA5); len]),
            Element::F32 => Self::F32(vec![f32::from_bits(0x7FA5_A5A5); len]),
            Element::F64 => Self::F64(vec![f64::from_bits(0x7FF5_A5A5_A5A5_A5A5); len]),
        }
    }

    /// Type of the elements.
    pub fn element(&self) -> Element {
        match self {
            Self::U8(_) => Element::U8,
            Self::U32(_) => Element::U32,
            Self::I32(_) => Element::I32,
            Self::U64(_) => Element::U64,
            Self::F16(_) => Element::F16,
            Self::Bf16(_) => Element::Bf16,
            Self::F32(_) => Element::F32,
            Self::F64(_) => Element::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        for_each_type!(self, values => values.len())
    }

    /// Element `index` as f64; integers up to 2^53 exactly.
    pub fn value(&self, index: usize) -> f64 {
        match self {
            Self::U8(v) => v[index].into(),
            Self::U32(v) => v[index].into(),
            Self::I32(v) => v[index].into(),
            Self::U64(v) => v[index] as f64,
            Self::F16(v) => v[index].into(),
            Self::Bf16(v) => v[index].into(),
            Self::F32(v) => v[index].into(),
            Self::F64(v) => v[index],
        }
    }

    /// The bits of element `index`.
    pub fn bits(&self, index: usize) -> u64 {
        match self {
            Self::U8(v) => v[index].into(),
            Self::U32(v) => v[index].into(),
            Self::I32(v) => u64::from(v[index] as u32),
            Self::U64(v) => v[index],
            Self::F16(v) => v[index].to_bits().into(),
            Self::Bf16(v) => v[index].to_bits().into(),
            Self::F32(v) => v[index].to_bits().into(),
            Self::F64(v) => v[index].to_bits(),
        }
    }
}

/// What is passed for a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// The address of element `offset` of buffer `index`.
    Buffer {
        index: usize,
        offset: usize,
    },
    /// Address 0, for an optional parameter.
    Nothing,
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Argument {
    /// The start of a buffer.
    pub fn buffer(index: usize) -> Self {
        Self::Buffer { index, offset: 0 }
    }

    /// Whether it may be passed for a parameter of this kind, `buffers` being those of the case.
    pub fn fits(&self, kind: Kind, buffers: &[Data]) -> bool {
        match (*self, kind) {
            (Self::Buffer { index, offset }, Kind::Pointer { element, .. }) => {
                // Copies and zeros are of any 4-byte type, which their kernels call u32.
                let found = buffers[index].element();
                let same = found == element || (element == Element::U32 && found.bytes() == 4);
                same && offset <= buffers[index].len()
            }
            (Self::Nothing, Kind::Pointer { optional, .. }) => optional,
            (Self::U32(_), Kind::U32) | (Self::U64(_), Kind::U64) => true,
            (Self::F32(_), Kind::F32) | (Self::F64(_), Kind::F64) => true,
            _ => false,
        }
    }
}

/// One launch.
#[derive(Debug, Clone)]
pub struct Step {
    pub kernel: &'static Kernel,
    /// For [`Kernel::launch`].
    pub sizes: Vec<u64>,
    pub arguments: Vec<Argument>,
}

/// What a buffer must hold at the end.
#[derive(Debug, Clone)]
pub enum Want {
    /// These bits, any NaN for a NaN.
    Exact(Data),
    /// Each element within its own bound; a NaN where NaN is expected.
    Within { values: Vec<f64>, bounds: Vec<f64> },
}

/// One case of a kernel.
#[derive(Debug, Clone)]
pub struct Case {
    /// The kernel that it is a case of; others may be launched on the way.
    pub kernel: &'static Kernel,
    /// Shape and what is special about it.
    pub label: String,
    pub buffers: Vec<Data>,
    pub steps: Vec<Step>,
    pub expected: Vec<(usize, Want)>,
}

impl Case {
    /// A case without buffers or launches.
    pub fn new(kernel: &'static Kernel, label: impl Into<String>) -> Self {
        Self { kernel, label: label.into(), buffers: Vec::new(), steps: Vec::new(), expected: Vec::new() }
    }

    /// Adds a buffer; returns its index as an argument.
    pub fn buffer(&mut self, data: Data) -> Argument {
        self.buffers.push(data);
        Argument::buffer(self.buffers.len() - 1)
    }

    /// Adds a poisoned buffer, for what a kernel writes.
    pub fn output(&mut self, element: Element, len: usize) -> Argument {
        self.buffer(Data::poison(element, len))
    }

    /// Adds a launch of another kernel.
    pub fn launch_of(&mut self, kernel: &'static Kernel, sizes: &[usize], arguments: &[Argument]) {
        let sizes = sizes.iter().map(|&size| size as u64).collect();
        self.steps.push(Step { kernel, sizes, arguments: arguments.to_vec() });
    }

    /// Adds a launch of the case's kernel.
    pub fn launch(&mut self, sizes: &[usize], arguments: &[Argument]) {
        self.launch_of(self.kernel, sizes, arguments);
    }

    /// States what a buffer must hold.
    ///
    /// # Panics
    /// `argument` is no buffer: a fault of the case.
    pub fn expect(&mut self, argument: Argument, want: Want) {
        let Argument::Buffer { index, .. } = argument else {
            panic!("{}: {argument:?} is no buffer", self.label)
        };
        self.expected.push((index, want));
    }

    /// States the bits that a buffer must hold.
    pub fn expect_exact(&mut self, argument: Argument, data: Data) {
        self.expect(argument, Want::Exact(data));
    }

    /// States values and bounds, one pair an element.
    pub fn expect_within(&mut self, argument: Argument, pairs: impl IntoIterator<Item = (f64, f64)>) {
        let (values, bounds) = pairs.into_iter().unzip();
        self.expect(argument, Want::Within { values, bounds });
    }
}

/// A number as an argument.
pub fn u32(value: usize) -> Argument {
    Argument::U32(value as u32)
}

/// A size as an argument.
pub fn u64(value: usize) -> Argument {
    Argument::U64(value as u64)
}

/// A float as an argument.
pub fn f32(value: f32) -> Argument {
    Argument::F32(value)
}
