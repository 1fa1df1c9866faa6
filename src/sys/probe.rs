//! What this host offers, tried by doing.
//!
//! A file that is there proves nothing: `/proc/PID/clear_refs` exists without
//! soft-dirty support, page frames read as 0 without a capability. So each
//! feature is used once, on pages of our own, and left as it was.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

use serde::Serialize;

use super::damon::{self, Space};
use super::kpageflags::KpageFlags;
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::Pfn;
use super::root::Root;
use super::{mover, page_idle, pager, referenced, soft_dirty};
use crate::ports::PortError;

/// Whether something can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Tried, and it works.
    Present,
    /// The kernel or machine does not have it.
    Missing,
    /// It is there but we may not.
    Forbidden,
    /// It is there but somebody else holds it.
    Busy,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Short stable name: `idle-page-tracking`, `damon-vaddr`, `move-pages`…
    pub name: &'static str,
    /// What came out.
    pub state: State,
    /// Whether hmkeeper can do nothing useful without it.
    pub required: bool,
    /// What was seen, in one line.
    pub detail: String,
    /// What the operator can do about it; empty when present.
    pub remedy: String,
}

impl Finding {
    fn present(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Present,
            required: false,
            detail: detail.into(),
            remedy: String::new(),
        }
    }

    fn lacking(
        name: &'static str,
        state: State,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            required: false,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    fn of_port(name: &'static str, tried: Result<String, PortError>) -> Self {
        match tried {
            Ok(detail) => Self::present(name, detail),
            Err(PortError::Missing { what, remedy }) => Self::lacking(
                name,
                State::Missing,
                format!("{what} is not available"),
                remedy,
            ),
            Err(PortError::Forbidden { what, remedy }) => Self::lacking(
                name,
                State::Forbidden,
                format!("{what}: permission denied"),
                remedy,
            ),
            Err(PortError::Busy { what, remedy }) => {
                Self::lacking(name, State::Busy, format!("{what} is in use"), remedy)
            }
            Err(error) => Self::lacking(
                name,
                State::Missing,
                error.to_string(),
                "it is there but does not work here: see the kernel's log, or use another kernel",
            ),
        }
    }

    fn of_io(name: &'static str, tried: io::Result<Result<String, String>>, remedy: &str) -> Self {
        match tried {
            Ok(Ok(detail)) => Self::present(name, detail),
            Ok(Err(detail)) => Self::lacking(name, State::Missing, detail, remedy),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Self::lacking(
                name,
                State::Forbidden,
                e.to_string(),
                "run as root, outside of a container that forbids it",
            ),
            Err(e) => Self::lacking(name, State::Missing, e.to_string(), remedy),
        }
    }
}

/// Tries everything. Leaves the kernel as it was.
pub fn probe(root: &Root) -> Vec<Finding> {
    let idle = Finding::of_port("idle-page-tracking", page_idle::try_own_page(root));
    let of_damon = |name, space| Finding::of_port(name, damon::try_own_page(root, space));
    let vaddr = of_damon("damon-vaddr", Space::Virtual);
    let paddr = of_damon("damon-paddr", Space::Physical);
    let referenced = Finding::of_port("clear-refs", referenced::try_own_pages(root));
    let mut findings = vec![
        sampler(&idle, &vaddr, &paddr, &referenced),
        move_pages(root).required(),
        memory_nodes(root),
        idle,
        vaddr,
        paddr,
        referenced,
        pagemap(root),
        kpageflags(root),
        soft_dirty(root),
        page_out(root),
        page_cache(root),
        pagemap_scan(root),
    ];
    findings.extend(capabilities(root));
    findings.push(other_movers(root));
    findings
}

/// The sampler that `auto` chooses.
fn sampler(idle: &Finding, vaddr: &Finding, paddr: &Finding, referenced: &Finding) -> Finding {
    let name = "sampler";
    let choices = [
        ("idle", idle, page_idle::RESOLUTION),
        ("damon", vaddr, Space::Virtual.resolution()),
        ("damon-paddr", paddr, Space::Physical.resolution()),
    ];
    let chosen = choices
        .into_iter()
        .find(|(_, finding, _)| finding.state == State::Present);
    let finding = if let Some((kind, _, resolution)) = chosen {
        Finding::present(name, format!("{kind}: {resolution}"))
    } else {
        // Whatever is nearest to working tells the remedy.
        let rank = |finding: &Finding| match finding.state {
            State::Present | State::Busy => 0,
            State::Forbidden => 1,
            State::Missing => 2,
        };
        let nearest = (choices.iter().map(|&(_, finding, _)| finding))
            .min_by_key(|finding| rank(finding))
            .unwrap_or(idle);
        let mut remedy = nearest.remedy.clone();
        if referenced.state == State::Present {
            remedy +=
                "; or, as a last resort, set profiling.sampler = \"referenced\" (see clear-refs)";
        }
        Finding::lacking(
            name,
            nearest.state,
            "neither idle-page tracking nor DAMON can be used",
            remedy,
        )
    };
    finding.required()
}

