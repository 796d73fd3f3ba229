//! Stream capture: what is enqueued on a stream is recorded instead of run, and replayed as one graph.
//!
//! ```text
//! Capture::begin(&stream, &[&blas]) ─► work on the stream ─► end ─► Graph ─► instantiate ─► GraphExec ─► launch, launch, …
//!        └─ dropped, or broken ─► the stream is as before
//! ```
//!
//! A graph holds addresses, so it keeps alive everything that it was recorded with: buffers, modules, frozen pinned
//! memory, cuBLAS workspaces. What would break a capture (allocating, freeing, loading, waiting, asking) is refused
//! before the driver hears of it, and what is dropped meanwhile is freed when the capture is over.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUgraph;

use crate::blas::Blas;
use crate::context::{Context, captures_here, count_captures, lock};
use crate::library::{Driver, Handle};
use crate::resource::{Kind, Owned};
use crate::stream::StreamInner;
use crate::{DriverError, Result, Stream};

/// Other threads may allocate and copy meanwhile; this one may not.
const THREAD_LOCAL: i32 = 1;
const INSTANTIATE_FLAGS: u64 = 0;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `_MEM_FREE`.
const MEMORY_NODES: std::ops::RangeInclusive<i32> = 10..=11;

/// What a capture has seen so far.
#[derive(Debug)]
pub(crate) struct Record {
    /// What its graph will use, by identity.
    kept: Mutex<BTreeMap<usize, Arc<Owned>>>,
    /// The first call that failed inside.
    first: Mutex<Option<DriverError>>,
    /// The streams that take part.
    members: Mutex<Vec<Arc<StreamInner>>>,
    /// Identities of the cuBLAS handles whose workspace was bound for it.
    blas: Vec<usize>,
    over: AtomicBool,
}

impl Record {
    pub(crate) fn keep(&self, resources: &[&Arc<Owned>]) {
        let mut kept = lock(&self.kept);
        for resource in resources {
            kept.entry(Arc::as_ptr(resource).addr()).or_insert_with(|| Arc::clone(resource));
        }
    }

    pub(crate) fn failed(&self, error: &DriverError) {
        lock(&self.first).get_or_insert_with(|| error.clone());
    }

    pub(crate) fn join(&self, stream: &Arc<StreamInner>) {
        lock(&self.members).push(stream.clone());
    }

    pub(crate) fn has_blas(&self, identity: usize) -> bool {
        self.blas.contains(&identity)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// A capture in progress. It ends on the thread that began it, which is why it cannot be sent:
///
/// ```compile_fail
/// fn sent<T: Send>() {}
/// sent::<gpu_driver::Capture>();
/// ```
#[derive(Debug)]
pub struct Capture {
    origin: Stream,
    record: Arc<Record>,
    /// The driver takes the end of a capture only from the thread that began it (908).
    _same_thread: PhantomData<*const ()>,
}

impl Capture {
    /// Begins to capture what is enqueued on `stream`, with all cuBLAS handles that will be used inside: their
    /// workspaces are bound here, and a product of another handle is refused.
    ///
    /// # Errors
    /// This thread or the stream captures already, or a call fails.
    pub fn begin(stream: &Stream, blas: &[&Blas]) -> Result<Self> {
        let remedy = "end the other capture first";
        if captures_here() {
            return Err(DriverError::InCapture { operation: "beginning a capture", remedy });
        }
        let record = Record {
            kept: Mutex::default(),
            first: Mutex::default(),
            members: Mutex::new(vec![stream.inner.clone()]),
            blas: blas.iter().map(|blas| blas.identity()).collect(),
            over: AtomicBool::new(false),
        };
        // Before the stream is locked: a product locks its handle first.
        for blas in blas {
            blas.bind_workspace()?;
            record.keep(&[blas.workspace(), blas.owner()]);
        }
        let mut capture = stream.inner.outside_capture("beginning a capture", remedy)?;
        let raw = stream.inner.handle();
        // SAFETY: the handle is of a stream that is alive.
        let begin = |driver: &Driver| unsafe { driver.cuStreamBeginCapture_v2(raw, THREAD_LOCAL) };
        stream.inner.context.call(begin)?;
        count_captures(1);
        let record = Arc::new(record);
        *capture = Some(record.clone());
        drop(capture);
        Ok(Self { origin: stream.clone(), record, _same_thread: PhantomData })
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`DriverError::Capture`] where something inside broke it, with the first call that failed;
    /// [`DriverError::MemoryNodes`] where something allocated. The streams can be used again either way.
    pub fn end(self) -> Result<Graph> {
        let context = self.origin.inner.context.clone();
        let ended = self.finish();
        let first = lock(&self.record.first).take();
        let kept = std::mem::take(&mut *lock(&self.record.kept));
        // Frees what waited, now that the thread captures no more.
        drop(self);
        let raw = match ended {
            Ok(raw) => raw,
            Err(DriverError::Call { code, .. }) => {
                return Err(DriverError::Capture { code, first: first.map(Box::new) });
            }
            Err(error) => return Err(error),
        };
        let mut graph = Graph { context, raw, kept, nodes: 0 };
        let kinds = graph.node_kinds()?;
        let memory = kinds.iter().filter(|kind| MEMORY_NODES.contains(kind)).count();
        if memory > 0 {
            return Err(DriverError::MemoryNodes { nodes: memory });
        }
        graph.nodes = kinds.len();
        Ok(graph)
    }

    /// Ends it at the driver, and frees its streams of it.
    fn finish(&self) -> Result<Handle<CUgraph>> {
        let inner = &self.origin.inner;
        let end = || {
            let mut graph = std::ptr::null_mut();
            // SAFETY: the handle is of a stream that is alive, the pointer is to a local that outlives the call.
            let ended = inner
                .context
                .direct(|driver| unsafe { driver.cuStreamEndCapture(inner.handle(), &raw mut graph) });
            ended?;
            Ok(Handle(graph))
        };
        let mut result = end();
        if result.is_err() && self.is_active() {
            // The call did not even end it; the stream must not stay captured.
            let second = end();
            if let Ok(graph) = second {
                // SAFETY: the driver has just made it, and nobody else knows of it.
                inner.context.call_in_drop("graph", |driver| unsafe { driver.cuGraphDestroy(graph.0) });
            }
        }
        self.record.over.store(true, Ordering::Release);
        for member in std::mem::take(&mut *lock(&self.record.members)) {
            *member.lock() = None;
        }
        count_captures(-1);
        if let Ok(Handle(graph)) = result
            && graph.is_null()
        {
            // Documented for a capture that was invalidated.
            result = Err(DriverError::Call { call: "cuStreamEndCapture", code: 901 });
        }
        result
    }

    fn is_active(&self) -> bool {
        let inner = &self.origin.inner;
        let mut status = 0;
        // SAFETY: the handle is of a stream that is alive, the pointer is to a local that outlives the call.
        let asked = inner
            .context
            .direct(|driver| unsafe { driver.cuStreamIsCapturing(inner.handle(), &raw mut status) });
        asked.is_ok() && status != 0
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let context = self.origin.inner.context.clone();
        if !self.record.is_over()
            && let Ok(graph) = self.finish()
        {
            // SAFETY: the driver has just made it, and nobody else knows of it.
            context.call_in_drop("graph", |driver| unsafe { driver.cuGraphDestroy(graph.0) });
        }
        // What was recorded goes first: it may be what waits.
        let kept = std::mem::take(&mut *lock(&self.record.kept));
        drop(kept);
        context.free_waiting();
    }
}

/// What was captured.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    raw: Handle<CUgraph>,
    kept: BTreeMap<usize, Arc<Owned>>,
    nodes: usize,
}

impl Graph {
    /// How many pieces of work it has.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Makes it ready to run.
    ///
    /// # Errors
    /// The call fails, or a capture on this thread.
    pub fn instantiate(mut self) -> Result<GraphExec> {
        if captures_here() {
            let (operation, remedy) = ("instantiating a graph", "end the capture first");
            return Err(DriverError::InCapture { operation, remedy });
        }
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive, the pointer is to a local that outlives the call.
        self.context.call(|driver| unsafe {
            driver.cuGraphInstantiateWithFlags(&raw mut exec, self.raw.0, INSTANTIATE_FLAGS)
        })?;
        let kept = std::mem::take(&mut self.kept).into_values().collect();
        Ok(GraphExec {
            exec: Handle(exec),
            owned: Owned::new(self.context.clone(), Kind::GraphExec(Handle(exec))),
            kept,
            launched_on: Mutex::default(),
        })
    }

