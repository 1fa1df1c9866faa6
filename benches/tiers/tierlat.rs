//! The guest's side of the plugin that charges memory's latency: `tierlat`, a program that
//! `tests/vm/vm-run -l` puts in the guest's PATH.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

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

/// The program, which does what it is told until this is dropped: one for a whole run, as each start of it
/// would take the guest most of a second.
pub(crate) struct Tierlat(Mutex<Talk>);

struct Talk {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Tierlat {
    pub(crate) fn start() -> Result<Self, String> {
        let mut process = Command::new("tierlat")
            .arg("each")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("tierlat: {e} (is this a guest of vm-run -l?)"))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (stdin, stdout) = pipes.ok_or("tierlat: no pipes")?;
        Ok(Self(Mutex::new(Talk {
            process,
            stdin,
            stdout: BufReader::new(stdout),
        })))
    }

    /// What it answers; or what is wrong, with which it ends.
    fn tell(&self, command: &str) -> Result<String, String> {
        let talk = &mut *self.0.lock().map_err(|e| e.to_string())?;
        let failed = |e| format!("tierlat {command}: {e}");
        writeln!(talk.stdin, "{command}").map_err(failed)?;
        let mut answer = String::new();
        loop {
            let before = answer.len();
            let read = talk.stdout.read_line(&mut answer).map_err(failed)?;
            match &answer[before..] {
                "\n" => return Ok(answer),
                _ if read == 0 => return Err(format!("tierlat {command}: {}", answer.trim())),
                _ => {}
            }
        }
    }

    /// Counts this process's own misses apart.
    pub(crate) fn watch(&self, pid: u32) -> Result<(), String> {
        self.tell(&format!("watch {pid}")).map(drop)
    }

    /// From now on misses are counted, which takes as long as all else that the guest does.
    pub(crate) fn count(&self) -> Result<(), String> {
        self.tell("count").map(drop)
    }

    /// From now on memory takes its time, or none.
    pub(crate) fn charge(&self, on: bool) -> Result<(), String> {
        self.tell(if on { "on" } else { "off" }).map(drop)
    }

    /// What was counted up to now.
    pub(crate) fn counts(&self) -> Result<Counts, String> {
        let text = self.tell("show")?;
        let lines = text.lines().filter(|line| !line.is_empty());
        let nodes = lines.map(parse).collect::<Option<_>>();
        nodes
            .map(|nodes| Counts { nodes })
            .ok_or_else(|| format!("tierlat show: not understood: {text}"))
    }
}

impl Drop for Tierlat {
    fn drop(&mut self) {
        let talk = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself.
        let _ = talk.process.kill();
        let _ = talk.process.wait();
    }
}

impl Counts {
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
