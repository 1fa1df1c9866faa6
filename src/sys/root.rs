//! Where `/proc` and `/sys` live: at the host's, or below a directory that a
//! test has filled. With them goes who is meant by a pid there ([`Holds`]).

use std::path::{Path, PathBuf};

use super::holds::Holds;

/// The roots of the kernel's file systems.
#[derive(Clone, Debug)]
pub struct Root {
    proc: PathBuf,
    sys: PathBuf,
    holds: Holds,
}

impl PartialEq for Root {
    fn eq(&self, other: &Self) -> bool {
        (&self.proc, &self.sys) == (&other.proc, &other.sys)
    }
}

impl Eq for Root {}

impl Root {
    /// The host's own.
    pub fn host() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            holds: Holds::default(),
        }
    }

    /// `DIR/proc` and `DIR/sys`.
    pub fn at(dir: &Path) -> Self {
        Self {
            proc: dir.join("proc"),
            sys: dir.join("sys"),
            holds: Holds::default(),
        }
    }

    /// The same place, where nobody has said who is meant.
    pub(super) fn apart(&self) -> Self {
        Self {
            holds: Holds::default(),
            ..self.clone()
        }
    }

    /// The targets, as whoever finds them holds them.
    pub(super) fn holds(&self) -> &Holds {
        &self.holds
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
