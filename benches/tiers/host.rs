//! On what runs are made: times of one machine are not to be held against another's.

use std::process::Command;

/// Processor, CPUs and emulator of this machine, as rows have it.
pub(crate) fn here() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models = cpuinfo.lines().filter_map(model);
    let model = models.clone().next().unwrap_or("unknown processor");
    format!("{model}, {} CPUs, {}", models.count(), emulator())
}

fn model(line: &str) -> Option<&str> {
    let (key, value) = line.split_once(':')?;
    (key.trim_end() == "model name").then(|| value.trim())
}

/// Such as "QEMU 7.2.22".
fn emulator() -> String {
    let told = Command::new("qemu-system-x86_64").arg("--version").output();
    let text = told.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    let mut words = text.split_whitespace().skip_while(|w| *w != "version");
    let version = words.nth(1).unwrap_or("of unknown version");
    format!("QEMU {version}")
}
