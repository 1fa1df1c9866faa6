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

/// How each initiator ranks the nodes: `0: 0 1,2`.
fn ranks(table: &TierTable) -> Vec<String> {
    let of = |from: NodeId| {
        let view = table.view(&[(from, 1.0)], None);
        let ranks = view.ranks().iter().map(|rank| {
            let nodes: Vec<String> = rank.nodes.iter().map(ToString::to_string).collect();
            nodes.join(",")
        });
        format!("{from}: {}", ranks.collect::<Vec<_>>().join(" "))
    };
    table.initiators().map(|n| of(n.id)).collect()
}

fn read(dir: &tempfile::TempDir, tiers: Option<Vec<Tier>>) -> (TierTable, Vec<String>) {
    let topology = SysTopology::new(&Root::at(dir.path()), tiers);
    topology.read_with_warnings().unwrap()
}

/// What the firmware says of a node, as its nearest initiator sees it.
fn hmat(dir: &tempfile::TempDir, (from, to): (u32, u32), latency: u64, mb_per_s: u64) {
    let base = format!("devices/system/node/node{to}/access0/initiators");
    let real = dir
        .path()
        .join("sys")
        .join(&base)
        .join(format!("node{from}"));
    fs::create_dir_all(real).unwrap();
    for (name, value) in [("read_latency", latency), ("read_bandwidth", mb_per_s)] {
        write(dir.path(), &format!("{base}/{name}"), &value.to_string());
    }
}

fn kernel_tier(dir: &tempfile::TempDir, tier: u32, nodes: &str) {
    let path = format!("devices/virtual/memory_tiering/memory_tier{tier}/nodelist");
    write(dir.path(), &path, nodes);
}

fn tier(name: &str, nodes: &[u32], latency: Option<u64>) -> Tier {
    Tier {
        name: name.into(),
        nodes: nodes.iter().copied().map(NodeId).collect(),
        capacity: None,
        latency: latency.map(Nanos),
    }
}

#[test]
fn cpus_of_a_node_without_memory_rank_by_their_own_figures() {
    // The nearest node with memory would rank 3 before 2.
    let nodes = [
        (0, 0, "0-1", "10 20 21 30"),
        (1, 512, "", "20 10 40 12"),
        (2, 512, "", "21 40 10 40"),
        (3, 512, "", "30 12 40 10"),
    ];
    let dir = machine(&nodes);
    let (table, warnings) = read(&dir, None);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(ranks(&table), ["0: 1,2 3"]);
    assert_eq!(table.tiers().len(), 3);
    assert_eq!(table.used().count(), 3);
    assert_eq!(table.node_of_cpu(1), Some(NodeId(0)));
    // What the firmware says of these CPUs counts as well.
    for (to, latency) in [(1, 200), (2, 230), (3, 400)] {
        hmat(&dir, (0, to), latency, 60_000);
    }
    let (table, _) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 1 2 3"]);
    assert_eq!(latencies(&table)[2], (0, 3, 400, Source::Sysfs));
    // No tier can be made of a node without memory.
    let topology = SysTopology::new(&Root::at(dir.path()), Some(vec![tier("a", &[0], None)]));
    let error = topology.read().unwrap_err().to_string();
    assert!(error.contains("it has 1, 2, 3"), "{error}");
}

#[test]
fn sockets_with_and_without_memory_each_have_a_view() {
    let row = "10 12 12 12";
    let dir = machine(&[
        (0, 0, "0", row),
        (1, 512, "", "12 10 12 12"),
        (2, 512, "1", "12 12 10 12"),
        (3, 0, "2", "12 12 12 10"),
    ]);
    let (table, _) = read(&dir, None);
    // From 0 and 3 both are one distance away.
    assert_eq!(ranks(&table), ["0: 1,2", "2: 2 1", "3: 1,2"]);
}