fn own_frame(root: &Root) -> io::Result<Option<(OwnPages, Pfn)>> {
    let own = OwnPages::new(1)?;
    let frame = own.frames(root)?.into_iter().next().flatten();
    Ok(frame.map(|pfn| (own, pfn)))
}

fn pagemap(root: &Root) -> Finding {
    let name = "pagemap-frames";
    match own_frame(root) {
        Ok(Some((_, pfn))) => {
            Finding::present(name, format!("a page of ours is in frame {:#x}", pfn.0))
        }
        Ok(None) => Finding::lacking(
            name,
            State::Forbidden,
            "page frames read as 0",
            "run with CAP_SYS_ADMIN",
        ),
        Err(e) => Finding::of_io(name, Err(e), "use a kernel with CONFIG_PROC_PAGE_MONITOR=y"),
    }
}

fn kpageflags(root: &Root) -> Finding {
    let tried = (|| {
        let flags = KpageFlags::open(root)?;
        let Some((_own, pfn)) = own_frame(root)? else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        let seen = flags.get(pfn)?;
        Ok(if seen.0 == 0 {
            Err(format!(
                "a page of ours, in frame {:#x}, has no flags",
                pfn.0
            ))
        } else {
            Ok(format!("flags of a page of ours: {:#x}", seen.0))
        })
    })();
    let remedy = "use a kernel with CONFIG_PROC_PAGE_MONITOR=y";
    Finding::of_io("kpageflags", tried, remedy)
}

fn move_pages(root: &Root) -> Finding {
    let tried = (|| {
        let own = OwnPages::new(1)?;
        let home = own.move_first(None)?;
        let others: Vec<i32> = nodes_with_memory(root)
            .into_iter()
            .filter(|&node| node != home)
            .collect();
        if others.is_empty() {
            return Ok(Ok(format!(
                "a page of ours is on node {home}, the only one with memory"
            )));
        }
        let mut refused = String::new();
        for node in others {
            match own
                .move_first(Some(node))
                .and_then(|_| own.move_first(None))
            {
                Ok(now) if now == node => {
                    return Ok(Ok(format!(
                        "a page of ours moved from node {home} to {node}"
                    )));
                }
                Ok(now) => refused = format!("moved to node {node} but is on {now}"),
                Err(e) => refused = format!("to node {node}: {e}"),
            }
        }
        Ok(Err(format!("a page of ours could not be moved: {refused}")))
    })();
    let remedy = "use a kernel with CONFIG_MIGRATION=y and CONFIG_NUMA=y; free memory on another \
                  node; allow more nodes in our cpuset";
    Finding::of_io("move-pages", tried, remedy)
}

/// Numbers of the nodes that have memory, from `has_memory`'s list `0-2,4`.
fn nodes_with_memory(root: &Root) -> Vec<i32> {
    let list = fs::read_to_string(root.sys("devices/system/node/has_memory")).unwrap_or_default();
    parse_list(list.trim())
}

fn parse_list(list: &str) -> Vec<i32> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

fn memory_nodes(root: &Root) -> Finding {
    let name = "memory-nodes";
    let nodes = nodes_with_memory(root);
    let listed = nodes.iter().map(i32::to_string).collect::<Vec<_>>();
    let listed = listed.join(" ");
    match nodes.len() {
        0 => Finding::lacking(
            name,
            State::Missing,
            "the kernel lists no memory node",
            "use a kernel with CONFIG_NUMA=y",
        ),
        1 => Finding::lacking(
            name,
            State::Missing,
            format!("one node with memory ({listed}): there is nothing to move to"),
            "nothing need be done to observe; moving needs a second node (CXL memory as system \
             RAM, several sockets, or numa=fake=4 on the kernel's command line to try)",
        ),
        count => Finding::present(name, format!("{count} nodes with memory: {listed}")),
    }
}

