//! How `/proc` and `/sys` are mounted, and what that keeps from us.
//!
//! **Problem.** Units and containers are hardened by mounts: `/sys` read-only
//! (`ProtectKernelTunables=`), `/proc` without other users' processes (`ProtectProc=`,
//! `hidepid=`) or without anything but processes (`ProcSubset=pid`). What fails then looks like a
//! kernel that lacks something, and another kernel is no remedy.
//!
//! **Approach.** Errors of files below them are explained here: by the mount that the
//! file is on, as `/proc/self/mountinfo` has it.

use std::fs;
use std::io;
use std::path::Path;

use super::root::Root;
use crate::ports::PortError;

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    point: String,
    kind: String,
    /// Of the mount and of its file system, joined by commas.
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        // "36 35 0:21 / /sys ro,nosuid - sysfs sysfs rw": any number of fields before the dash.
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(4);
        let point = unescaped(fields.next()?);
        let own = fields.next()?;
        let mut system = system.split(' ');
        let kind = system.next()?.to_owned();
        let of_system = system.nth(1).unwrap_or_default();
        Some(Self {
            point,
            kind,
            options: format!("{own},{of_system}"),
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|o| o == option)
    }

    /// The value of `key=value`.
    fn value(&self, key: &str) -> Option<&str> {
        let mut options = self.options.split(',');
        options.find_map(|o| o.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Blanks are written as `\040`.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The mount that a path is on: of the innermost ones the last, which covers the others.
fn mount_of(root: &Root, path: &Path) -> Option<Mount> {
    let text = fs::read_to_string(root.proc("self/mountinfo")).ok()?;
    let over = text
        .lines()
        .filter_map(Mount::parse)
        .filter(|mount| path.starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.len())
}

/// Whether an error says that the file system may not be written to.
pub(super) fn is_read_only(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// A file that cannot be written because of its mount.
pub(super) fn read_only(root: &Root, path: &Path) -> PortError {
    let mount = mount_of(root, path).map_or_else(|| "its mount".to_owned(), |m| m.point);
    PortError::Forbidden {
        what: format!("{}: {mount} is mounted read-only", path.display()),
        remedy: "set ProtectKernelTunables=no in the unit, or mount /sys writable in the container"
            .into(),
    }
}

/// A file of `/proc` that is not there: what to do about it.
pub(super) fn absent_in_proc(root: &Root, config: &str) -> String {
    if has_subset(root) {
        "/proc is mounted with subset=pid, which hides it: set ProcSubset=all in the unit".into()
    } else {
        format!("use a kernel with {config}")
    }
}

/// Whether `/proc` has processes alone.
fn has_subset(root: &Root) -> bool {
    let mount = mount_of(root, &root.proc("kpageflags"));
    mount.is_some_and(|m| m.kind == "proc" && m.value("subset") == Some("pid"))
}

/// How `/proc` hides the processes of others from us, if it does: the option, as the kernel shows it.
pub(super) fn hides_processes(root: &Root) -> Option<String> {
    let mount = mount_of(root, &root.proc("self"))?;
    let hidden = mount
        .value("hidepid")
        .filter(|v| !matches!(*v, "0" | "off"))?;
    Some(format!("hidepid={hidden}"))
}

/// Whether a directory is on a mount that may not be written to.
pub(super) fn is_read_only_mount(root: &Root, path: &Path) -> Option<String> {
    let mount = mount_of(root, path).filter(|m| m.has("ro"))?;
    Some(mount.point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mountinfo: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().display().to_string().replace(' ', "\\040");
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let text = mountinfo.replace("HERE", &here);
        fs::write(dir.path().join("proc/self/mountinfo"), text).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn a_read_only_file_names_the_innermost_mount() {
        let (dir, root) = at("20 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n\
             21 20 0:20 / HERE/sys rw - sysfs sysfs rw\n\
             22 20 0:20 / HERE/sys/kernel ro,nosuid shared:7 master:2 - sysfs sysfs rw\n");
        let path = root.sys("kernel/mm/page_idle/bitmap");
        let text = read_only(&root, &path).to_string();
        let mount = dir.path().join("sys/kernel");
        let named = format!("{} is mounted read-only", mount.display());
        assert!(text.contains(&named), "{text}");
        assert!(text.contains("ProtectKernelTunables=no"), "{text}");
        assert_eq!(
            is_read_only_mount(&root, &path),
            Some(mount.display().to_string())
        );
        assert_eq!(is_read_only_mount(&root, &root.sys("devices")), None);
    }

    #[test]
    fn proc_that_hides_is_told_from_a_kernel_that_lacks() {
        let (_dir, root) =
            at("22 20 0:20 / HERE/proc rw - proc proc rw,hidepid=invisible,subset=pid\n");
        assert_eq!(hides_processes(&root), Some("hidepid=invisible".into()));
        assert!(absent_in_proc(&root, "CONFIG_X=y").contains("ProcSubset=all"));
        let (_dir, root) = at("22 20 0:20 / HERE/proc rw - proc proc rw,hidepid=0\n");
        assert_eq!(hides_processes(&root), None);
        assert!(absent_in_proc(&root, "CONFIG_X=y").contains("CONFIG_X=y"));
    }
}
