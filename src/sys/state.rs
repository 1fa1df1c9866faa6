//! A note of the kernel settings that we are about to make, so that the next
//! start can undo them if we are killed.
//!
//! The note is written aside and renamed *before* the setting is made, and
//! removed after it is undone. It names its writer by boot, pid and start time,
//! so that a note of an earlier boot, or of a daemon that still runs, is
//! recognised as such.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::own_pages::own_pid;
use super::root::Root;
use super::targets::Stat;
use crate::units::Pid;

const FILE: &str = "kernel-settings.json";

/// Who wrote a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    boot_id: String,
    pid: Pid,
    /// Clock ticks from boot to its start: tells it from a later process with
    /// the same pid.
    started: u64,
}

impl Owner {
    /// This process.
    pub(super) fn this(root: &Root) -> Self {
        Self {
            boot_id: boot_id(root),
            pid: own_pid(),
            started: started(root, own_pid()).unwrap_or(0),
        }
    }

    /// Whether it wrote before the machine was last started.
    pub(super) fn is_of_earlier_boot(&self, root: &Root) -> bool {
        self.boot_id != boot_id(root)
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&self, root: &Root) -> bool {
        !self.is_of_earlier_boot(root) && started(root, self.pid) == Some(self.started)
    }

    /// Its process.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }
}

/// What is in the kernel because of us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) owner: Owner,
    /// One kdamond, whose scheme carries this number as its largest size.
    pub(super) kdamond_mark: u64,
}

/// The directory that holds the note.
#[derive(Clone, Debug)]
pub(super) struct StateDir {
    dir: PathBuf,
}

impl StateDir {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the note is.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// The note; `None` when there is none.
    ///
    /// # Errors
    /// What the file system says; `InvalidData` when it is not ours to read.
    pub(super) fn read(&self) -> io::Result<Option<Note>> {
        match fs::read(self.path()) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes the note, whole or not at all. Makes the directory if need be.
    pub(super) fn write(&self, note: &Note) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let aside = self.dir.join(format!("{FILE}.new"));
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec(note)?)?;
        file.sync_all()?;
        fs::rename(&aside, self.path())
    }

    /// Removes the note; no error when there is none.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

fn boot_id(root: &Root) -> String {
    fs::read_to_string(root.proc("sys/kernel/random/boot_id"))
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// When a process was started, in clock ticks since boot; `None` where there is none, or
/// only a zombie.
fn started(root: &Root, pid: Pid) -> Option<u64> {
    let stat = Stat::of(root, pid).filter(|stat| !stat.is_dead())?;
    Some(stat.start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_and_knows_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("run"));
        let root = Root::host();
        assert_eq!(state.read().unwrap(), None);
        state.remove().unwrap();
        let note = Note {
            owner: Owner::this(&root),
            kdamond_mark: u64::MAX - 7,
        };
        state.write(&note).unwrap();
        assert_eq!(state.read().unwrap(), Some(note.clone()));
        assert!(note.owner.is_alive(&root));
        let mut later = note.owner.clone();
        later.started += 1;
        assert!(!later.is_alive(&root), "another process with this pid");
        let mut earlier = note.owner;
        earlier.boot_id = "another".into();
        assert!(earlier.is_of_earlier_boot(&root) && !earlier.is_alive(&root));
        state.remove().unwrap();
        assert_eq!(state.read().unwrap(), None);
    }

    #[test]
    fn a_broken_note_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let error = StateDir::new(dir.path()).read().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_command_with_brackets_does_not_shift_the_fields() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        let fields: Vec<_> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("7 (a b) c) S {}\n", fields.join(" "));
        fs::write(dir.path().join("proc/7/stat"), stat).unwrap();
        assert_eq!(started(&Root::at(dir.path()), Pid(7)), Some(22));
        // Killed, and its parent has not asked yet: its kernel settings are to be undone.
        let stat = format!("7 (a b) c) Z {}\n", fields.join(" "));
        fs::write(dir.path().join("proc/7/stat"), stat).unwrap();
        assert_eq!(started(&Root::at(dir.path()), Pid(7)), None);
    }
}
