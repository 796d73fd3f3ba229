//! Writing that a crash cannot spoil: content goes to a temporary name, is synced, and takes its real name by a
//! rename, so that a reader finds the old content or the new, never a part.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The ending of names that hold unfinished content.
const UNFINISHED: &str = ".tmp";

/// Replaces a file, or makes it.
///
/// # Errors
/// The system refuses a step; the file is then as it was before.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let unfinished = unfinished(path);
    write_synced(&unfinished, content)?;
    rename(&unfinished, path)
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
