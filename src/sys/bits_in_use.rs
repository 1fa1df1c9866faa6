//! Whether soft-dirty bits of a process may be cleared, or are somebody else's.
//!
//! **Problem.** There is one such bit per page. Who clears it takes from others what they knew: an incremental dump of
//! CRIU then lacks pages, and a garbage collector that asks the kernel what was written (Boehm's does) frees
//! what is in use. And where the process runs virtual machines, KVM drops all that it has mapped
//! for these, which every page is faulted in again for.
//!
//! **Approach.** What a process has open tells of virtual machines, and of who looks at its own bits; looked at each time.
//! Who was once seen to look is let alone for good, since it may do so again for a moment.
//! Where nobody has said that the bits are ours, a machine that has CRIU is left alone, and so is a process
//! some of whose bits were cleared before we were there: the kernel sets all of a new one.
//!
//! **Limits.** Another tool that begins with it later, from outside of the process, is not seen. A process that an
//! earlier daemon asked, and the child of one that was asked, is let alone as well: that the bits were cleared by
//! us is written down nowhere.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::pagemap::{Pagemap, is_gone};
use super::root::Root;
use super::targets::maps;
use crate::units::{PAGE_BYTES, Pid, VirtAddr};

/// Who has more open than that is not looked through.
const FILES: usize = 4096;
/// Private mappings that are looked at, and pages of each.
const MAPPINGS: usize = 256;
const PAGES: u64 = 64;
/// Where CRIU is where it is installed.
const CRIU: [&str; 4] = [
    "usr/sbin/criu",
    "usr/bin/criu",
    "usr/local/sbin/criu",
    "usr/local/bin/criu",
];

/// Why a process is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InUse {
    /// As long as it is so.
    Now(&'static str),
    /// As long as it lives.
    ForGood(&'static str),
}

/// Why a process is not asked by what it has open, if anything there says so.
///
/// # Errors
/// What the kernel says of its list of open files.
pub(super) fn by_open_files(root: &Root, pid: Pid) -> io::Result<Option<InUse>> {
    for (count, entry) in fs::read_dir(root.proc(format!("{pid}/fd")))?.enumerate() {
        if count == FILES {
            let why = "it has too many files open to look through them";
            return Ok(Some(InUse::Now(why)));
        }
        let file = match entry.and_then(|entry| fs::read_link(entry.path())) {
            Ok(file) => file,
            // One that was closed meanwhile is none.
            Err(error) if is_gone(&error) => continue,
            Err(_) => return Ok(Some(InUse::Now("its open files cannot be looked through"))),
        };
        let file = file.as_os_str().as_bytes();
        if file == b"anon_inode:kvm-vm" {
            return Ok(Some(InUse::Now("it runs a virtual machine")));
        }
        if file.ends_with(b"/clear_refs") || file.ends_with(b"/pagemap") {
            let why = "it asks the kernel what was written itself";
            return Ok(Some(InUse::ForGood(why)));
        }
    }
    Ok(None)
}

/// Whether CRIU is installed below this directory.
pub(super) fn has_criu(root: &Path) -> bool {
    CRIU.iter().any(|path| root.join(path).exists())
}

/// Whether some bits of a process that we never asked are cleared: of what begins its private, writable mappings.
///
/// # Errors
/// What the kernel says of its mappings and its page map.
pub(super) fn were_cleared(root: &Root, pid: Pid) -> io::Result<bool> {
    let text = fs::read(root.proc(format!("{pid}/maps")))?;
    let pagemap = Pagemap::open(root, pid)?;
    let mut entries = Vec::new();
    let private = maps::lines(&text).filter(|line| line.perms[1] == b'w' && line.perms[3] == b'p');
    for line in private.take(MAPPINGS) {
        let begins = VirtAddr(line.range.start().0.saturating_add(PAGES * PAGE_BYTES));
        let range = line
            .range
            .split_at(begins)
            .map_or(line.range, |parts| parts.0);
        pagemap.read(range, &mut entries)?;
        let is_cleared = |entry: &super::pagemap::Entry| entry.present() && !entry.soft_dirty();
        if entries.iter().any(is_cleared) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_a_process_has_open_tells() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let files = dir.path().join("proc/7/fd");
        fs::create_dir_all(&files).unwrap();
        let told = |number: u32, to: &str| {
            symlink(to, files.join(number.to_string())).unwrap();
            let why = by_open_files(&root, Pid(7)).unwrap();
            if why.is_some() {
                fs::remove_file(files.join(number.to_string())).unwrap();
            }
            why
        };
        let now = |why: Option<InUse>, has: &str| matches!(why, Some(InUse::Now(why)) if why.contains(has));
        let for_good =
            |why: Option<InUse>| matches!(why, Some(InUse::ForGood(why)) if why.contains("itself"));
        assert_eq!(told(0, "/dev/null"), None);
        assert_eq!(told(1, "socket:[123]"), None);
        assert_eq!(told(2, "anon_inode:kvm-vcpu:0"), None);
        assert!(now(told(3, "anon_inode:kvm-vm"), "virtual"));
        assert!(for_good(told(4, "/proc/7/clear_refs")));
        assert!(for_good(told(5, "/proc/7/pagemap")));
        // As the kernel's that is too long to be told.
        fs::write(files.join("6"), "").unwrap();
        assert!(now(by_open_files(&root, Pid(7)).unwrap(), "cannot"));
        fs::remove_file(files.join("6")).unwrap();
        for number in 7..7 + FILES {
            symlink("/dev/null", files.join(number.to_string())).unwrap();
        }
        assert!(now(by_open_files(&root, Pid(7)).unwrap(), "too many"));
        assert!(by_open_files(&root, Pid(8)).is_err(), "gone");
    }

    #[test]
    fn criu_is_where_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_criu(dir.path()));
        fs::create_dir_all(dir.path().join("usr/sbin")).unwrap();
        fs::write(dir.path().join("usr/sbin/criu"), "").unwrap();
        assert!(has_criu(dir.path()));
    }
}
