//! Events.

use std::ffi::{c_float, c_uint};

use super::codes::{CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use super::ffi::{Out, Status, api};
use super::state::{Handle, Locked};
use super::stream::{Event, Work};

const PATIENCE: u32 = 3;

/// An event recorded in a capture cannot be asked; asking ends the capture.
fn refuse_captured(d: &mut Locked, event: Handle, what: &str) -> Status {
    let Some(e) = d.events.get(&event) else { return Err(INVALID_HANDLE) };
    let Some((id, _)) = e.captured.clone() else { return Ok(()) };
    if let Some(capture) = d.captures.get_mut(&id) {
        capture.invalidated = true;
    }
    d.report(format!("{what} on an event last recorded in a capture (907): the capture is invalidated"));
    Err(CAPTURED_EVENT)
}

fn done(d: &Locked, event: Handle) -> bool {
    match d.events[&event].recorded {
        None => true,
        Some((stream, position, _)) => d.streams.get(&stream).is_none_or(|s| s.completed >= position),
    }
}

fn record(d: &mut Locked, event: Handle, stream: Handle) -> Status {
    let stream = d.stream(stream)?;
    if !d.events.contains_key(&event) {
        return Err(INVALID_HANDLE);
    }
    if let Some(id) = d.streams[&stream].capture {
        d.capture_is_valid(stream)?;
        let after = d.captures[&id].streams.get(&stream).cloned().unwrap_or_default();
        if let Some(e) = d.events.get_mut(&event) {
            e.captured = Some((id, after));
        }
        return Ok(());
    }
    let ticket = d.events[&event].tickets + 1;
    d.submit(stream, Work::Record { event, ticket })?;
    let position = d.streams.get(&stream).map_or(0, |s| s.enqueued);
    if let Some(e) = d.events.get_mut(&event) {
        e.captured = None;
        e.tickets = ticket;
        e.queries = 0;
        e.recorded = Some((stream, position, ticket));
    }
    Ok(())
}

api! {
    fn cuEventCreate(out: Out<Handle>, flags: c_uint) |d| {
        let context = d.current()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let handle = d.handle();
        d.events.insert(handle, Event {
            context,
            recorded: None,
            captured: None,
            reached: None,
            no_timing: flags & 2 != 0,
            tickets: 0,
            queries: 0,
        });
        out.set(handle)
    }

    fn cuEventDestroy_v2(event: Handle) |d| {
        d.ready()?;
        d.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: Handle, stream: Handle) |d| { record(d, event, stream) }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) |d| {
        if flags != 0 {
            d.report("cuEventRecordWithFlags: the emulator does not implement external events");
            return Err(super::codes::NOT_SUPPORTED);
        }
        record(d, event, stream)
    }

    fn cuEventQuery(event: Handle) |d| {
        d.ready()?;
        refuse_captured(d, event, "cuEventQuery")?;
        let context = d.events[&event].context;
        if let Some(code) = d.contexts.get(&context).and_then(|c| c.error) {
            return Err(code);
        }
        if done(d, event) {
            return Ok(());
        }
        let Some((stream, position, _)) = d.events[&event].recorded else { return Ok(()) };
        let queries = {
            let e = d.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
            e.queries += 1;
            e.queries
        };
        if queries > PATIENCE {
            let next = d.streams.get(&stream).map_or(0, |s| s.completed + 1);
            d.drain(stream, next.min(position));
        }
        match d.contexts.get(&context).and_then(|c| c.error) {
            Some(code) => Err(code),
            None => Err(NOT_READY),
        }
    }

    fn cuEventSynchronize(event: Handle) |d| {
        d.ready()?;
        refuse_captured(d, event, "cuEventSynchronize")?;
        let context = d.events[&event].context;
        if let Some((stream, position, _)) = d.events[&event].recorded {
            d.drain(stream, position);
        }
        match d.contexts.get(&context).and_then(|c| c.error) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    fn cuEventElapsedTime(out: Out<c_float>, start: Handle, end: Handle) |d| {
        d.ready()?;
        let mut times = [None; 2];
        for (time, event) in times.iter_mut().zip([start, end]) {
            refuse_captured(d, event, "cuEventElapsedTime")?;
            let e = &d.events[&event];
            let Some((_, _, ticket)) = e.recorded.filter(|_| !e.no_timing) else { return Err(INVALID_HANDLE) };
            if !done(d, event) {
                return Err(NOT_READY);
            }
            *time = d.events[&event].reached.filter(|r| r.0 == ticket).map(|r| r.1);
        }
        let [Some(start), Some(end)] = times else { return Err(NOT_READY) };
        let milliseconds = if end >= start {
            end.duration_since(start).as_secs_f32() * 1e3
        } else {
            -start.duration_since(end).as_secs_f32() * 1e3
        };
        out.set(milliseconds)
    }
}