fn soft_dirty(root: &Root) -> Finding {
    let remedy = "use a kernel with CONFIG_MEM_SOFT_DIRTY=y (needed for write intensity only)";
    Finding::of_io("soft-dirty", soft_dirty::try_own_page(root), remedy)
}

fn page_out(root: &Root) -> Finding {
    let remedy = "set up zram or zswap, on Linux 5.10 or later (needed for pageout only)";
    Finding::of_io("page-out", pager::try_own_page(root), remedy)
}

fn page_cache(root: &Root) -> Finding {
    let tried = nodes_with_memory(root).first().map_or_else(
        || Err(io::ErrorKind::NotFound.into()),
        |&node| mover::try_page_cache(root, node),
    );
    let remedy = "use Linux 6.17 or later with CONFIG_MEMCG=y; without it a node that is full of page cache takes \
                  no promotions but for what is colder there";
    Finding::of_io("page-cache", tried, remedy)
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const _: () = assert!(size_of::<ScanArg>() == 0x60);

fn pagemap_scan(root: &Root) -> Finding {
    let tried = (|| {
        let own = OwnPages::new(4)?;
        let Some(range) = own.range() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let file = File::open(root.proc(own_pid().to_string()).join("pagemap"))?;
        let mut found = [const {
            ScanRegion {
                start: 0,
                end: 0,
                categories: 0,
            }
        }; 4];
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: range.start().0,
            end: range.end().0,
            vec: found.as_mut_ptr().addr() as u64,
            vec_len: found.len() as u64,
            category_mask: PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        // SAFETY: the argument has the layout and size that it states, and
        // `vec` points at `vec_len` regions that outlive the call.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        Ok(match rc {
            -1 => Err(format!("PAGEMAP_SCAN: {}", io::Error::last_os_error())),
            1 if found[0].start == range.start().0 && found[0].end == range.end().0 => {
                Ok("found 4 present pages of ours in one range".into())
            }
            count => Err(format!("PAGEMAP_SCAN found {count} ranges instead of 1")),
        })
    })();
    let remedy = "use Linux 6.7 or later (needed for write intensity only)";
    Finding::of_io("pagemap-scan", tried, remedy)
}

/// Name, bit (`linux/capability.h`), and what fails without it.
const CAPABILITIES: [(&str, u32, &str); 2] = [
    (
        "cap-sys-ptrace",
        19,
        "reads page maps, and moves pages, of processes of other users",
    ),
    (
        "cap-sys-admin",
        21,
        "tells page frames, which idle-page tracking needs",
    ),
];

