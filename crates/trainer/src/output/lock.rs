//! The lock on an output directory, which keeps a second run out of it. The system holds it for an open file and
//! lets go of it when the process ends, however it ends: a file that a crash left behind locks nothing.
//!
//! The file stays: if the run that ends removed it, another could hold the removed one and a third a new one.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use super::OutputError;
use crate::event::{Event, EventSink};
use crate::{Error, Result};

/// The name of the file. It holds the number of the process that locked it last.
const NAME: &str = ".lock";

/// Keeps other runs out of a directory until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets other runs in"]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks a directory that exists. Where the file system has no locks, an event says so.
    ///
    /// # Errors
    /// Another run holds it, or the file cannot be written.
    pub(super) fn take(directory: &Path, events: &mut dyn EventSink) -> Result<Self> {
        let path = directory.join(NAME);
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        if !is_locked(file.try_lock(), directory)? {
            let what = format!(
                "the file system of {} has no locks: see to it that no other run writes there",
                directory.display()
            );
            events.emit(Event::Assumed { what });
        }
        file.set_len(0).map_err(Error::io("write", &path))?;
        writeln!(file, "{}", std::process::id()).map_err(Error::io("write", &path))?;
        Ok(Self { _file: file })
    }

    /// Whether a run could lock a directory now. Changes nothing there.
    ///
    /// # Errors
    /// Another run holds it, or the system does not say.
    pub(super) fn check(directory: &Path) -> Result<()> {
        let path = directory.join(NAME);
        match File::open(&path) {
            Ok(file) => is_locked(file.try_lock(), directory).map(|_| ()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }
}

/// Whether an attempt to lock `directory` did so; false where the file system has no locks.
fn is_locked(attempt: Result<(), TryLockError>, directory: &Path) -> Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            let process =
                holder(directory).map_or_else(String::new, |process| format!(" (process {process})"));
            Err(OutputError::InUse { path: directory.into(), process }.into())
        }
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(false),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", directory.join(NAME))(error)),
    }
}

/// The process that locked a directory, where that can be known.
fn holder(directory: &Path) -> Option<u32> {
    // A lock may keep others from reading too, as on Windows: the message does without the number then.
    std::fs::read_to_string(directory.join(NAME)).ok()?.trim().parse().ok()
}

/// Some file systems shared over a network.
fn has_no_locks(error: &io::Error) -> bool {
    const NO_LOCKS_AVAILABLE: i32 = 37; // ENOLCK of Linux
    error.kind() == ErrorKind::Unsupported
        || (cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_LOCKS_AVAILABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Collected;

    #[test]
    fn one_holds_it_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Collected::default();
        Lock::check(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "looking leaves nothing");
        let lock = Lock::take(dir.path(), &mut events).unwrap();
        let in_use = format!(
            "output_dir = {} is in use by another run (process {}); wait until that ends, or give another directory",
            dir.path().display(),
            std::process::id()
        );
        assert_eq!(Lock::check(dir.path()).unwrap_err().to_string(), in_use);
        assert_eq!(Lock::take(dir.path(), &mut events).unwrap_err().to_string(), in_use);
        drop(lock);
        Lock::check(dir.path()).unwrap();
        // The file is still there, as after a crash, and locks nothing.
        std::fs::write(dir.path().join(NAME), "4000000000\n").unwrap();
        drop(Lock::take(dir.path(), &mut events).unwrap());
        assert_eq!(holder(dir.path()), Some(std::process::id()));
        assert_eq!(events.0, []);
    }

    #[test]
    fn a_system_without_locks_is_no_obstacle_and_other_failures_are_told() {
        let attempt = |error| is_locked(Err(TryLockError::Error(error)), Path::new("out"));
        assert!(!attempt(ErrorKind::Unsupported.into()).unwrap());
        let message = attempt(io::Error::other("broken")).unwrap_err().to_string();
        assert_eq!(message, format!("cannot lock {}: broken", Path::new("out").join(NAME).display()));
    }
}
