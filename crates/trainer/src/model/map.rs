//! Memory-mapped files: the one place of this crate with `unsafe` code. Tensors are read straight from the page
//! cache, and pages that were read are given back, so that a model larger than memory can be converted.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};

/// A whole file, mapped for reading. `None` is an empty file, which systems refuse to map.
#[derive(Debug)]
pub(crate) struct Map {
    mmap: Option<Mmap>,
    path: PathBuf,
}

impl Map {
    /// Maps a file.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("read", path))?.len();
        let mmap = if length == 0 {
            None
        } else {
            // SAFETY: The mapping is read-only and lives as long as `self`. That nobody changes or shortens the file
            // meanwhile cannot be enforced and is the user's part: model files are not edited while they are read.
            // A changed byte would be a changed weight, every bit pattern being a valid `u8`; a shortened file ends
            // the process with SIGBUS and corrupts nothing.
            Some(unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?)
        };
        Ok(Self { mmap, path: path.to_path_buf() })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.mmap.as_deref().unwrap_or(&[])
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that these bytes are not needed soon, so that they leave this process's resident set. They
    /// can be read again, from the page cache or the disk.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(mmap) = &self.mmap
            && range.start < range.end
            && range.end <= mmap.len()
        {
            // SAFETY: DONTNEED would lose data of private or anonymous mappings; this one is shared, read-only and
            // backed by a file (see `open`), so that a later access reads the same bytes again.
            let advised = unsafe {
                mmap.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            if let Err(error) = advised {
                tracing::debug!(path = %self.path.display(), %error, "pages could not be given back");
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