    fn node_kinds(&self) -> Result<Vec<i32>> {
        let mut count = 0;
        // SAFETY: the graph is alive; a null array asks for the number of nodes.
        self.context.call(|driver| unsafe {
            driver.cuGraphGetNodes(self.raw.0, std::ptr::null_mut(), &raw mut count)
        })?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: the graph is alive, and the array has room for the number that is given with it.
        self.context.call(|driver| unsafe {
            driver.cuGraphGetNodes(self.raw.0, nodes.as_mut_ptr(), &raw mut count)
        })?;
        nodes
            .into_iter()
            .map(|node| {
                let mut kind = 0;
                // SAFETY: the node is of this graph, the pointer is to a local that outlives the call.
                self.context.call(|driver| unsafe { driver.cuGraphNodeGetType(node, &raw mut kind) })?;
                Ok(kind)
            })
            .collect()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by a capture, and nothing that holds it is left; executable graphs are copies of it.
        self.context.call_in_drop("graph", |driver| unsafe { driver.cuGraphDestroy(self.raw.0) });
    }
}

/// A graph that can be launched any number of times. It keeps alive all that it uses.
#[derive(Debug)]
pub struct GraphExec {
    exec: Handle<cudarc::driver::sys::CUgraphExec>,
    owned: Arc<Owned>,
    kept: Vec<Arc<Owned>>,
    launched_on: Mutex<Vec<Arc<StreamInner>>>,
}

impl GraphExec {
    /// Enqueues everything that was captured. What is enqueued afterwards on the stream comes after all of it.
    ///
    /// # Errors
    /// The stream captures, or the call fails.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        {
            let (operation, remedy) = ("launching a graph", "launch it after Capture::end");
            let _idle = stream.inner.outside_capture(operation, remedy)?;
        }
        let mut launched_on = lock(&self.launched_on);
        let inner = &stream.inner;
        // SAFETY: the graph and the stream are alive; what the graph uses is kept by it.
        inner.submit(&[&self.owned], |driver, raw| unsafe { driver.cuGraphLaunch(self.exec.0, raw) })?;
        if !launched_on.iter().any(|known| Arc::ptr_eq(known, inner)) {
            launched_on.push(inner.clone());
        }
        Ok(())
    }

    /// How many buffers, modules and workspaces it keeps alive.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // Work of the last launches may still run: what it uses must wait for those streams when it goes.
        for stream in lock(&self.launched_on).iter() {
            for resource in &self.kept {
                resource.use_on(stream);
            }
        }
    }
}
