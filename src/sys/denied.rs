//! System calls that are denied to us whatever they ask for.
//!
//! **Problem.** A seccomp filter (a container's, or a unit's `SystemCallFilter=`) answers `EPERM`
//! or `ENOSYS`, as the kernel does where a right or a feature is missing. Who tells them not
//! apart names the wrong remedy, and tries for ever.
//!
//! **Approach.** The same call is tried on a page of our own, for which no right is needed.

use std::fs;
use std::io;

use super::own_pages::own_pid;
use super::root::Root;

/// Whether a call that failed like this may be denied altogether.
pub(super) fn may_be(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

/// Who denies it, for an operator.
pub(super) fn by_whom(root: &Root) -> &'static str {
    let status = fs::read_to_string(root.proc(own_pid().to_string()).join("status"));
    if has_filter(&status.unwrap_or_default()) {
        "a seccomp filter (of a container, or a unit's SystemCallFilter=)"
    } else {
        "the kernel or a security module"
    }
}

/// Whether a status says that a seccomp filter is in force: mode 2.
fn has_filter(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_told_from_none() {
        assert!(has_filter("Name:\ta\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_filter("Seccomp:\t0\nSeccomp_filters:\t0\n") && !has_filter(""));
        assert!(may_be(&io::Error::from_raw_os_error(libc::ENOSYS)));
        assert!(!may_be(&io::Error::from_raw_os_error(libc::EACCES)));
    }
}