#[test]
fn an_inverted_hmat_is_overruled_and_named() {
    let dir = machine(&[(0, 512, "0-1", "10 20"), (1, 512, "", "20 10")]);
    hmat(&dir, (0, 0), 500, 100_000);
    hmat(&dir, (0, 1), 100, 20_000);
    let (table, warnings) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 1"]);
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    for part in [
        "100 ns to node 1",
        "500 ns to node 0",
        "20 and 10",
        "distances are used",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    kernel_tier(&dir, 4, "0");
    kernel_tier(&dir, 22, "1");
    let (table, warnings) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 1"]);
    assert!(
        warnings[0].contains("the kernel's tiers 22 and 4"),
        "{warnings:?}"
    );
    // Distances that say nothing leave it to the kernel's tiers.
    write(dir.path(), "devices/system/node/node0/distance", "10 10");
    let (table, warnings) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 1"]);
    assert!(warnings[0].contains("the kernel's tiers"), "{warnings:?}");
}

#[test]
fn one_source_against_latencies_is_named_and_not_believed() {
    let dir = machine(&[
        (0, 512, "0", "10 14 21"),
        (1, 512, "", "14 10 21"),
        (2, 512, "", "21 21 10"),
    ]);
    for (to, latency) in [(0, 100), (1, 300), (2, 200)] {
        hmat(&dir, (0, to), latency, 50_000);
    }
    let (table, warnings) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 2 1"]);
    assert!(
        warnings[0].contains("SLIT distances 21 and 14; the latencies are used"),
        "{warnings:?}"
    );
}

#[test]
fn hbm_that_is_wider_and_later_contradicts_nobody() {
    let dir = machine(&[(0, 512, "0", "10 13"), (1, 512, "", "13 10")]);
    hmat(&dir, (0, 0), 100, 200_000);
    hmat(&dir, (0, 1), 130, 400_000);
    kernel_tier(&dir, 4, "0");
    kernel_tier(&dir, 3, "1");
    let (table, warnings) = read(&dir, None);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(ranks(&table), ["0: 0 1"]);
    assert_eq!(table.nodes()[1].kind, MemoryKind::Hbm);
    // Whoever wants it first says so.
    let tiers = vec![tier("hbm", &[1], None), tier("dram", &[0], None)];
    let (table, warnings) = read(&dir, Some(tiers));
    assert_eq!(ranks(&table), ["0: 1 0"]);
    assert_eq!(
        latencies(&table),
        [(0, 0, 130, Source::Config), (0, 1, 100, Source::Config)]
    );
    assert!(warnings[0].contains("130 ns and 100 ns"), "{warnings:?}");
}

#[test]
fn figures_that_cannot_be_are_dropped() {
    let dir = machine(&[(0, 512, "0", "10 20"), (1, 512, "", "20 10")]);
    hmat(&dir, (0, 0), 0, 0);
    hmat(&dir, (0, 1), 4_294_967_295, 4_294_967_295);
    let (table, warnings) = read(&dir, None);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("4294967295 ns, which cannot be"),
        "{warnings:?}"
    );
    assert_eq!(
        latencies(&table),
        [(0, 0, 100, Source::Distance), (0, 1, 200, Source::Distance)]
    );
    // Of a machine of which firmware describes DRAM only, all is in the scale of that.
    hmat(&dir, (0, 0), 130, 50_000);
    let (table, _) = read(&dir, None);
    assert_eq!(latencies(&table)[1], (0, 1, 260, Source::ScaledByDistance));
}

