//! Writing that a crash cannot spoil: content goes to a temporary name, is synced, and takes its real name by a
//! rename, so that a reader finds the old content or the new, never a part.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The ending of names that hold unfinished content. Whoever lists a directory skips them.
pub(crate) const UNFINISHED: &str = ".tmp";

/// Replaces a file, or makes it.
///
/// # Errors
/// The system refuses a step; the file is then as it was before.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let unfinished = unfinished(path);
    write_synced(&unfinished, content)?;
    rename(&unfinished, path)
}

/// Makes a directory with these files in it, all or nothing. What an interrupted attempt left is removed.
///
/// # Errors
/// `path` exists, or the system refuses a step.
pub(crate) fn create_directory(path: &Path, files: &[(&str, Vec<u8>)]) -> Result<()> {
    if path.exists() {
        let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(Error::io("create", path)(source));
    }
    let unfinished = unfinished(path);
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(Error::io("remove", &unfinished))?;
    }
    let outcome = fill(&unfinished, files).and_then(|()| rename(&unfinished, path));
    if outcome.is_err() {
        // A part is of no use, and where the disk is full it is in the way. The first failure is the one to tell;
        // what cannot be removed is skipped by readers and cleared by the next attempt.
        let _ = fs::remove_dir_all(&unfinished);
    }
    outcome
}

fn fill(directory: &Path, files: &[(&str, Vec<u8>)]) -> Result<()> {
    fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    for (name, content) in files {
        write_synced(&directory.join(name), content)?;
    }
    sync_directory(directory)
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(UNFINISHED);
    path.with_file_name(name)
}

fn write_synced(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(content).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("write", path))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io("create", to))?;
    sync_directory(to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// A rename survives a power failure only when its directory is synced too. Windows has no such call: opening a
/// directory as a file fails there, and the rename itself is journalled.
fn sync_directory(path: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(path).and_then(|directory| directory.sync_all()).map_err(Error::io("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step-000001");
        // What an interrupted attempt left does not count, and does not stay.
        fs::create_dir(dir.path().join("step-000001.tmp")).unwrap();
        fs::write(dir.path().join("step-000001.tmp/old"), "x").unwrap();
        create_directory(&path, &[("a", b"1".to_vec()), ("b", b"2".to_vec())]).unwrap();
        let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert!(!dir.path().join("step-000001.tmp").exists());
        assert!(create_directory(&path, &[]).is_err(), "nothing is overwritten");
        // A file that cannot be written leaves no directory.
        let other = dir.path().join("step-000002");
        assert!(create_directory(&other, &[("a", vec![]), ("no/such", vec![])]).is_err());
        assert!(!other.exists() && !dir.path().join("step-000002.tmp").exists());
    }

    // B101: the old file outlives a failed attempt to replace it.
    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        replace(&path, b"old").unwrap();
        // The temporary name is taken by a directory, so that it cannot be written.
        fs::create_dir(dir.path().join("file.tmp")).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::remove_dir(dir.path().join("file.tmp")).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
