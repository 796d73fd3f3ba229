//! Streams as queues, and the order in which their work runs.
//!
//! ```text
//! submit(stream, work):
//!   capturing?            -> becomes a node of the graph
//!   order with the legacy stream, push; eager mode: drain at once
//! drain(stream, until):
//!   1. take the next item
//!   2. an item that waits for another stream drains that one first (loop 2 is recursion)
//!   3. run it; a fault poisons the context and empties its queues
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::codes::{ILLEGAL_ADDRESS, LAUNCH_FAILED, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED};
use super::ffi::HostFunction;
use super::state::{Driver, Handle, Locked};
use crate::config::Streams;
use crate::cublas::Product;
use crate::exec::{Fault, Launch};
use crate::memory::{BadAccess, DeviceMemory};
use crate::ptx::code::Kernel;

/// A piece of stream work. Addresses are device addresses (or pinned host ones), lengths and pitches bytes.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Work {
    /// A kernel.
    Kernel(Arc<KernelWork>),
    /// To the device, from bytes copied when it was enqueued.
    Upload { to: u64, data: Arc<Vec<u8>> },
    /// To the device from pinned memory, read when it runs; `seen` is a digest of it when enqueued.
    UploadPinned { to: u64, from: u64, len: u64, seen: Option<u64> },
    /// To pinned memory.
    Download { to: u64, from: u64, len: u64 },
    /// Within the device.
    Copy { to: u64, from: u64, len: u64 },
    /// Rows of a two-dimensional copy.
    CopyRows { to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, rows: u64 },
    /// A pattern, repeated.
    Fill { to: u64, pattern: Vec<u8>, count: u64 },
    /// Rows of a pattern.
    FillRows { to: u64, pitch: u64, pattern: Vec<u8>, width: u64, rows: u64 },
    /// A call into the program.
    Host(HostFunction),
    /// Notes that an event is reached.
    Record { event: Handle, ticket: u64 },
    /// Waits until `stream` has done its first `position` items.
    Wait { stream: Handle, position: u64 },
    /// A stream-ordered free.
    Free { at: u64 },
    /// A graph's memory node: makes its memory live.
    GraphAlloc { at: u64 },
    /// Nodes of a graph, in order.
    Graph(Arc<Vec<Work>>),
    /// A cuBLAS product.
    Product(Arc<Product>),
    /// Nothing (an empty node).
    Empty,
}

/// A launch with all it needs.
#[derive(Debug)]
pub struct KernelWork {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Grid.
    pub grid: [u32; 3],
    /// Block.
    pub block: [u32; 3],
    /// Parameters.
    pub params: Vec<u8>,
    /// Dynamic shared memory.
    pub dynamic_shared: usize,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its context.
    pub context: Handle,
    /// Whether it is the legacy stream.
    pub legacy: bool,
    /// Created with `CU_STREAM_NON_BLOCKING`.
    pub non_blocking: bool,
    /// Priority.
    pub priority: i32,
    queue: VecDeque<Work>,
    /// Items ever enqueued.
    pub enqueued: u64,
    /// Items done.
    pub completed: u64,
    /// An item runs with the lock released.
    busy: bool,
    /// Queries since the last progress.
    queries: u32,
    /// `cuStreamDestroy` was called; it vanishes when its work is done.
    pub destroyed: bool,
    /// The capture it takes part in.
    pub capture: Option<Handle>,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its context.
    pub context: Handle,
    /// Where it was recorded last: stream, position, ticket.
    pub recorded: Option<(Handle, u64, u64)>,
    /// Recorded in a capture: which, and the nodes before it.
    pub captured: Option<(Handle, Vec<usize>)>,
    /// When a record was reached, by ticket.
    pub reached: Option<(u64, Instant)>,
    /// `CU_EVENT_DISABLE_TIMING`
    pub no_timing: bool,
    /// Records so far.
    pub tickets: u64,
    /// Queries since the last record.
    pub queries: u32,
}

/// Queries that make no progress before one item runs: a program may look more than once before it does
/// what the stream waits for, but one that only polls must get on.
const PATIENCE: u32 = 3;

impl Stream {
    /// A stream of `context`.
    pub fn new(context: Handle, legacy: bool, non_blocking: bool, priority: i32) -> Self {
        Self {
            context,
            legacy,
            non_blocking,
            priority,
            queue: VecDeque::new(),
            enqueued: 0,
            completed: 0,
            busy: false,
            queries: 0,
            destroyed: false,
            capture: None,
        }
    }

    /// Whether all its work is done.
    pub fn idle(&self) -> bool {
        self.completed >= self.enqueued
    }

    /// Drops its work, after a fault.
    pub fn abandon(&mut self) {
        self.queue.clear();
        self.completed = self.enqueued;
    }
}

