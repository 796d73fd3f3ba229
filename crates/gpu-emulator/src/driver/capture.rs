//! Stream capture and graphs.
//!
//! A capture is a list of nodes with their predecessors; each stream that takes part remembers the nodes
//! that its next one must follow. Nodes are recorded in an order that respects those edges, so replay runs
//! them as listed.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use super::codes::{
    ILLEGAL_STATE, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use super::state::{Handle, Locked};
use super::stream::Work;

/// A capture in progress.
#[derive(Debug)]
pub struct Capture {
    /// The stream that began it.
    pub origin: Handle,
    /// 0 global, 1 thread-local, 2 relaxed.
    pub mode: i32,
    /// The thread that began it.
    pub thread: ThreadId,
    /// Something forbidden happened.
    pub invalidated: bool,
    /// Nodes so far.
    pub nodes: Vec<Node>,
    /// For each stream in it, the nodes that its next one follows.
    pub streams: HashMap<Handle, Vec<usize>>,
    /// Memory that was allocated inside, and whether it was freed inside.
    pub allocations: HashMap<u64, bool>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub work: Work,
    /// Nodes before it.
    pub after: Vec<usize>,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Nodes, predecessors first.
    pub nodes: Vec<Node>,
    /// Memory that it allocates and does not free.
    pub leaks: Vec<u64>,
    /// Handles of its nodes, where somebody asked for them.
    pub handles: Vec<Handle>,
}

/// An executable graph.
#[derive(Clone, Debug)]
pub struct GraphExec {
    /// The work, in order.
    pub work: Arc<Vec<Work>>,
    /// Memory that stays allocated after a launch.
    pub leaks: Vec<u64>,
    /// `AUTO_FREE_ON_LAUNCH`
    pub auto_free: bool,
    /// Launches so far.
    pub launches: u64,
}

impl Locked {
    /// `cuStreamBeginCapture`.
    pub fn begin_capture(&mut self, stream: Handle, mode: i32) -> Result<(), i32> {
        let s = &self.streams[&stream];
        if s.legacy {
            self.report("the legacy stream cannot capture (900)");
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if s.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let id = self.handle();
        let capture = Capture {
            origin: stream,
            mode,
            thread: std::thread::current().id(),
            invalidated: false,
            nodes: Vec::new(),
            streams: HashMap::from([(stream, Vec::new())]),
            allocations: HashMap::new(),
        };
        self.captures.insert(id, capture);
        if let Some(s) = self.streams.get_mut(&stream) {
            s.capture = Some(id);
        }
        Ok(())
    }

    /// Records a node on a capturing stream; its index.
    pub fn capture_node(&mut self, stream: Handle, work: Work) -> Result<usize, i32> {
        self.capture_is_valid(stream)?;
        let id = self.streams[&stream].capture.ok_or(ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(ILLEGAL_STATE)?;
        let after = capture.streams.get(&stream).cloned().unwrap_or_default();
        let index = capture.nodes.len();
        capture.nodes.push(Node { work, after });
        capture.streams.insert(stream, vec![index]);
        Ok(index)
    }

    /// Forbidden on this capturing stream: the capture is invalid from here.
    pub fn invalidate(&mut self, stream: Handle, what: &str, code: i32) -> i32 {
        if let Some(capture) = self.streams[&stream].capture.and_then(|c| self.captures.get_mut(&c)) {
            capture.invalidated = true;
        }
        self.report(format!("{what} ({code}): the capture is invalidated (901 at its end)"));
        code
    }

    /// `cuStreamEndCapture`: the graph.
    pub fn end_capture(&mut self, stream: Handle) -> Result<Handle, i32> {
        let Some(id) = self.streams[&stream].capture else { return Err(ILLEGAL_STATE) };
        let capture = &self.captures[&id];
        if capture.origin != stream {
            if let Some(c) = self.captures.get_mut(&id) {
                c.invalidated = true;
            }
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != 2 && capture.thread != std::thread::current().id() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.remove(&id).ok_or(ILLEGAL_STATE)?;
        for member in capture.streams.keys() {
            if let Some(s) = self.streams.get_mut(member) {
                s.capture = None;
            }
        }
        if capture.invalidated {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        // Everything must lie before what the origin stream would do next.
        let mut joined = vec![false; capture.nodes.len()];
        let mut open = capture.streams.get(&stream).cloned().unwrap_or_default();
        while let Some(n) = open.pop() {
            if !std::mem::replace(&mut joined[n], true) {
                open.extend(&capture.nodes[n].after);
            }
        }
        if let Some(n) = joined.iter().position(|j| !j) {
            self.report(format!(
                "a forked stream was not joined to the captured one before its end (904): node {n} of {} is not before it",
                capture.nodes.len()
            ));
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        let leaks = capture.allocations.iter().filter(|(_, freed)| !**freed).map(|(&at, _)| at).collect();
        let graph = self.handle();
        self.graphs.insert(graph, Graph { nodes: capture.nodes, leaks, handles: Vec::new() });
        Ok(graph)
    }

    /// `cuStreamWaitEvent` where a capture is involved; `false` where none is.
    pub fn capture_wait(&mut self, stream: Handle, event: Handle) -> Result<bool, i32> {
        let captured = self.events[&event].captured.clone().filter(|(id, _)| self.captures.contains_key(id));
        let recorded = self.events[&event].recorded.is_some();
        let mine = self.streams[&stream].capture;
        match (mine, captured) {
            (None, None) => Ok(false),
            (Some(_), None) if !recorded => Ok(true),
            (Some(_), None) => {
                self.capture_is_valid(stream)?;
                Err(self.invalidate(
                    stream,
                    "a capturing stream waits for an event recorded outside the capture",
                    STREAM_CAPTURE_ISOLATION,
                ))
            }
            (mine, Some((id, nodes))) => {
                if let Some(mine) = mine {
                    self.capture_is_valid(stream)?;
                    if mine != id {
                        return Err(self.invalidate(
                            stream,
                            "a capturing stream waits for an event of another capture",
                            STREAM_CAPTURE_MERGE,
                        ));
                    }
                }
                if self.captures[&id].invalidated {
                    return Err(STREAM_CAPTURE_INVALIDATED);
                }
                if self.streams[&stream].legacy {
                    return Err(STREAM_CAPTURE_UNSUPPORTED);
                }
                if let Some(s) = self.streams.get_mut(&stream) {
                    s.capture = Some(id);
                }
                if let Some(capture) = self.captures.get_mut(&id) {
                    let set = capture.streams.entry(stream).or_default();
                    for n in nodes {
                        if !set.contains(&n) {
                            set.push(n);
                        }
                    }
                }
                Ok(true)
            }
        }
    }
}
