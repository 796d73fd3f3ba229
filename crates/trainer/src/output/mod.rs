//! The output directory of a run: what is in it, and whether a run may begin in it. It is looked at before
//! anything is loaded and made only when everything is ready, so that a run that cannot start leaves nothing. From
//! then on it is locked, and it is looked at again: another run may have come and gone in the meantime.

mod lock;

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, CheckpointError};
use crate::config::Resume;
use crate::event::EventSink;
use crate::report::{EVENTS, METRICS};
use crate::{Error, Result};

pub use lock::Lock;

/// A run cannot write its results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// There is something that is no directory.
    #[error("output_dir = {} is not a directory; give another path", path.display())]
    NotADirectory {
        /// What was given.
        path: PathBuf,
    },
    /// The system does not let us write there.
    #[error("output_dir = {} cannot be written to: {source}; change its permissions or give another path", path.display())]
    NotWritable {
        /// What was given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another run's results are there.
    #[error(
        "output_dir = {} already holds a run ({found}), and nothing is overwritten; give another directory, or go on \
         with that run by train.resume = \"auto\"",
        path.display()
    )]
    HoldsARun {
        /// What was given.
        path: PathBuf,
        /// What was found.
        found: &'static str,
    },
    /// A finished run's results are there, and nothing to go on from.
    #[error(
        "output_dir = {} holds a finished adapter and no checkpoint to resume from; give another directory",
        path.display()
    )]
    NothingToResume {
        /// What was given.
        path: PathBuf,
    },
    /// Another run writes there now.
    #[error(
        "output_dir = {} is in use by another run{process}; wait until that ends, or give another directory",
        path.display()
    )]
    InUse {
        /// What was given.
        path: PathBuf,
        /// Which process that is, in parentheses, or nothing where the system does not say.
        process: String,
    },
    /// Another run has written there since this one looked.
    #[error("output_dir = {} was changed by another run while this one was loading; start again", path.display())]
    Changed {
        /// What was given.
        path: PathBuf,
    },
}

/// The output directory of a run, checked.
#[derive(Debug, Clone)]
pub struct Output {
    path: PathBuf,
    wish: Option<Resume>,
    /// The checkpoint to go on from.
    pub resume: Option<PathBuf>,
}

impl Output {
    /// Looks whether a run may begin in `path`, without changing anything there.
    ///
    /// # Errors
    /// It is no directory, cannot be written to, is in use, or holds a run that is not to be resumed.
    pub fn check(path: &Path, wish: Option<&Resume>) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(OutputError::NotADirectory { path: path.into() }.into());
        }
        check_writable(path)?;
        Lock::check(path)?;
        Ok(Self { path: path.into(), wish: wish.cloned(), resume: start(path, wish)? })
    }

    /// Makes the directory, if it is not there, and keeps other runs out of it until the lock is dropped.
    ///
    /// # Errors
    /// The system refuses, or another run is writing there or has done so since [`check`](Self::check).
    pub fn create(&self, events: &mut dyn EventSink) -> Result<Lock> {
        let create = |path: &Path| fs::create_dir_all(path).map_err(Error::io("create", path));
        create(&self.path)?;
        let lock = Lock::take(&self.path, events)?;
        if start(&self.path, self.wish.as_ref())? != self.resume {
            return Err(OutputError::Changed { path: self.path.clone() }.into());
        }
        create(&self.checkpoints())?;
        Ok(lock)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where checkpoints go.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Where the trained adapter goes.
    pub fn adapter(&self) -> PathBuf {
        self.path.join("adapter")
    }
}

/// The checkpoint from which a run in `path` begins, if it does not begin anew.
///
/// # Errors
/// The directory holds a run that is not to be resumed, or not from there.
fn start(path: &Path, wish: Option<&Resume>) -> Result<Option<PathBuf>> {
    let found = ["checkpoints", METRICS, EVENTS, "adapter"].into_iter().find(|name| path.join(name).exists());
    let newest = checkpoint::list(&path.join("checkpoints"))?.pop().map(|(_, path)| path);
    match (wish, found, newest) {
        (None, Some(found), _) => Err(OutputError::HoldsARun { path: path.into(), found }.into()),
        (None, None, _) => Ok(None),
        (Some(Resume::Auto), _, None) if path.join("adapter").exists() => {
            Err(OutputError::NothingToResume { path: path.into() }.into())
        }
        (Some(Resume::Auto), _, newest) => Ok(newest),
        (Some(Resume::Path(from)), _, newest) => match newest.filter(|newest| is_later(newest, from)) {
            Some(newest) => Err(CheckpointError::NotTheNewest { path: from.clone(), newest }.into()),
            None => Ok(Some(from.clone())),
        },
    }
}

