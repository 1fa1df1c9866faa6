//! How much CPU time the machine has left.
//!
//! **Interface.** The lines `cpuN` of `/proc/stat`, in ticks;
//! `/sys/devices/system/cpu/cpuN/topology/thread_siblings_list`; `Cpus_allowed_list` of
//! `/proc/self/status`; `cpu.max` of our control groups.
//!
//! **Problem.** What runs on one thread of a core takes time from what runs on its other one, so
//! that half of the CPUs of a machine may be idle and none of them free.
//!
//! **Approach.** Between two readings a core was idle for as long as that of its threads that was
//! least so. Only cores count on which we may run, and none where a quota limits us.
//!
//! **Limits.** An upper bound: threads that were idle one after the other leave nothing free. A
//! tick is 10 ms. What a hypervisor takes from an idle CPU is not told, nor, mostly, which of a
//! guest's CPUs share a core. Quotas of cgroup v1 are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::cgroup;
use super::root::Root;
use super::targets::NANOS_PER_TICK;
use super::text::{parse_list, read_list};
use crate::units::Nanos;

/// See the module.
#[derive(Debug)]
pub(super) struct IdleCores {
    root: Root,
    /// Idle ticks of each CPU when it was last read.
    last: BTreeMap<u32, u64>,
    /// CPUs that share a core, by the first of them.
    siblings: BTreeMap<u32, Vec<u32>>,
    /// Of all cores since the first reading.
    idle: Nanos,
}

impl IdleCores {
    /// Of this machine. Nothing is read yet.
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            last: BTreeMap::new(),
            siblings: BTreeMap::new(),
            idle: Nanos::ZERO,
        }
    }

    /// Time for which cores have been idle since this was first asked, all together. It stands
    /// still where the kernel does not tell, and while a quota limits us.
    pub(super) fn read(&mut self) -> Nanos {
        let stat = fs::read_to_string(self.root.proc("stat")).unwrap_or_default();
        let now: BTreeMap<u32, u64> = idle_ticks(&stat).collect();
        // Which CPUs share a core changes only with which there are.
        if !now.keys().eq(self.last.keys()) {
            self.siblings = self.cores(&now);
        }
        let since =
            |cpu: &u32| -> Option<u64> { Some(now.get(cpu)?.saturating_sub(*self.last.get(cpu)?)) };
        let allowed = self.allowed();
        let is_ours = |cpu: &u32| allowed.contains(cpu);
        let cores = self.siblings.values();
        let ours = cores.filter(|core| core.iter().any(is_ours));
        let ticks: u64 = ours
            .filter_map(|core| core.iter().filter_map(since).min())
            .sum();
        self.idle += Nanos(ticks.saturating_mul(NANOS_PER_TICK));
        self.last = now;
        self.idle
    }

    /// The CPUs on which we may run; none where nobody tells.
    fn allowed(&self) -> BTreeSet<u32> {
        if cgroup::has_cpu_quota(&self.root) {
            return BTreeSet::new();
        }
        let status = fs::read_to_string(self.root.proc("self/status")).unwrap_or_default();
        let list = |line: &str| parse_list(line.strip_prefix("Cpus_allowed_list:")?);
        let allowed = status.lines().find_map(list).unwrap_or_default();
        allowed.into_iter().collect()
    }

    fn cores(&self, cpus: &BTreeMap<u32, u64>) -> BTreeMap<u32, Vec<u32>> {
        let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &cpu in cpus.keys() {
            let path = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            let siblings = read_list(&self.root.sys(path)).unwrap_or_default();
            let first = siblings.into_iter().min().unwrap_or(cpu);
            cores.entry(first).or_default().push(cpu);
        }
        cores
    }
}

