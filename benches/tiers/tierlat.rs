//! The guest's side of the plugin that charges memory's latency: `tierlat`, a program that
//! `tests/vm/vm-run -l` puts in the guest's PATH.

use std::collections::BTreeMap;
use std::process::Command;
use std::str::FromStr;

use crate::results::ByNode;

/// What the nodes served since the guest started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    nodes: BTreeMap<u32, Node>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    kernel: u64,
    watched: u64,
    waited_ms: f64,
}

fn tierlat(args: &[&str]) -> Result<String, String> {
    let output = Command::new("tierlat")
        .args(args)
        .output()
        .map_err(|e| format!("tierlat: {e} (is this a guest of vm-run -l?)"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        Err(format!("tierlat {}: {}", args.join(" "), error.trim()))
    }
}

/// Counts this process's own misses apart.
pub(crate) fn watch(pid: u32) -> Result<(), String> {
    tierlat(&["watch", &pid.to_string()]).map(drop)
}

/// From now on misses are counted, which takes as long as all else that the guest does.
pub(crate) fn count() -> Result<(), String> {
    tierlat(&["count"]).map(drop)
}

/// From now on memory takes its time, or none.
pub(crate) fn charge(on: bool) -> Result<(), String> {
    tierlat(&[if on { "on" } else { "off" }]).map(drop)
}

impl Counts {
    /// Now.
    pub(crate) fn read() -> Result<Self, String> {
        let text = tierlat(&["show"])?;
        let nodes = text.lines().map(parse).collect::<Option<_>>();
        nodes
            .map(|nodes| Self { nodes })
            .ok_or_else(|| format!("tierlat show: not understood: {text}"))
    }

    fn since<T>(&self, before: &Self, what: impl Fn(&Node, &Node) -> T) -> BTreeMap<u32, T> {
        let none = Node::default();
        self.nodes
            .iter()
            .map(|(&n, now)| (n, what(now, before.nodes.get(&n).unwrap_or(&none))))
            .collect()
    }

    /// Misses of the watched process.
    pub(crate) fn watched_since(&self, before: &Self) -> ByNode {
        self.since(before, |now, then| now.watched - then.watched)
    }

    /// Milliseconds for which it waited.
    pub(crate) fn waited_since(&self, before: &Self) -> BTreeMap<u32, f64> {
        self.since(before, |now, then| now.waited_ms - then.waited_ms)
    }

    /// Misses of the kernel.
    pub(crate) fn kernel_since(&self, before: &Self) -> ByNode {
        self.since(before, |now, then| now.kernel - then.kernel)
    }
}

/// `node 0: user reads 1 writes 2 waited_ms 0.1 kernel reads … watched reads 5 …`
fn parse(line: &str) -> Option<(u32, Node)> {
    let (node, counts) = line.strip_prefix("node ")?.split_once(": ")?;
    let (_, kernel) = counts.split_once(" kernel ")?;
    let (kernel, watched) = kernel.split_once(" watched ")?;
    let both = |text| Some(field::<u64>(text, "reads")? + field::<u64>(text, "writes")?);
    Some((
        node.parse().ok()?,
        Node {
            kernel: both(kernel)?,
            watched: both(watched)?,
            waited_ms: field(watched, "waited_ms")?,
        },
    ))
}

/// The number behind a name.
fn field<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let mut words = text.split_whitespace().skip_while(|w| *w != name);
    words.nth(1)?.parse().ok()
}