impl Locked {
    /// Enqueues work, or records it where the stream captures.
    ///
    /// # Errors
    /// An invalidated capture, or legacy-stream work while a blocking stream captures.
    pub fn submit(&mut self, stream: Handle, work: Work) -> Result<(), i32> {
        if self.streams[&stream].capture.is_some() {
            return self.capture_node(stream, work).map(|_| ());
        }
        self.order_with_legacy(stream)?;
        self.push(stream, work);
        if self.config.streams == Streams::Eager {
            self.drain(stream, u64::MAX);
        }
        Ok(())
    }

    fn push(&mut self, stream: Handle, work: Work) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.queue.push_back(work);
            s.enqueued += 1;
            s.queries = 0;
        }
    }

    /// The legacy stream and the blocking streams of a context order with each other.
    fn order_with_legacy(&mut self, stream: Handle) -> Result<(), i32> {
        let (context, legacy, non_blocking) = {
            let s = &self.streams[&stream];
            (s.context, s.legacy, s.non_blocking)
        };
        let others: Vec<(Handle, u64)> = if legacy {
            let capturing: Vec<Handle> = self
                .streams
                .values()
                .filter(|s| s.context == context && !s.non_blocking && !s.legacy)
                .filter_map(|s| s.capture)
                .collect();
            if !capturing.is_empty() {
                for id in capturing {
                    if let Some(capture) = self.captures.get_mut(&id) {
                        capture.invalidated = true;
                    }
                }
                self.report("work on the legacy stream while a blocking stream captures: the capture is invalidated (906, then 901 at its end)");
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            self.streams
                .iter()
                .filter(|(_, s)| s.context == context && !s.non_blocking && !s.legacy && !s.idle())
                .map(|(&h, s)| (h, s.enqueued))
                .collect()
        } else if non_blocking {
            Vec::new()
        } else {
            let handle = self.contexts[&context].legacy;
            let s = &self.streams[&handle];
            if s.idle() { Vec::new() } else { vec![(handle, s.enqueued)] }
        };
        for (other, position) in others {
            self.push(stream, Work::Wait { stream: other, position });
        }
        Ok(())
    }

    /// Runs the stream's items until `position` of them are done.
    pub fn drain(&mut self, stream: Handle, position: u64) {
        loop {
            let Some(s) = self.streams.get_mut(&stream) else { return };
            if s.completed >= position.min(s.enqueued) {
                break;
            }
            if s.busy {
                // Another thread runs this stream's host function.
                self.unlocked(|| std::thread::sleep(Duration::from_micros(50)));
                continue;
            }
            let Some(work) = s.queue.pop_front() else { return };
            s.busy = true;
            let context = s.context;
            self.execute(context, &work);
            if let Some(s) = self.streams.get_mut(&stream) {
                s.busy = false;
                s.queries = 0;
                // A fault has emptied the queue and set `completed` already.
                if s.completed < s.enqueued {
                    s.completed += 1;
                }
            }
        }
        if self.streams.get(&stream).is_some_and(|s| s.destroyed && s.idle()) {
            self.streams.remove(&stream);
        }
    }

    /// Runs everything of a context.
    pub fn drain_context(&mut self, context: Handle) {
        let mut all: Vec<Handle> =
            self.streams.iter().filter(|(_, s)| s.context == context).map(|(&h, _)| h).collect();
        all.sort_unstable();
        if let Streams::Seeded(seed) = self.config.streams {
            // An order that the seed and the moment decide.
            let moment = self.counts.launches;
            all.sort_by_key(|h| {
                (h ^ moment).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
            });
        }
        for stream in all {
            self.drain(stream, u64::MAX);
        }
    }

    /// Whether the stream is idle; polling it makes progress.
    pub fn poll_stream(&mut self, stream: Handle) -> bool {
        let Some(s) = self.streams.get_mut(&stream) else { return true };
        if s.idle() {
            return true;
        }
        s.queries += 1;
        if s.queries > PATIENCE {
            let next = s.completed + 1;
            self.drain(stream, next);
        }
        false
    }

    fn execute(&mut self, context: Handle, work: &Work) {
        match work {
            Work::Wait { stream, position } => return self.drain(*stream, *position),
            Work::Host(function) => {
                let function = *function;
                return self.unlocked(move || function.call());
            }
            Work::Graph(nodes) => {
                for node in nodes.iter() {
                    self.execute(context, node);
                    if self.contexts.get(&context).is_none_or(|c| c.error.is_some()) {
                        return;
                    }
                }
                return;
            }
            Work::Record { event, ticket } => {
                if let Some(e) = self.events.get_mut(event) {
                    e.reached = Some((*ticket, Instant::now()));
                }
                return;
            }
            _ => {}
        }
        let driver: &mut Driver = self;
        if let Some(code) = driver.injected() {
            return driver.fail(
                context,
                Fault {
                    code,
                    message: format!("stream work fails with {code}, as GPU_EMULATOR_FAIL_ASYNC asks"),
                },
            );
        }
        if let Err(fault) = driver.perform(work) {
            driver.fail(context, fault);
        }
    }
}

