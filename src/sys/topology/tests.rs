use std::fs;
use std::path::{Path as FsPath, PathBuf};

use super::*;
use crate::units::Bytes;

fn fixture(name: &str) -> PathBuf {
    FsPath::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn recorded(name: &str) -> SysTopology {
    SysTopology::new(&Root::at(&fixture("sys").join(name)), None)
}

/// (from, to, ns, source) of every path.
fn latencies(table: &TierTable) -> Vec<(u32, u32, u64, Source)> {
    let of = |p: &Path| (p.from.0, p.to.0, p.latency.value.0, p.latency.source);
    table.paths().iter().map(of).collect()
}

fn write(root: &FsPath, path: &str, text: &str) {
    let path = root.join("sys").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A machine of these nodes: number, MiB, CPUs, SLIT row.
fn machine(nodes: &[(u32, u64, &str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let list = |keep: &dyn Fn(u64) -> bool| {
        let ids: Vec<String> = nodes
            .iter()
            .filter(|n| keep(n.1))
            .map(|n| n.0.to_string())
            .collect();
        ids.join(",")
    };
    let base = "devices/system/node";
    write(dir.path(), &format!("{base}/online"), &list(&|_| true));
    write(dir.path(), &format!("{base}/has_memory"), &list(&|m| m > 0));
    for (id, mib, cpus, row) in nodes {
        let node = format!("{base}/node{id}");
        let meminfo = format!("Node {id} MemTotal:  {} kB\n", mib * 1024);
        write(dir.path(), &format!("{node}/meminfo"), &meminfo);
        write(dir.path(), &format!("{node}/cpulist"), cpus);
        write(dir.path(), &format!("{node}/distance"), row);
    }
    dir
}

#[test]
fn four_tiers_as_recorded_in_the_virtual_machine() {
    let (table, warnings) = recorded("vm-4tier").read_with_warnings().unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let names: Vec<&str> = table.ids().map(|t| table.name(t)).collect();
    assert_eq!(names, ["dram0", "dram1", "mem2", "mem3"]);
    let tiers: Vec<Option<u32>> = table.nodes().iter().map(|n| n.kernel_tier).collect();
    assert_eq!(tiers, [Some(4), Some(4), Some(39), Some(213)]);
    assert_eq!(table.node_of_cpu(1), Some(NodeId(1)));
    assert_eq!(table.nodes()[0].size, Bytes(752_628 << 10));
    // The HMAT in sysfs has the nearest initiators. SLIT rows: 10 21 17 38,
    // 21 10 28 28. So 0→1 is 85·21/10, 1→2 is 275·28/17, 0→3 is 340·38/28.
    assert_eq!(
        latencies(&table),
        [
            (0, 0, 85, Source::Sysfs),
            (0, 1, 178, Source::ScaledByDistance),
            (0, 2, 275, Source::Sysfs),
            (0, 3, 461, Source::ScaledByDistance),
            (1, 0, 178, Source::ScaledByDistance),
            (1, 1, 85, Source::Sysfs),
            (1, 2, 452, Source::ScaledByDistance),
            (1, 3, 340, Source::Sysfs),
        ]
    );
    let near = table.path(NodeId(0), NodeId(0)).unwrap().bandwidth.unwrap();
    assert_eq!(near.value, Bandwidth::from_mb_per_s(97_280));
}

#[test]
fn without_an_hmat_the_slit_decides() {
    let dir = machine(&[(0, 512, "0-3", "10 20"), (2, 2048, "", "20 10")]);
    let table = SysTopology::new(&Root::at(dir.path()), None)
        .read()
        .unwrap();
    assert_eq!(
        latencies(&table),
        [(0, 0, 100, Source::Distance), (0, 2, 200, Source::Distance)]
    );
    assert_eq!(table.paths()[0].bandwidth, None);
    assert_eq!(table.nodes()[1].kind, MemoryKind::Unknown);
}

#[test]
fn one_node_is_one_tier() {
    let dir = machine(&[(0, 512, "0-1", "10")]);
    let table = SysTopology::new(&Root::at(dir.path()), None)
        .read()
        .unwrap();
    assert_eq!(table.tiers().len(), 1);
    assert!(table.view(&[], None).is_flat());
}

#[test]
fn cpus_of_a_node_without_memory_count_with_the_nearest() {
    let dir = machine(&[
        (0, 512, "0", "10 20 30"),
        (1, 0, "1-2", "20 10 12"),
        (2, 512, "3", "30 12 10"),
    ]);
    let topology = SysTopology::new(&Root::at(dir.path()), None);
    let (table, warnings) = topology.read_with_warnings().unwrap();
    assert_eq!(table.nodes().len(), 2);
    assert_eq!(table.node_of_cpu(1), Some(NodeId(2)));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn a_tier_that_names_no_node_is_an_error_that_names_it() {
    let tier = Tier {
        name: "fast".into(),
        nodes: vec![NodeId(9)],
        capacity: None,
    };
    let error = recorded("vm-4tier").with_tiers(Some(vec![tier])).read();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("tier \"fast\" names node 9"), "{error}");
}

#[test]
fn a_slit_row_of_the_wrong_length_is_malformed() {
    let dir = machine(&[(0, 512, "0", "10 20 30")]);
    let error = SysTopology::new(&Root::at(dir.path()), None).read();
    assert!(error.unwrap_err().to_string().contains("distance"));
}

#[test]
fn memory_behind_dax_devices_tells_its_kind() {
    let dir = machine(&[
        (0, 512, "0", "10 20 20"),
        (1, 512, "", "20 10 20"),
        (2, 512, "", "20 20 10"),
    ]);
    let devices = [
        (
            "devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0",
            1,
        ),
        ("devices/platform/ACPI0012:00/ndbus0/region0/dax1.0", 2),
    ];
    let bus = dir.path().join("sys/bus/dax/devices");
    fs::create_dir_all(&bus).unwrap();
    for (device, node) in devices {
        write(
            dir.path(),
            &format!("{device}/target_node"),
            &node.to_string(),
        );
        let real = dir.path().join("sys").join(device);
        std::os::unix::fs::symlink(&real, bus.join(real.file_name().unwrap())).unwrap();
    }
    let table = SysTopology::new(&Root::at(dir.path()), None)
        .read()
        .unwrap();
    let kinds: Vec<MemoryKind> = table.nodes().iter().map(|n| n.kind).collect();
    assert_eq!(kinds, [MemoryKind::Dram, MemoryKind::Cxl, MemoryKind::Pmm]);
}

#[test]
fn sources_that_differ_are_a_warning() {
    let pair = (NodeId(0), NodeId(0));
    let reading = |ns| Reading {
        latency: Some(Nanos(ns)),
        bandwidth: None,
    };
    let mut facts = Facts::default();
    facts.readings.insert(pair, reading(100));
    compare(&mut facts, &Readings::from([(pair, reading(104))]));
    assert!(facts.warnings.is_empty());
    compare(&mut facts, &Readings::from([(pair, reading(120))]));
    assert!(facts.warnings[0].contains("sysfs says 100 ns, hwloc 120 ns"));
}

#[cfg(feature = "hwloc")]
#[test]
fn the_optane_machine_of_the_dissertation_reads_from_xml() {
    let xml = SysTopology::from_xml(fixture("topology/optane.xml"));
    let table = xml.read().unwrap();
    // In the export nodes 0 and 2 are DRAM, 1 and 3 PMM.
    assert_eq!(
        latencies(&table),
        [
            (0, 0, 90, Source::Hwloc),
            (0, 1, 275, Source::Hwloc),
            (0, 2, 145, Source::Hwloc),
            (0, 3, 340, Source::Hwloc),
            (2, 0, 145, Source::Hwloc),
            (2, 1, 340, Source::Hwloc),
            (2, 2, 90, Source::Hwloc),
            (2, 3, 275, Source::Hwloc),
        ]
    );
    let far = table.path(NodeId(0), NodeId(3)).unwrap();
    assert_eq!(far.bandwidth.unwrap().value, Bandwidth::from_mb_per_s(1000));
    assert_eq!(table.nodes()[1].cpus, Vec::<u32>::new());
}
