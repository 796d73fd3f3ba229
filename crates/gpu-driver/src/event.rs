//! Events: points in a stream that others wait for, and that time is measured between.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys::CUevent;

use crate::capture::Record;
use crate::context::{Context, lock};
use crate::library::Handle;
use crate::stream::StreamInner;
use crate::{DriverError, Result, Stream};

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: Handle<CUevent>,
    state: Mutex<State>,
}

/// Where it was recorded last.
#[derive(Debug, Clone)]
enum State {
    Never,
    Recorded,
    /// Within a capture: it has no time, and only streams of that capture may wait for it.
    Captured(Arc<Record>),
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        context.call(|driver| unsafe { driver.cuEventCreate(&raw mut handle, 0) })?;
        Ok(Self { context: context.clone(), handle: Handle(handle), state: Mutex::new(State::Never) })
    }

    /// Records it at the end of what the stream has so far. What was recorded before is forgotten.
    ///
    /// # Errors
    /// The call fails.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.record_holding(stream, &stream.inner.lock())
    }

    /// As [`Self::record`], by who holds the lock on the stream's capture.
    pub(crate) fn record_holding(&self, stream: &Stream, capture: &Option<Arc<Record>>) -> Result<()> {
        // SAFETY: both handles are of objects that are alive.
        self.context.call(|driver| unsafe { driver.cuEventRecord(self.handle.0, stream.inner.handle()) })?;
        *lock(&self.state) =
            capture.as_ref().map_or(State::Recorded, |record| State::Captured(record.clone()));
        Ok(())
    }

    /// Waits until the stream has come to it.
    ///
    /// # Errors
    /// It was never recorded, or in a capture; a failure of the work before it.
    pub fn synchronize(&self) -> Result<()> {
        self.outside_capture("waiting for an event")?;
        // SAFETY: the handle is of an event that this owns.
        self.context.call(|driver| unsafe { driver.cuEventSynchronize(self.handle.0) })
    }

    /// Whether the stream has come to it.
    ///
    /// # Errors
    /// As [`Self::synchronize`].
    pub fn is_done(&self) -> Result<bool> {
        self.outside_capture("asking for an event")?;
        // SAFETY: the handle is of an event that this owns.
        match self.context.call(|driver| unsafe { driver.cuEventQuery(self.handle.0) }) {
            Ok(()) => Ok(true),
            Err(DriverError::Call { code: 600, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The time from `start` to this event on the device. Both must be done; the resolution is half a microsecond.
    ///
    /// # Errors
    /// As [`Self::synchronize`]; error 600 where one is not done.
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        start.outside_capture("measuring from an event")?;
        self.outside_capture("measuring to an event")?;
        let mut milliseconds = 0f32;
        // SAFETY: both handles are of events that are alive, the pointer is to a local that outlives the call.
        self.context.call(|driver| unsafe {
            driver.cuEventElapsedTime(&raw mut milliseconds, start.handle.0, self.handle.0)
        })?;
        // Streams are unordered, so that what was called the start may be the later one.
        Ok(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default())
    }

    fn outside_capture(&self, operation: &'static str) -> Result<()> {
        match *lock(&self.state) {
            State::Never => Err(DriverError::NotRecorded { operation }),
            State::Recorded => Ok(()),
            State::Captured(_) => {
                let remedy = "record it again outside of the capture, for a captured event has no time";
                Err(DriverError::InCapture { operation, remedy })
            }
        }
    }

    /// Makes the stream wait for it. A stream that waits for an event of a capture takes part in it.
    pub(crate) fn wait_on(&self, stream: &Arc<StreamInner>) -> Result<()> {
        let operation = "waiting for an event on a stream";
        if !Arc::ptr_eq(&self.context, &stream.context) {
            let [stream, other] = [&stream.context, &self.context].map(|context| context.device.ordinal);
            return Err(DriverError::OtherDevice { stream, other });
        }
        let state = lock(&self.state).clone();
        let mut capture = stream.lock();
        let joined = match (&state, &*capture) {
            (State::Never, _) => return Err(DriverError::NotRecorded { operation }),
            (State::Recorded, None) => None,
            (State::Recorded, Some(_)) => {
                let remedy = "record it within the capture, or wait before Capture::begin";
                return Err(DriverError::InCapture { operation, remedy });
            }
            (State::Captured(record), Some(own)) if Arc::ptr_eq(record, own) => None,
            (State::Captured(_), Some(_)) => {
                let remedy = "the event belongs to another capture";
                return Err(DriverError::InCapture { operation, remedy });
            }
            (State::Captured(record), None) if record.is_over() => {
                let remedy = "the capture of the event is over; record it again";
                return Err(DriverError::InCapture { operation, remedy });
            }
            (State::Captured(record), None) => Some(record.clone()),
        };
        // SAFETY: both handles are of objects that are alive.
        let result = self
            .context
            .call(|driver| unsafe { driver.cuStreamWaitEvent(stream.handle(), self.handle.0, 0) });
        if let (Err(error), Some(record)) = (&result, joined.as_ref().or(capture.as_ref())) {
            record.failed(error);
        }
        result?;
        if let Some(record) = joined {
            record.join(stream);
            *capture = Some(record);
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing that holds it is left; where it is in flight, it goes when reached.
        self.context.call_in_drop("event", |driver| unsafe { driver.cuEventDestroy_v2(self.handle.0) });
    }
}
