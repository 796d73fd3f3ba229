//! Streams.

use std::ffi::{c_int, c_uint, c_void};

use super::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, STREAM_CAPTURE_UNSUPPORTED};
use super::ffi::{Host, HostFunction, Out, Status, api};
use super::state::{Handle, Locked, exchange_capture_mode};
use super::stream::{Stream, Work};

fn create(d: &mut Locked, out: Out<Handle>, flags: c_uint, priority: c_int) -> Status {
    let context = d.current()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let handle = d.handle();
    d.streams.insert(handle, Stream::new(context, false, flags == 1, priority.clamp(-5, 0)));
    out.set(handle)
}

fn capture_status(d: &Locked, stream: Handle) -> (c_int, u64) {
    match d.streams[&stream].capture.and_then(|id| d.captures.get(&id).map(|c| (id, c))) {
        None => (0, 0),
        Some((id, c)) if c.invalidated => (2, id),
        Some((id, _)) => (1, id),
    }
}

api! {
    fn cuStreamCreate(out: Out<Handle>, flags: c_uint) |d| { create(d, out, flags, 0) }

    fn cuStreamCreateWithPriority(out: Out<Handle>, flags: c_uint, priority: c_int) |d| {
        create(d, out, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: Handle) |d| {
        d.ready()?;
        if stream <= 2 || !d.streams.contains_key(&stream) {
            return Err(INVALID_HANDLE);
        }
        if d.streams[&stream].legacy {
            return Err(INVALID_HANDLE);
        }
        if let Some(capture) = d.streams[&stream].capture.and_then(|id| d.captures.get_mut(&id)) {
            capture.invalidated = true;
        }
        let idle = d.streams[&stream].idle();
        if let Some(s) = d.streams.get_mut(&stream) {
            // Its work still runs; the stream goes when that is done.
            s.destroyed = true;
        }
        if idle {
            d.streams.remove(&stream);
        }
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) |d| {
        let stream = d.stream(stream)?;
        if d.streams[&stream].capture.is_some() {
            return Err(d.invalidate(stream, "cuStreamSynchronize on a capturing stream", STREAM_CAPTURE_UNSUPPORTED));
        }
        let context = d.streams[&stream].context;
        if d.streams[&stream].legacy {
            // It waits for the blocking streams too, as work enqueued on it would.
            d.submit(stream, Work::Empty)?;
        }
        d.drain(stream, u64::MAX);
        match d.contexts.get(&context).and_then(|c| c.error) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    fn cuStreamQuery(stream: Handle) |d| {
        let stream = d.stream(stream)?;
        if d.streams[&stream].capture.is_some() {
            return Err(d.invalidate(stream, "cuStreamQuery on a capturing stream", STREAM_CAPTURE_UNSUPPORTED));
        }
        let context = d.streams[&stream].context;
        let idle = d.poll_stream(stream);
        match d.contexts.get(&context).and_then(|c| c.error) {
            Some(code) => Err(code),
            None if idle => Ok(()),
            None => Err(NOT_READY),
        }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |d| {
        let stream = d.stream(stream)?;
        if !d.events.contains_key(&event) {
            return Err(INVALID_HANDLE);
        }
        if d.capture_wait(stream, event)? {
            return Ok(());
        }
        let Some((other, position, _)) = d.events[&event].recorded else { return Ok(()) };
        if other == stream || d.streams.get(&other).is_none_or(|s| s.completed >= position) {
            return Ok(());
        }
        d.submit(stream, Work::Wait { stream: other, position })
    }

    fn cuStreamGetFlags(stream: Handle, out: Out<c_uint>) |d| {
        let stream = d.stream(stream)?;
        out.set(u32::from(d.streams[&stream].non_blocking))
    }

    fn cuStreamGetPriority(stream: Handle, out: Out<c_int>) |d| {
        let stream = d.stream(stream)?;
        out.set(d.streams[&stream].priority)
    }

    fn cuStreamGetCtx(stream: Handle, out: Out<Handle>) |d| {
        let stream = d.stream(stream)?;
        out.set(d.streams[&stream].context)
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, argument: Host) |d| {
        let stream = d.stream(stream)?;
        let function = HostFunction::new(function, argument)?;
        d.submit(stream, Work::Host(function))
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) |d| {
        let stream = d.stream(stream)?;
        if !(0..=2).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        d.begin_capture(stream, mode)
    }

    fn cuStreamEndCapture(stream: Handle, out: Out<Handle>) |d| {
        let stream = d.stream(stream)?;
        match d.end_capture(stream) {
            Ok(graph) => out.set(graph),
            Err(code) => {
                out.set_if_wanted(0);
                Err(code)
            }
        }
    }

    fn cuStreamIsCapturing(stream: Handle, out: Out<c_int>) |d| {
        let stream = d.stream(stream)?;
        let (status, _) = capture_status(d, stream);
        out.set(status)
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) |d| {
        let stream = d.stream(stream)?;
        let (found, number) = capture_status(d, stream);
        id.set_if_wanted(number);
        status.set(found)
    }

    fn cuStreamGetCaptureInfo_v2(stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, nodes: Out<Handle>, count: Out<usize>) |d| {
        let stream = d.stream(stream)?;
        let (found, number) = capture_status(d, stream);
        if found == 1 && !(graph.is_null() && nodes.is_null() && count.is_null()) {
            d.report("cuStreamGetCaptureInfo_v2: the emulator does not show the graph of a capture in progress");
            return Err(super::codes::NOT_SUPPORTED);
        }
        id.set_if_wanted(number);
        status.set(found)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) |_d| {
        let new = mode.get().filter(|m| (0..=2).contains(m)).ok_or(INVALID_VALUE)?;
        mode.set(exchange_capture_mode(new))
    }

    fn cuStreamAttachMemAsync(stream: Handle, _address: u64, _len: usize, _flags: c_uint) |d| {
        // Managed memory is host memory here: both sides see it at any time.
        d.stream(stream).map(|_| ())
    }
}