/// Two sockets with HBM and persistent memory, all one distance apart.
fn one_distance() -> tempfile::TempDir {
    let row = |own: usize| {
        let all = (0..6).map(|to| if to == own { "10" } else { "20" });
        all.collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<String> = (0..6).map(row).collect();
    let cpus = ["0", "1", "", "", "", ""];
    let nodes: Vec<_> = (0..6)
        .map(|i| (u32::try_from(i).unwrap(), 512, cpus[i], &*rows[i]))
        .collect();
    let dir = machine(&nodes);
    kernel_tier(&dir, 4, "0-1");
    kernel_tier(&dir, 22, "2-5");
    dir
}

#[test]
fn one_distance_for_all_is_told_apart_by_kernel_tiers_or_the_operator() {
    let dir = one_distance();
    let (table, warnings) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 1 2,3,4,5", "1: 1 0 2,3,4,5"]);
    assert!(warnings[0].contains("are alike"), "{warnings:?}");
    let tiers = |pmm| {
        vec![
            tier("hbm", &[2, 3], Some(60)),
            tier("dram", &[0, 1], None),
            tier("pmm", &[4, 5], pmm),
        ]
    };
    let (table, warnings) = read(&dir, Some(tiers(Some(400))));
    assert_eq!(ranks(&table), ["0: 2,3 0 1 4,5", "1: 2,3 1 0 4,5"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn the_order_of_tiers_leaves_sockets_their_own_views() {
    let tiers = vec![
        tier("near", &[0], None),
        tier("other", &[1], None),
        tier("far", &[2, 3], None),
    ];
    let table = recorded("vm-4tier").with_tiers(Some(tiers));
    let (table, warnings) = table.read_with_warnings().unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(ranks(&table), ["0: 0 1 2 3", "1: 1 0 3 2"]);
    let of_its_own = recorded("vm-4tier").read().unwrap();
    assert_eq!(latencies(&table), latencies(&of_its_own));
}

#[test]
fn latencies_of_the_operator_are_those_of_the_nearest_cpus() {
    let tiers = vec![
        tier("dram", &[0, 1], None),
        tier("slow", &[2], Some(900)),
        tier("quick", &[3], Some(120)),
    ];
    let table = recorded("vm-4tier").with_tiers(Some(tiers));
    let (table, warnings) = table.read_with_warnings().unwrap();
    assert_eq!(latencies(&table)[2], (0, 2, 900, Source::Config));
    assert_eq!(latencies(&table)[7], (1, 3, 120, Source::Config));
    // 120 ns at distance 28 is 162 ns at 38.
    assert_eq!(latencies(&table)[3], (0, 3, 162, Source::Config));
    assert!(
        warnings[0].contains("their latency is used"),
        "{warnings:?}"
    );
}

#[test]
fn memory_of_accelerators_is_left_out_unless_named() {
    let dir = machine(&[
        (0, 512, "0", "10 80 30 20 17"),
        (1, 512, "", "80 10 90 90 90"),
        (2, 512, "", "30 90 10 90 90"),
        (3, 512, "", "20 90 90 10 90"),
        (4, 512, "", "17 90 90 90 10"),
    ]);
    let node = "devices/system/node";
    write(dir.path(), &format!("{node}/has_generic_initiator"), "2\n");
    write(
        dir.path(),
        "devices/system/memory/block_size_bytes",
        "8000000\n",
    );
    fs::create_dir_all(dir.path().join("sys").join(node).join("node3/memory33")).unwrap();
    fs::create_dir_all(dir.path().join("sys").join(node).join("node4/memory36")).unwrap();
    let iomem = dir.path().join("proc/iomem");
    fs::create_dir_all(iomem.parent().unwrap()).unwrap();
    fs::write(
        &iomem,
        "00001000-0009ffff : System RAM\n100000000-10fffffff : System RAM (NVIDIA)\n\
                       120000000-127ffffff : System RAM (kmem)\n",
    )
    .unwrap();
    let (table, warnings) = read(&dir, None);
    let names: Vec<&str> = table.ids().map(|t| table.name(t)).collect();
    assert_eq!(names, ["dram0", "mem4"]);
    assert_eq!(ranks(&table), ["0: 0 4"]);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, part) in warnings.iter().zip([
        "SLIT distance of 80",
        "has_generic_initiator",
        "the driver NVIDIA",
    ]) {
        assert!(
            warning.contains(part) && warning.contains("name it in [[tiers]]"),
            "{warning}"
        );
    }
    let named = vec![tier("dram", &[0], None), tier("gpu", &[3], None)];
    let (table, warnings) = read(&dir, Some(named));
    assert_eq!(ranks(&table), ["0: 0 3"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    // Nobody reads its addresses without the capability, and one that DAX made is everybody's.
    fs::write(&iomem, "00000000-00000000 : System RAM (NVIDIA)\n").unwrap();
    let real = dir.path().join("sys/devices/platform/hmem.0/dax1.0");
    fs::create_dir_all(&real).unwrap();
    fs::write(real.join("target_node"), "1\n").unwrap();
    let bus = dir.path().join("sys/bus/dax/devices");
    fs::create_dir_all(&bus).unwrap();
    std::os::unix::fs::symlink(&real, bus.join("dax1.0")).unwrap();
    let (table, _) = read(&dir, None);
    assert_eq!(ranks(&table), ["0: 0 4 3 1"]);
}

#[test]
fn a_tier_that_names_no_node_is_an_error_that_names_it() {
    let tiers = vec![tier("fast", &[9], None)];
    let error = recorded("vm-4tier").with_tiers(Some(tiers)).read();
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