/// Of each CPU: idle, and waiting for devices, which leaves it as free.
fn idle_ticks(stat: &str) -> impl Iterator<Item = (u32, u64)> + '_ {
    stat.lines().filter_map(|line| {
        let (name, ticks) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        let mut ticks = ticks.split_whitespace().skip(3).map(str::parse::<u64>);
        let (idle, waiting) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
        Some((cpu, idle.saturating_add(waiting)))
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// A machine with these idle ticks per CPU, of which each two share a core.
    fn machine(idle: &[u64], are_pairs: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        put(&dir, idle);
        may_run_on(&dir, "0-7");
        for cpu in 0..idle.len() {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            fs::create_dir_all(dir.path().join(&path)).unwrap();
            let pair = cpu / 2 * 2;
            let list = if are_pairs {
                format!("{pair}-{}\n", pair + 1)
            } else {
                format!("{cpu}\n")
            };
            fs::write(dir.path().join(path).join("thread_siblings_list"), list).unwrap();
        }
        dir
    }

    fn put(dir: &tempfile::TempDir, idle: &[u64]) {
        let mut stat = "cpu  9 9 9 999 9 9 9 0 0 0\n".to_owned();
        for (cpu, idle) in idle.iter().enumerate() {
            writeln!(stat, "cpu{cpu} 7 0 7 {idle} 5 0 1 0 0 0").unwrap();
        }
        stat += "intr 77 0\nctxt 7\n";
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/stat"), stat).unwrap();
    }

    fn may_run_on(dir: &tempfile::TempDir, cpus: &str) {
        let own = dir.path().join("proc/self");
        fs::create_dir_all(&own).unwrap();
        let status = format!("Name:\tme\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n");
        fs::write(own.join("status"), status).unwrap();
    }

    fn of(dir: &tempfile::TempDir) -> IdleCores {
        IdleCores::new(Root::at(dir.path()))
    }

    #[test]
    fn cores_add_up_since_the_first_reading() {
        let dir = machine(&[1000], false);
        let mut cores = of(&dir);
        assert_eq!(cores.read(), Nanos::ZERO);
        put(&dir, &[1070]);
        assert_eq!(cores.read(), Nanos::from_millis(700));
        assert_eq!(cores.read(), Nanos::from_millis(700));
        // A clock that the kernel set back.
        put(&dir, &[1060]);
        assert_eq!(cores.read(), Nanos::from_millis(700));
        put(&dir, &[1061]);
        assert_eq!(cores.read(), Nanos::from_millis(710));
    }

    #[test]
    fn a_core_is_no_more_idle_than_its_busiest_thread() {
        for (are_pairs, millis) in [(true, 100), (false, 1000)] {
            let dir = machine(&[0, 0], are_pairs);
            let mut cores = of(&dir);
            cores.read();
            put(&dir, &[90, 10]);
            assert_eq!(cores.read(), Nanos::from_millis(millis));
        }
    }

    #[test]
    fn cpus_of_others_do_not_count() {
        let dir = machine(&[0, 0], false);
        may_run_on(&dir, "1");
        let mut cores = of(&dir);
        cores.read();
        put(&dir, &[90, 10]);
        assert_eq!(cores.read(), Nanos::from_millis(100));
        // Nobody tells: none.
        fs::remove_file(dir.path().join("proc/self/status")).unwrap();
        put(&dir, &[190, 110]);
        assert_eq!(cores.read(), Nanos::from_millis(100));
    }

    #[test]
    fn what_a_quota_limits_has_nothing_to_spare() {
        let dir = machine(&[0], false);
        let mut cores = of(&dir);
        cores.read();
        let group = dir.path().join("sys/fs/cgroup/keeper");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cpu.max"), "50000 100000\n").unwrap();
        fs::write(dir.path().join("proc/self/cgroup"), "0::/keeper\n").unwrap();
        put(&dir, &[100]);
        assert_eq!(cores.read(), Nanos::ZERO);
        fs::write(group.join("cpu.max"), "max 100000\n").unwrap();
        put(&dir, &[150]);
        assert_eq!(cores.read(), Nanos::from_millis(500));
    }

    #[test]
    fn a_machine_that_does_not_tell_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut cores = of(&dir);
        assert_eq!(cores.read(), Nanos::ZERO);
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/stat"), "cpu0 1 2\ncpu 1 2 3 4 5\n").unwrap();
        assert_eq!(cores.read(), Nanos::ZERO);
    }

    #[test]
    fn this_machine_idles_no_longer_than_it_runs() {
        let mut cores = IdleCores::new(Root::host());
        let begin = std::time::Instant::now();
        cores.read();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let idle = cores.read();
        let most = cores.last.len() as f64 * (begin.elapsed().as_secs_f64() + 0.02);
        assert!(!cores.last.is_empty(), "no CPU was found");
        assert!(idle.as_secs_f64() <= most, "{idle:?} of {most} s");
    }
}