fn capabilities(root: &Root) -> impl Iterator<Item = Finding> + use<> {
    let status = fs::read_to_string(root.proc(own_pid().to_string()).join("status"));
    let effective = effective_capabilities(&status.unwrap_or_default());
    CAPABILITIES.into_iter().map(move |(name, bit, what_for)| {
        if effective >> bit & 1 == 1 {
            Finding::present(name, format!("effective: {what_for}"))
        } else {
            let constant = name.to_uppercase().replace('-', "_");
            Finding::lacking(
                name,
                State::Forbidden,
                format!("not effective: {what_for}"),
                format!("run as root or with AmbientCapabilities={constant}"),
            )
        }
    })
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whoever else moves pages or clears accessed bits.
fn other_movers(root: &Root) -> Finding {
    let mut found = Vec::new();
    let mut remedies = Vec::new();
    let balancing = root.proc("sys/kernel/numa_balancing");
    if let Some(mode) = read_trimmed(&balancing).filter(|mode| mode != "0") {
        found.push(format!("the kernel's NUMA balancing (mode {mode})"));
        remedies.push(format!("write 0 to {}", balancing.display()));
    }
    let demotion = root.sys("kernel/mm/numa/demotion_enabled");
    let is_on = read_trimmed(&demotion).is_some_and(|on| on == "true" || on == "1");
    // Without swap it is the kernel's only way to empty a node for who is bound to it.
    if is_on && has_swap(root) {
        found.push("the kernel's demotion on reclaim".into());
        remedies.push(format!("write 0 to {}", demotion.display()));
    }
    for path in damon::running_modules(root) {
        found.push(format!("a module of DAMON ({})", path.display()));
        remedies.push(format!("write N to {}", path.display()));
    }
    let kdamonds = damon::kdamond_count(root);
    if kdamonds > 0 {
        found.push(format!("kdamonds of DAMON: {kdamonds}"));
        remedies.push("stop their owner (damo stop), unless it is hmkeeper itself".into());
    }
    for name in ["numad", "memtierd"] {
        if runs(root, name) {
            found.push(name.into());
            remedies.push(format!("stop {name}"));
        }
    }
    if found.is_empty() {
        return Finding::present("other-movers", "none found");
    }
    Finding::lacking(
        "other-movers",
        State::Busy,
        found.join(", "),
        format!("they disturb each other: {}", remedies.join("; ")),
    )
}

/// Whether the kernel can swap anything out.
fn has_swap(root: &Root) -> bool {
    let swaps = fs::read_to_string(root.proc("swaps")).unwrap_or_default();
    // Below a line of titles.
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

fn read_trimmed(path: &std::path::Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Whether a process of this command name runs.
fn runs(root: &Root, name: &str) -> bool {
    let Ok(entries) = fs::read_dir(root.proc("")) else {
        return false;
    };
    entries
        .flatten()
        .filter(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .any(|e| read_trimmed(&e.path().join("comm")).is_some_and(|comm| comm == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &std::path::Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn named<'a>(findings: &'a [Finding], name: &str) -> &'a Finding {
        findings.iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn a_bare_host_lacks_all_with_a_remedy_for_each() {
        let dir = tempfile::tempdir().unwrap();
        let findings = probe(&Root::at(dir.path()));
        for finding in &findings {
            let works_anywhere = ["other-movers", "move-pages"].contains(&finding.name);
            assert_eq!(
                finding.state == State::Present,
                works_anywhere,
                "{finding:?}"
            );
            assert_eq!(finding.remedy.is_empty(), works_anywhere, "{finding:?}");
            assert!(!finding.detail.is_empty(), "{finding:?}");
        }
        let required = findings.iter().filter(|f| f.required).map(|f| f.name);
        assert_eq!(required.collect::<Vec<_>>(), ["sampler", "move-pages"]);
    }

    #[test]
    fn other_movers_are_named_with_their_switches() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "proc/sys/kernel/numa_balancing", "2\n");
        put(dir.path(), "sys/kernel/mm/numa/demotion_enabled", "true\n");
        put(
            dir.path(),
            "sys/module/damon_stat/parameters/enabled",
            "Y\n",
        );
        put(
            dir.path(),
            "sys/module/damon_reclaim/parameters/enabled",
            "N\n",
        );
        put(dir.path(), "proc/77/comm", "numad\n");
        let titles = "Filename Type Size Used Priority\n";
        put(dir.path(), "proc/swaps", titles);
        let finding = other_movers(&Root::at(dir.path()));
        assert!(!finding.detail.contains("demotion"), "nothing to swap to");
        let swap = format!("{titles}/dev/sda2 partition 1000 0 -2\n");
        put(dir.path(), "proc/swaps", &swap);
        let finding = other_movers(&Root::at(dir.path()));
        assert_eq!(finding.state, State::Busy);
        for part in ["mode 2", "demotion", "damon_stat", "numad"] {
            assert!(finding.detail.contains(part), "{part}: {}", finding.detail);
        }
        assert!(!finding.detail.contains("damon_reclaim"));
        assert!(finding.remedy.contains("damon_stat/parameters/enabled"));
    }

    #[test]
    fn one_node_is_nothing_to_move_to() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        put(dir.path(), "sys/devices/system/node/has_memory", "0\n");
        let finding = memory_nodes(&root);
        assert_eq!(finding.state, State::Missing);
        assert!(finding.detail.contains("nothing to move to"));
        put(dir.path(), "sys/devices/system/node/has_memory", "0-2,5\n");
        let finding = memory_nodes(&root);
        assert_eq!(finding.detail, "4 nodes with memory: 0 1 2 5");
    }

    #[test]
    fn capabilities_come_from_the_effective_set() {
        let all = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000a80000\n";
        assert_eq!(effective_capabilities(all), 1 << 23 | 1 << 21 | 1 << 19);
        assert_eq!(effective_capabilities(""), 0);
    }

    #[test]
    fn the_host_is_left_as_it_was() {
        let root = Root::host();
        let kdamonds = || damon::kdamond_count(&root);
        let before = kdamonds();
        let findings = probe(&root);
        assert_eq!(kdamonds(), before);
        assert!(named(&findings, "other-movers").required.eq(&false));
        for finding in findings {
            println!("{finding:?}");
        }
    }
}
