//! Who else moves pages, as it is now: somebody may switch it on at any time.
//!
//! Cheap enough for each epoch: a few files of some bytes. `check` looks for more, once.

use std::fs;

use super::damon::running_modules;
use super::root::Root;
use crate::ports::OtherMover;

/// Whoever in the kernel moves pages of its own accord now.
pub fn others(root: &Root) -> Vec<OtherMover> {
    let balancing = root.proc("sys/kernel/numa_balancing");
    let mode = fs::read_to_string(&balancing).unwrap_or_default();
    let mode = mode.trim();
    let mut found = Vec::new();
    if !mode.is_empty() && mode != "0" {
        found.push(OtherMover {
            name: "numa-balancing".into(),
            what: format!("the kernel's NUMA balancing (mode {mode})"),
            remedy: format!("write 0 to {}", balancing.display()),
        });
    }
    found.extend(running_modules(root).map(|path| OtherMover {
        name: "damon-module".into(),
        what: format!("a module of DAMON ({})", path.display()),
        remedy: format!("write N to {}", path.display()),
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_of_numa_balancing_is_another_mover_and_off_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let file = dir.path().join("proc/sys/kernel/numa_balancing");
        assert_eq!(others(&root), [], "a kernel without it");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (mode, expected) in [("0\n", None), ("1\n", Some("1")), ("2\n", Some("2"))] {
            fs::write(&file, mode).unwrap();
            let found = others(&root);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{mode}");
            if let Some(mode) = expected {
                assert!(found[0].what.contains(mode) && found[0].name == "numa-balancing");
                assert!(found[0].remedy.starts_with("write 0 to "));
            }
        }
    }

    #[test]
    fn a_module_of_damon_that_runs_is_another_mover() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir
            .path()
            .join("sys/module/damon_reclaim/parameters/enabled");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "N\n").unwrap();
        assert_eq!(others(&Root::at(dir.path())), []);
        fs::write(&file, "Y\n").unwrap();
        let found = others(&Root::at(dir.path()));
        assert_eq!(found.len(), 1);
        assert!(found[0].remedy.contains("damon_reclaim"), "{found:?}");
    }
}
