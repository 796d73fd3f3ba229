//! Graphs, as stream capture makes them.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use super::capture::GraphExec;
use super::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use super::ffi::{Out, Status, api};
use super::state::{Handle, Locked};
use super::stream::Work;

const AUTO_FREE: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 15;

fn instantiate(d: &mut Locked, out: Out<Handle>, graph: Handle, flags: u64) -> Status {
    d.current()?;
    if flags & !ALL_FLAGS != 0 || (flags & DEVICE_LAUNCH != 0 && flags & AUTO_FREE != 0) {
        return Err(INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        d.report("the emulator does not launch graphs from the device");
        return Err(NOT_SUPPORTED);
    }
    let g = d.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
    let exec = GraphExec {
        work: Arc::new(g.nodes.iter().map(|n| n.work.clone()).collect()),
        leaks: g.leaks.clone(),
        auto_free: flags & AUTO_FREE != 0,
        launches: 0,
    };
    let handle = d.handle();
    d.executables.insert(handle, exec);
    out.set(handle)
}

/// `CUgraphNodeType` of a piece of work.
fn node_type(work: &Work) -> c_int {
    match work {
        Work::Kernel(_) | Work::Product(_) => 0,
        Work::Upload { .. }
        | Work::UploadPinned { .. }
        | Work::Download { .. }
        | Work::Copy { .. }
        | Work::CopyRows { .. } => 1,
        Work::Fill { .. } | Work::FillRows { .. } => 2,
        Work::Host(_) => 3,
        Work::Graph(_) => 4,
        Work::GraphAlloc { .. } => 10,
        Work::Free { .. } => 11,
        _ => 5,
    }
}

api! {
    fn cuGraphCreate(out: Out<Handle>, flags: c_uint) |d| {
        d.ready()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = d.handle();
        d.graphs.insert(handle, super::capture::Graph::default());
        out.set(handle)
    }

    fn cuGraphDestroy(graph: Handle) |d| {
        d.ready()?;
        d.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphInstantiateWithFlags(out: Out<Handle>, graph: Handle, flags: c_ulonglong) |d| {
        instantiate(d, out, graph, flags)
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) |d| {
        d.stream(stream)?;
        d.executables.get(&exec).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) |d| {
        let stream = d.stream(stream)?;
        let e = d.executables.get(&exec).ok_or(INVALID_HANDLE)?.clone();
        if d.streams[&stream].capture.is_some() && !e.leaks.is_empty() {
            d.report("a graph with memory nodes is launched into a capture, which the emulator does not implement");
            return Err(NOT_SUPPORTED);
        }
        if !e.leaks.is_empty() && e.launches > 0 {
            // What the last launch left allocated.
            d.drain(stream, u64::MAX);
            let live: Vec<u64> = e.leaks.iter().copied().filter(|&at| d.memory.range(at).is_some()).collect();
            if !live.is_empty() && !e.auto_free {
                d.report("a graph is launched again while memory that it allocated is not freed");
                return Err(INVALID_VALUE);
            }
            for at in live {
                d.submit(stream, Work::Free { at })?;
            }
        }
        if let Some(e) = d.executables.get_mut(&exec) {
            e.launches += 1;
        }
        d.submit(stream, Work::Graph(e.work))
    }

    fn cuGraphExecDestroy(exec: Handle) |d| {
        d.ready()?;
        // What is in flight has its own reference to the nodes.
        d.executables.remove(&exec).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) |d| {
        d.ready()?;
        let total = d.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes.len();
        if nodes.is_null() {
            return count.set(total);
        }
        let room = count.get().ok_or(INVALID_VALUE)?;
        // A node's handle is made when somebody asks, and stays.
        while d.graphs[&graph].handles.len() < total {
            let handle = d.handle();
            if let Some(g) = d.graphs.get_mut(&graph) {
                g.handles.push(handle);
            }
        }
        let n = room.min(total);
        nodes.set_all(&d.graphs[&graph].handles[..n])?;
        count.set(n)
    }

    fn cuGraphNodeGetType(node: Handle, out: Out<c_int>) |d| {
        d.ready()?;
        let found = d.graphs.values().find_map(|g| g.handles.iter().position(|&h| h == node).map(|i| node_type(&g.nodes[i].work)));
        out.set(found.ok_or(INVALID_HANDLE)?)
    }
}
