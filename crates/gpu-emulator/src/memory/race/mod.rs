//! Who touched which bytes: global memory by launch and block, shared memory by barrier epoch.
//!
//! Both are exact to the byte, so that neighbours of one word, such as two 16-bit elements of two lanes, neither
//! race nor hide a race. A byte remembers its last writer and its first reader with a note that there were others;
//! of several races at one byte one is reported, and none is reported that is not there.

mod global;
mod shared;

pub use global::{GlobalRace, Who};
pub use shared::{Epoch, SharedRace};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A plain load.
    Read,
    /// A load through the non-coherent path.
    ReadOnly,
    /// A plain store; `same` where it changes nothing, which may meet another store.
    Write {
        /// The bytes were there already.
        same: bool,
    },
    /// A volatile, relaxed or acquiring load: meant to meet others, which are those of the block, because nothing
    /// says in which order the blocks of a launch run.
    StrongRead,
    /// The load of an atomic, which may meet the atomics of all.
    AtomicRead,
    /// The store of an atomic, or a volatile or relaxed store: meant to meet others.
    StrongWrite,
}

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What went before, for a message.
    pub earlier: String,
}
