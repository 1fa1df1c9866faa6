//! Where `/proc` and `/sys` live: at the host's, or below a directory that a
//! test has filled.

use std::path::{Path, PathBuf};

/// The roots of the kernel's file systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    proc: PathBuf,
    sys: PathBuf,
}

impl Root {
    /// The host's own.
    pub fn host() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
        }
    }

    /// `DIR/proc` and `DIR/sys`.
    pub fn at(dir: &Path) -> Self {
        Self {
            proc: dir.join("proc"),
            sys: dir.join("sys"),
        }
    }

    /// A path below `/proc`.
    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.proc.join(path)
    }

    /// A path below `/sys`.
    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sys.join(path)
    }
}

impl Default for Root {
    fn default() -> Self {
        Self::host()
    }
}
