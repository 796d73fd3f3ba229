//! One lane's access, in any space, with every check: bounds, unwritten bytes, races. Slow and exact: what the
//! paths over whole warps cannot take, and whatever has to be named, comes here.

use super::LaneFault;
use crate::exec::block::{Context, PENDING, UNWRITTEN, WRITTEN};
use crate::exec::warp::Warp;
use crate::exec::{ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::memory::race::{Epoch, Touch, Who};
use crate::memory::{BadAccess, PAGE};
use crate::ptx::ast::Space;

/// The most bytes that a lane moves with one instruction.
pub(super) const MOST: usize = 16;

impl Warp {
    pub(super) fn epoch(&self, c: &Context<'_>, lane: usize) -> Epoch {
        Epoch { block: c.epoch, warp: self.epoch, thread: (self.index * 32) as u16 + lane as u16 }
    }

    /// Where a lane's access to shared memory lies, checked against its end.
    pub(super) fn shared_range(
        c: &Context<'_>,
        lane: usize,
        at: u64,
        n: usize,
        what: &str,
    ) -> Result<usize, LaneFault> {
        let size = c.shared.len();
        match usize::try_from(at).ok().filter(|a| a.checked_add(n).is_some_and(|end| end <= size)) {
            Some(at) => Ok(at),
            None => Err((
                lane,
                ILLEGAL_ADDRESS,
                format!("{what} of {n} bytes at shared byte {at}; the block has {size} bytes"),
            )),
        }
    }

    /// Reads for one lane, in any space.
    pub(super) fn read_lane(
        &mut self,
        c: &mut Context<'_>,
        space: Space,
        lane: usize,
        at: u64,
        out: &mut [u8],
        touch: Touch,
    ) -> Result<(), LaneFault> {
        let n = out.len();
        match space {
            Space::Shared => {
                let from = Self::shared_range(c, lane, at, n, "load")?;
                out.copy_from_slice(&c.shared[from..from + n]);
                let state = &c.shared_state[from..from + n];
                if state.contains(&PENDING) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!(
                            "load of {n} bytes at shared byte {from}{}, which a cp.async still fills",
                            variable(c, from)
                        ),
                    ));
                }
                if c.options.uninitialised && state.contains(&UNWRITTEN) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!(
                            "load of {n} bytes at shared byte {from}{}, which nothing has written{}",
                            variable(c, from),
                            if c.warps > 1 {
                                " yet (if another warp will, a barrier is missing)"
                            } else {
                                ""
                            }
                        ),
                    ));
                }
                self.shared_race(c, lane, "load", (from, n), touch)
            }
            Space::Local => {
                let from = self.local_range(c, lane, at, n, "load")?;
                out.copy_from_slice(&self.local[from..from + n]);
                if c.options.uninitialised && self.local_written[from..from + n].contains(&false) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!("load of {n} bytes at local byte {at}, which nothing has written"),
                    ));
                }
                Ok(())
            }
            _ => {
                c.memory.read(at, out, c.options.uninitialised).map_err(|bad| match bad {
                    BadAccess::Address(what) => (lane, ILLEGAL_ADDRESS, format!("load of {n} bytes: {what}")),
                    BadAccess::Uninitialised(what) => {
                        (lane, LAUNCH_FAILED, format!("load of {n} bytes that nothing has written: {what}"))
                    }
                })?;
                self.global_race(c, lane, at, n, touch)
            }
        }
    }

    /// Notes an access to shared memory, and reports the one that it races with.
    pub(super) fn shared_race(
        &self,
        c: &mut Context<'_>,
        lane: usize,
        what: &str,
        (at, n): (usize, usize),
        touch: Touch,
    ) -> Result<(), LaneFault> {
        if !c.options.race {
            return Ok(());
        }
        let now = self.epoch(c, lane);
        match c.shared_race.touch((at, n), touch, now) {
            None => Ok(()),
            Some(conflict) => {
                let place = format!("shared byte {at}{}", variable(c, at));
                Err((lane, LAUNCH_FAILED, race_text(what, n, &place, &conflict.earlier)))
            }
        }
    }

    /// Writes for one lane, in any space.
    pub(super) fn write_lane(
        &mut self,
        c: &mut Context<'_>,
        space: Space,
        lane: usize,
        at: u64,
        data: &[u8],
        strong: bool,
    ) -> Result<(), LaneFault> {
        let n = data.len();
        match space {
            Space::Shared => {
                let to = Self::shared_range(c, lane, at, n, "store")?;
                let same = &c.shared[to..to + n] == data;
                c.shared[to..to + n].copy_from_slice(data);
                c.shared_state[to..to + n].fill(WRITTEN);
                let touch = if strong { Touch::StrongWrite } else { Touch::Write { same } };
                self.shared_race(c, lane, "store", (to, n), touch)
            }
            Space::Local => {
                let to = self.local_range(c, lane, at, n, "store")?;
                self.local[to..to + n].copy_from_slice(data);
                self.local_written[to..to + n].fill(true);
                Ok(())
            }
            _ => {
                let mut before = [0; MOST];
                let same = c.options.race
                    && c.memory.read(at, &mut before[..n], false).is_ok()
                    && &before[..n] == data;
                c.memory
                    .write(at, data)
                    .map_err(|bad| (lane, ILLEGAL_ADDRESS, format!("store of {n} bytes: {}", text(bad))))?;
                let touch = if strong { Touch::StrongWrite } else { Touch::Write { same } };
                self.global_race(c, lane, at, n, touch)
            }
        }
    }

    fn local_range(
        &self,
        c: &Context<'_>,
        lane: usize,
        at: u64,
        n: usize,
        what: &str,
    ) -> Result<usize, LaneFault> {
        let size = c.kernel.local_bytes;
        match usize::try_from(at).ok().filter(|a| a.checked_add(n).is_some_and(|end| end <= size)) {
            Some(at) => Ok(lane * size + at),
            None => Err((
                lane,
                ILLEGAL_ADDRESS,
                format!("{what} of {n} bytes at local byte {at}; a thread has {size} bytes"),
            )),
        }
    }

    fn global_race(
        &self,
        c: &mut Context<'_>,
        lane: usize,
        at: u64,
        n: usize,
        touch: Touch,
    ) -> Result<(), LaneFault> {
        if !c.options.race {
            return Ok(());
        }
        // Pinned host memory has no cells.
        let Some(page) = c.memory.touch(at) else { return Ok(()) };
        let who = Who::new(c.launch.id, c.block_number);
        match page.race().touch(((at % PAGE) as usize, n), touch, who) {
            None => Ok(()),
            Some(conflict) => {
                let store = matches!(touch, Touch::Write { .. } | Touch::StrongWrite);
                let what = if store { "store" } else { "load" };
                Err((lane, LAUNCH_FAILED, race_text(what, n, &c.memory.describe(at), &conflict.earlier)))
            }
        }
    }
}

fn text(bad: BadAccess) -> String {
    match bad {
        BadAccess::Address(text) | BadAccess::Uninitialised(text) => text,
    }
}

pub(super) fn race_text(what: &str, n: usize, at: &str, earlier: &str) -> String {
    format!("race: {what} of {n} bytes at {at}: {earlier}")
}

/// ` (4 bytes into `tile`)` where a shared variable is there.
pub(super) fn variable(c: &Context<'_>, at: usize) -> String {
    c.kernel
        .shared_variables
        .iter()
        .find(|(_, start, len)| (*start..start + len).contains(&at))
        .map_or_else(String::new, |(name, start, _)| format!(" ({} bytes into `{name}`)", at - start))
}
