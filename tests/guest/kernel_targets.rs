//! Targets against real processes of the kernel that runs the test. Needs no
//! privileges for our own children; what does says why it skipped.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::ports::{MappingFilter, Selector, TargetEvent, TargetSpec, Targets, Topology};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::targets::SysTargets;
use hmkeeper::sys::topology::SysTopology;
use hmkeeper::tiering::observation::{Exclusion, TargetMap};
use hmkeeper::units::Pid;

/// A child that is killed when the test is over.
struct Victim(Child);

impl Victim {
    fn new(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid(i32::try_from(self.0.id()).unwrap())
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn targets(specs: &[TargetSpec]) -> SysTargets {
    let root = Root::host();
    let table = SysTopology::new(&root, None).read().unwrap();
    let mut targets = SysTargets::new(&root, &table);
    targets.select(specs);
    targets
}

fn spec(selector: Selector) -> TargetSpec {
    TargetSpec {
        selector,
        ..TargetSpec::of_pid(Pid(0))
    }
}

fn read(targets: &mut SysTargets) -> (Vec<TargetMap>, Vec<TargetEvent>) {
    let mut events = Vec::new();
    let maps = targets.read(&mut events).unwrap();
    (maps, events)
}

/// Reads until `done` or ten seconds have gone by: discovery has a budget.
fn read_until(
    targets: &mut SysTargets,
    done: impl Fn(&[TargetMap], &[TargetEvent]) -> bool,
) -> (Vec<TargetMap>, Vec<TargetEvent>) {
    let began = Instant::now();
    let mut events = Vec::new();
    loop {
        let maps = targets.read(&mut events).unwrap();
        if done(&maps, &events) || began.elapsed() > Duration::from_secs(10) {
            return (maps, events);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pids(maps: &[TargetMap]) -> Vec<Pid> {
    maps.iter().map(|m| m.pid).collect()
}

#[test]
fn a_process_is_found_by_pid_and_its_end_is_told_once() {
    let mut victim = Victim::new("sleep", &["600"]);
    let pid = victim.pid();
    let mut targets = targets(&[TargetSpec::of_pid(pid)]);
    let (maps, events) = read_until(&mut targets, |m, _| !m.is_empty() && &*m[0].name == "sleep");
    assert_eq!(pids(&maps), [pid]);
    assert!(matches!(&events[0], TargetEvent::Attached { pid: p, .. } if *p == pid));
    assert!(!maps[0].eligible.is_empty(), "it has a heap and a stack");
    assert!(
        maps[0]
            .excluded
            .iter()
            .any(|(why, _)| *why == Exclusion::File)
    );
    let sum: f64 = maps[0].cpu_share.iter().map(|s| s.1).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{:?}", maps[0].cpu_share);
    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
    let (maps, events) = read(&mut targets);
    assert_eq!(maps, []);
    assert!(matches!(&events[..], [TargetEvent::Ended { pid: p, .. }] if *p == pid));
    assert_eq!(read(&mut targets), (vec![], vec![]));
}

#[test]
fn a_zombie_has_ended_though_its_pid_is_there() {
    let mut victim = Victim::new("sleep", &["600"]);
    let mut targets = targets(&[TargetSpec::of_pid(victim.pid())]);
    assert_eq!(read(&mut targets).0.len(), 1);
    victim.0.kill().unwrap();
    let (_, events) = read_until(&mut targets, |m, _| m.is_empty());
    assert!(
        matches!(&events[..], [TargetEvent::Ended { .. }]),
        "{events:?}"
    );
}

#[test]
fn an_exec_replaces_the_target() {
    let mut victim = Victim::new("sh", &["-c", "echo up; read go; exec sleep 600"]);
    let pid = victim.pid();
    assert_eq!(victim.line(), "up");
    let mut targets = targets(&[TargetSpec::of_pid(pid)]);
    let (before, _) = read(&mut targets);
    assert_eq!(&*before[0].name, "sh");
    drop(victim.0.stdin.take());
    // While it goes on the name may be that of before for a moment.
    let (after, events) = read_until(&mut targets, |maps, _| {
        maps.iter().any(|map| &*map.name == "sleep")
    });
    assert!(
        matches!(&events[..], [TargetEvent::Replaced { pid: p, name }] if *p == pid && ["sh", "sleep"].contains(&&**name)),
        "{events:?}"
    );
    assert_eq!(pids(&after), [pid]);
    assert_ne!(after[0].id, before[0].id);
}

#[test]
fn children_are_followed_down_the_chain_on_request() {
    let script = "sh -c 'sleep 600 & echo $!; wait' & wait";
    let mut victim = Victim::new("sh", &["-c", script]);
    let grandchild = Pid(victim.line().parse().unwrap());
    let mut alone = targets(&[TargetSpec::of_pid(victim.pid())]);
    assert_eq!(pids(&read(&mut alone).0), [victim.pid()]);
    let mut family = targets(&[TargetSpec {
        follow_children: true,
        ..TargetSpec::of_pid(victim.pid())
    }]);
    let (maps, _) = read(&mut family);
    let found = pids(&maps);
    assert!(
        found.contains(&victim.pid()) && found.contains(&grandchild),
        "{found:?}"
    );
    // A child outlives its parent, and stays a target.
    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
    let (maps, _) = read_until(&mut family, |m, _| !pids(m).contains(&victim.pid()));
    assert!(pids(&maps).contains(&grandchild));
    // Ours to end, since nobody else will.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(grandchild.0),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
}

#[test]
fn names_and_command_lines_match_by_glob() {
    let victim = Victim::new("sleep", &["601.25"]);
    let by_name = spec(Selector::Comm("sl[a-e]ep".into()));
    let by_line = spec(Selector::Cmdline("sleep 601.2?".into()));
    for spec in [by_name, by_line] {
        let wanted = format!("{:?}", spec.selector);
        let mut targets = targets(&[spec]);
        let (maps, _) = read_until(&mut targets, |m, _| pids(m).contains(&victim.pid()));
        assert!(pids(&maps).contains(&victim.pid()), "{wanted}");
    }
    let mut nobody = targets(&[spec(Selector::Cmdline("sleep 601.26".into()))]);
    assert_eq!(read(&mut nobody).0, []);
}

#[test]
fn what_cannot_be_watched_is_told_once() {
    let ours = Pid(i32::try_from(std::process::id()).unwrap());
    // Linux gives out no pid above 2^22.
    let nobody = Pid(1 << 22 | 1);
    let mut targets = targets(&[TargetSpec::of_pid(ours), TargetSpec::of_pid(nobody)]);
    let (maps, events) = read(&mut targets);
    assert_eq!(maps, []);
    let whys: Vec<&str> = events
        .iter()
        .map(|e| match e {
            TargetEvent::Unwatchable { why, .. } => why.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(whys, ["it is hmkeeper itself", "no such process"]);
    let (_, events) = read_until(&mut targets, |_, events| !events.is_empty());
    assert_eq!(events, []);
}

#[test]
fn kernel_threads_are_refused() {
    // kthreadd, unless we are in a pid namespace of our own.
    let comm = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if comm.trim() != "kthreadd" {
        eprintln!("skipped: pid 2 is not kthreadd here (a pid namespace)");
        return;
    }
    let mut targets = targets(&[TargetSpec::of_pid(Pid(2))]);
    let (maps, events) = read(&mut targets);
    assert_eq!(maps, []);
    assert!(
        matches!(&events[..], [TargetEvent::Unwatchable { why, .. }] if why.contains("kernel thread")),
        "{events:?}"
    );
}

#[test]
fn a_cgroup_and_a_unit_name_their_processes() {
    let dir = std::path::Path::new("/sys/fs/cgroup");
    if !dir.join("cgroup.controllers").exists() {
        eprintln!("skipped: no cgroup v2 is mounted here");
        return;
    }
    let group = dir.join(format!("hmk-{}.service", std::process::id()));
    let inner = group.join("inner");
    if let Err(e) = std::fs::create_dir_all(&inner) {
        eprintln!("skipped: no cgroup can be made: {e}");
        return;
    }
    let victim = Victim::new("sleep", &["600"]);
    let joined = std::fs::write(inner.join("cgroup.procs"), victim.pid().to_string());
    let name = group.file_name().unwrap().to_str().unwrap().to_owned();
    if joined.is_ok() {
        for selector in [
            Selector::Cgroup(format!("/{name}")),
            Selector::Unit(name.clone()),
            Selector::Unit(name.trim_end_matches(".service").into()),
        ] {
            let mut targets = targets(&[spec(selector.clone())]);
            assert_eq!(pids(&read(&mut targets).0), [victim.pid()], "{selector:?}");
        }
        let mut targets = targets(&[spec(Selector::Cgroup(name))]);
        assert_eq!(read(&mut targets).0.len(), 1);
        std::fs::write(dir.join("cgroup.procs"), victim.pid().to_string()).unwrap();
        let (_, events) = read_until(&mut targets, |m, _| m.is_empty());
        assert!(
            matches!(&events[..], [TargetEvent::Ended { .. }]),
            "{events:?}"
        );
        let mut outside = targets_of_path("/../../etc");
        assert_eq!(read(&mut outside).0, []);
    } else {
        eprintln!("skipped: {joined:?}");
    }
    drop(victim);
    let _ = std::fs::remove_dir(&inner);
    let _ = std::fs::remove_dir(&group);
}

fn targets_of_path(path: &str) -> SysTargets {
    targets(&[spec(Selector::Cgroup(path.into()))])
}

#[test]
fn cpu_time_grows_with_work() {
    let victim = Victim::new("sh", &["-c", "while :; do :; done"]);
    let mut targets = targets(&[TargetSpec::of_pid(victim.pid())]);
    let (before, _) = read(&mut targets);
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    let (after, _) = read(&mut targets);
    let used = Duration::from(after[0].cpu_time.saturating_sub(before[0].cpu_time));
    assert!(used > Duration::from_millis(5), "{used:?}");
    assert!(
        used <= began.elapsed() + Duration::from_millis(20),
        "{used:?}"
    );
}

#[test]
fn a_selection_that_goes_on_keeps_its_id_and_takes_new_filters() {
    let victim = Victim::new("sleep", &["600"]);
    let spec = TargetSpec::of_pid(victim.pid());
    let mut targets = targets(std::slice::from_ref(&spec));
    let (first, _) = read(&mut targets);
    targets.select(&[TargetSpec {
        exclude: vec![MappingFilter::Name("*".into())],
        ..spec
    }]);
    let (second, events) = read(&mut targets);
    assert_eq!(events, []);
    assert_eq!(second[0].id, first[0].id);
    assert_eq!(second[0].eligible, []);
    targets.select(&[]);
    assert_eq!(read(&mut targets), (vec![], vec![]));
}
