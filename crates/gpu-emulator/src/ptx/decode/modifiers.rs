//! The modifiers of one instruction, taken one by one; what is left over is refused by name.

use super::super::PtxError;
use super::super::ast::{Instruction, Type};
use super::super::code::{FloatMode, Round};

pub(super) struct Modifiers<'a> {
    inst: &'a Instruction,
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    pub fn new(inst: &'a Instruction) -> Self {
        Self { inst, left: inst.modifiers.iter().map(String::as_str).collect() }
    }

    /// Whether `name` stands among them; takes it.
    pub fn take(&mut self, name: &str) -> bool {
        match self.left.iter().position(|m| *m == name) {
            Some(at) => {
                self.left.remove(at);
                true
            }
            None => false,
        }
    }

    /// Takes the first modifier for which `f` gives something.
    pub fn find<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let at = self.left.iter().position(|m| f(m).is_some())?;
        f(self.left.remove(at))
    }

    /// The next type.
    pub fn ty(&mut self) -> Result<Type, PtxError> {
        self.find(Type::from_name)
            .ok_or_else(|| PtxError::at(self.inst.line, format!("`{}` names no type", self.inst.full_name())))
    }

    /// The last type, where an instruction names several.
    pub fn optional_ty(&mut self) -> Option<Type> {
        self.find(Type::from_name)
    }

    /// `.rn .rz .rm .rp`, whether or not it is there.
    pub fn round(&mut self) -> Option<Round> {
        self.find(|m| match m {
            "rn" => Some(Round::Near),
            "rz" => Some(Round::Zero),
            "rm" => Some(Round::Down),
            "rp" => Some(Round::Up),
            _ => None,
        })
    }

    /// Rounding (nearest where absent), `.ftz` and `.sat`.
    pub fn float_mode(&mut self) -> FloatMode {
        FloatMode { round: self.round().unwrap_or(Round::Near), ftz: self.take("ftz"), sat: self.take("sat") }
    }

    /// All were understood.
    pub fn finish(self) -> Result<(), PtxError> {
        match self.left.first() {
            None => Ok(()),
            Some(first) => Err(PtxError::unsupported(
                self.inst.line,
                format!("`.{first}` in `{}`", self.inst.full_name()),
            )),
        }
    }
}
