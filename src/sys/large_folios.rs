//! How small the large folios of anonymous memory may be at present.
//!
//! Where the kernel has made none but whole huge pages, as is usual, the flags of one
//! frame tell what those of 512 would. `Documentation/admin-guide/mm/transhuge.rst`:
//! `hugepages-<size>kB/enabled` since Linux 6.8, `stats/nr_anon` since 6.13.

use std::fs;
use std::path::Path;

use super::root::Root;
use super::text;
use crate::units::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// log2 of the pages of the smallest folio of several pages that anonymous memory may
/// have: at least 2, at most that of a huge page. The kernel makes none of two pages, which
/// would lack the place for a list of those to be split; `hugepages-8kB` is of shared memory.
pub(super) fn smallest_anonymous_order(root: &Root) -> u8 {
    let sizes = fs::read_dir(root.sys("kernel/mm/transparent_hugepage"));
    let in_use = sizes.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = kib.strip_suffix("kB")?.parse().ok()?;
        let bytes = kib.checked_mul(1024).filter(|b| b.is_power_of_two())?;
        let is_smaller = (PAGE_BYTES * 4..HUGE_PAGE_BYTES).contains(&bytes);
        (is_smaller && may_be_there(&entry.path())).then(|| order(bytes))
    });
    in_use.min().unwrap_or(order(HUGE_PAGE_BYTES))
}

/// Folios of a size are there, or will be, or nobody knows.
fn may_be_there(size: &Path) -> bool {
    let enabled = text::read(&size.join("enabled"));
    let is_off = enabled.is_ok_and(|text| text.contains("[never]"));
    !is_off || text::read_number(&size.join("stats/nr_anon")) != Some(0)
}

fn order(bytes: u64) -> u8 {
    u8::try_from((bytes / PAGE_BYTES).ilog2()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_off_and_unused_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(smallest_anonymous_order(&root), 9, "none known: before 6.8");
        let size = |kib: u32, enabled: &str, count: Option<u32>| {
            let thp = dir.path().join("sys/kernel/mm/transparent_hugepage");
            let stats = thp.join(format!("hugepages-{kib}kB/stats"));
            fs::create_dir_all(&stats).unwrap();
            let _ = fs::remove_file(stats.join("nr_anon"));
            if let Some(count) = count {
                fs::write(stats.join("nr_anon"), format!("{count}\n")).unwrap();
            }
            fs::write(stats.parent().unwrap().join("enabled"), enabled).unwrap();
        };
        let (off, on) = (
            "always inherit madvise [never]\n",
            "always inherit [madvise] never\n",
        );
        size(2048, on, Some(7));
        size(64, off, Some(0));
        size(16, off, Some(0));
        // Without either file, as the kernel has it; nor would they matter.
        fs::create_dir_all(root.sys("kernel/mm/transparent_hugepage/hugepages-8kB/stats")).unwrap();
        assert_eq!(smallest_anonymous_order(&root), 9);
        size(8, on, Some(3));
        assert_eq!(smallest_anonymous_order(&root), 9);
        size(64, off, Some(1));
        assert_eq!(smallest_anonymous_order(&root), 4, "left from before");
        size(64, on, Some(0));
        assert_eq!(smallest_anonymous_order(&root), 4, "may come");
        size(16, off, None);
        assert_eq!(smallest_anonymous_order(&root), 2, "nobody counts");
    }
}