fn bad(what: &str, error: BadAccess) -> Fault {
    let (BadAccess::Address(text) | BadAccess::Uninitialised(text)) = error;
    Fault { code: ILLEGAL_ADDRESS, message: format!("{what}: {text}") }
}

/// A digest of pinned memory, to notice that it changed under a copy in flight.
pub fn digest(memory: &DeviceMemory, address: u64, len: u64) -> Option<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut chunk = [0; 4096];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(4096) as usize;
        if !memory.host.read(address + done, &mut chunk[..n]) {
            return None;
        }
        for eight in chunk[..n].chunks(8) {
            let mut bytes = [0; 8];
            bytes[..eight.len()].copy_from_slice(eight);
            hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        done += n as u64;
    }
    Some(hash)
}

impl Driver {
    fn injected(&mut self) -> Option<i32> {
        let mut code = None;
        for (left, with) in &mut self.config.fail_async {
            if *left > 0 {
                *left -= 1;
                if *left == 0 {
                    code = Some(*with);
                }
            }
        }
        code
    }

    fn perform(&mut self, work: &Work) -> Result<(), Fault> {
        match work {
            Work::Kernel(k) => {
                self.launches += 1;
                let launch = Launch {
                    kernel: &k.kernel,
                    grid: k.grid,
                    block: k.block,
                    params: &k.params,
                    dynamic_shared: k.dynamic_shared,
                    id: self.launches,
                };
                crate::exec::run(&launch, &mut self.memory, self.config.exec, &mut self.counts)?;
                if !self.spilled.is_empty() {
                    // Memory that lies in the host is some thirty times slower; a test sees that by its clock.
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            }
            Work::Upload { to, data } => {
                self.memory.write(*to, data).map_err(|e| bad("copy to the device", e))
            }
            Work::UploadPinned { to, from, len, seen } => {
                if seen.is_some() && digest(&self.memory, *from, *len) != *seen {
                    return Err(Fault {
                        code: LAUNCH_FAILED,
                        message: format!(
                            "the pinned source {from:#x} of a copy of {len} bytes was overwritten (or freed) while the copy was in flight"
                        ),
                    });
                }
                self.move_bytes(*to, *from, *len, "copy to the device")
            }
            Work::Download { to, from, len } => self.move_bytes(*to, *from, *len, "copy to the host"),
            Work::Copy { to, from, len } => {
                self.memory.copy(*to, *from, *len).map_err(|e| bad("copy on the device", e))
            }
            Work::CopyRows { to, to_pitch, from, from_pitch, width, rows } => {
                for row in 0..*rows {
                    self.move_bytes(to + row * to_pitch, from + row * from_pitch, *width, "copy of rows")?;
                }
                Ok(())
            }
            Work::Fill { to, pattern, count } => {
                self.memory.fill(*to, pattern, *count).map_err(|e| bad("memset", e))
            }
            Work::FillRows { to, pitch, pattern, width, rows } => {
                for row in 0..*rows {
                    self.memory.fill(to + row * pitch, pattern, *width).map_err(|e| bad("memset", e))?;
                }
                Ok(())
            }
            Work::Free { at } => {
                let released = !self.spilled.remove(at);
                match self.memory.free(*at, released) {
                    Some(len) => {
                        self.unpool(*at, len);
                        Ok(())
                    }
                    None => Err(Fault {
                        code: ILLEGAL_ADDRESS,
                        message: format!("a stream-ordered free of {at:#x}, which is no live allocation"),
                    }),
                }
            }
            Work::GraphAlloc { at } => {
                let live = self.memory.revive(*at);
                let Some((_, len)) = self.memory.range(*at).filter(|_| live) else {
                    return Err(Fault {
                        code: ILLEGAL_ADDRESS,
                        message: format!("a graph's memory node at {at:#x} is allocated already"),
                    });
                };
                self.memory.charge(DeviceMemory::charged(len));
                Ok(())
            }
            Work::Product(product) => product.run(self),
            Work::Empty | Work::Wait { .. } | Work::Host(_) | Work::Graph(_) | Work::Record { .. } => Ok(()),
        }
    }

    fn move_bytes(&mut self, to: u64, from: u64, len: u64, what: &str) -> Result<(), Fault> {
        self.memory.copy(to, from, len).map_err(|e| bad(what, e))
    }

    /// An allocation that came from a pool has gone.
    pub fn unpool(&mut self, at: u64, len: u64) {
        if let Some(pool) = self.pooled.remove(&at).and_then(|p| self.pools.get_mut(&p)) {
            pool.used = pool.used.saturating_sub(DeviceMemory::charged(len));
        }
    }

    /// The capture of a stream is still good.
    pub fn capture_is_valid(&self, stream: Handle) -> Result<(), i32> {
        match self.streams[&stream].capture.and_then(|c| self.captures.get(&c)) {
            Some(capture) if capture.invalidated => Err(STREAM_CAPTURE_INVALIDATED),
            _ => Ok(()),
        }
    }
}