/// Whether `newest` is another checkpoint than `from`, of a step that is not before it. Names are compared, for a
/// checkpoint's name is its step.
fn is_later(newest: &Path, from: &Path) -> bool {
    let same = matches!((newest.canonicalize(), from.canonicalize()), (Ok(a), Ok(b)) if a == b);
    !same && newest.file_name() >= from.file_name()
}

/// Tries to write a file where the directory is, or, if it is not there yet, where it would be made.
fn check_writable(path: &Path) -> Result<(), OutputError> {
    let mut existing = path;
    while !existing.exists() {
        existing = match existing.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
    }
    match tempfile::tempfile_in(existing) {
        Ok(_) => Ok(()),
        Err(source) => Err(OutputError::NotWritable { path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Collected;

    fn refusal(path: &Path, resume: Option<&Resume>) -> String {
        Output::check(path, resume).expect_err("must be refused").to_string()
    }

    #[test]
    fn checking_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let output = Output::check(&path, None).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let _lock = output.create(&mut Collected::default()).unwrap();
        assert!(output.checkpoints().is_dir());
    }

    // Both look before either writes: the second to begin finds the first at work, or what it has done.
    #[test]
    fn of_two_runs_that_looked_at_once_one_begins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let auto = Some(&Resume::Auto);
        let (first, second) = (Output::check(&path, None).unwrap(), Output::check(&path, None).unwrap());
        let third = Output::check(&path, auto).unwrap();
        let begin = |output: &Output| output.create(&mut Collected::default());
        let lock = begin(&first).unwrap();
        for other in [&second, &third] {
            let message = begin(other).unwrap_err().to_string();
            assert!(message.contains("is in use by another run"), "{message}");
        }
        assert!(refusal(&path, auto).contains("is in use by another run"));
        fs::create_dir(first.checkpoints().join("step-000003")).unwrap();
        drop(lock);
        let message = begin(&second).unwrap_err().to_string();
        assert!(message.contains("already holds a run (checkpoints)"), "{message}");
        let message = begin(&third).unwrap_err().to_string();
        assert!(message.ends_with("was changed by another run while this one was loading; start again"));
    }

    #[test]
    fn a_file_or_a_place_below_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(refusal(&file, None).ends_with("is not a directory; give another path"));
        let below = refusal(&file.join("out"), None);
        assert!(below.contains("cannot be written to: "), "{below}");
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }

    #[test]
    fn a_directory_that_holds_a_run_is_refused_unless_it_is_resumed() {
        for name in ["checkpoints", "metrics.jsonl", "events.jsonl", "adapter"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("notes.txt"), "of the user").unwrap();
            Output::check(dir.path(), None).unwrap();
            fs::create_dir(dir.path().join(name)).unwrap();
            let refused = refusal(dir.path(), None);
            assert!(refused.contains(&format!("already holds a run ({name})")), "{refused}");
            assert!(refused.contains("train.resume = \"auto\""), "{refused}");
        }
    }

    #[test]
    fn auto_takes_the_newest_checkpoint_and_never_an_unfinished_one() {
        let dir = tempfile::tempdir().unwrap();
        let auto = Some(&Resume::Auto);
        assert_eq!(Output::check(dir.path(), auto).unwrap().resume, None);
        for name in ["step-000002", "step-000010", "step-000011.tmp"] {
            fs::create_dir_all(dir.path().join("checkpoints").join(name)).unwrap();
        }
        let output = Output::check(dir.path(), auto).unwrap();
        assert_eq!(output.resume, Some(output.checkpoints().join("step-000010")));
        // From the older one only where the later one is away.
        let older = Resume::Path(output.checkpoints().join("step-000002"));
        assert!(refusal(dir.path(), Some(&older)).contains("step-000002 is older than"));
        fs::remove_dir(output.checkpoints().join("step-000010")).unwrap();
        let output = Output::check(dir.path(), Some(&older)).unwrap();
        assert_eq!(output.resume, Some(output.checkpoints().join("step-000002")));
    }

    #[test]
    fn a_finished_adapter_without_checkpoints_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("adapter")).unwrap();
        assert!(
            refusal(dir.path(), Some(&Resume::Auto)).contains("holds a finished adapter and no checkpoint")
        );
    }
}
