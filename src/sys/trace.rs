//! A kernel tracepoint, read as the kernel writes it: an instance of the
//! tracing system of our own, and the pages of its ring buffers
//! (`Documentation/trace/ftrace.rst`, `Documentation/trace/ring-buffer-design.rst`).
//!
//! **Problem.** Text output costs the kernel a formatted line per event, and
//! the global buffers belong to whoever traces by hand.
//!
//! **Approach.** An instance, `instances/hmkeeper-PID`, with this one event
//! enabled. `per_cpu/cpuN/trace_pipe_raw` hands out whole pages of events; where
//! a field lies in an event the kernel says itself, in the event's `format`.
//!
//! ```text
//! page   time stamp u64 │ bytes used u64 (low 20 bits) │ entries…
//! entry  type:5 time delta:27 │ data
//!        type 1..=28: data of type x 4 bytes    0: its length in the next word
//!        29: padding    30: time extend    31: absolute time
//! ```
//!
//! **Cost.** While any event is enabled the kernel notes the names of tasks as they
//! take turns, some ns a switch, unless the host's `options/record-cmd` is 0: an
//! instance inherits that and has no such option of its own.
//!
//! **Properties.** A dropped instance is removed; one of a killed process is
//! swept away. Nothing else of the tracing system is changed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::root::Root;
use crate::units::{PAGE_BYTES, Pid};

/// Bytes before the entries of a page.
const PAGE_HEADER: usize = 16;
/// The part of the second word of a page that counts bytes; what is above are
/// flags of missed events.
const COMMIT_MASK: u64 = (1 << 20) - 1;

/// Instances are called by the process that made them.
const PREFIX: &str = "hmkeeper-";

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Where a field lies in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// Its value in an event; `None` where the event is too short for it.
    pub(super) fn get(self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..self.offset.checked_add(self.size)?)?;
        Some(match self.size {
            8 => u64::from_ne_bytes(bytes.try_into().ok()?),
            4 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
            2 => u16::from_ne_bytes(bytes.try_into().ok()?).into(),
            1 => bytes[0].into(),
            _ => return None,
        })
    }
}

/// What `format` says of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Format {
    id: u64,
    fields: Vec<(String, Field)>,
}

impl Format {
    fn parse(text: &str) -> Option<Self> {
        let mut format = Self {
            id: text
                .lines()
                .find_map(|line| line.strip_prefix("ID:"))?
                .trim()
                .parse()
                .ok()?,
            fields: Vec::new(),
        };
        for line in text.lines() {
            let mut parts = line.trim().split(';').map(str::trim);
            let Some(declaration) = parts.next().and_then(|p| p.strip_prefix("field:")) else {
                continue;
            };
            let name = declaration.rsplit([' ', '*']).next()?;
            let number = |part: Option<&str>, key: &str| {
                part?.strip_prefix(key)?.trim().parse::<usize>().ok()
            };
            let field = Field {
                offset: number(parts.next(), "offset:")?,
                size: number(parts.next(), "size:")?,
            };
            format.fields.push((name.to_owned(), field));
        }
        Some(format)
    }
}

/// One event, traced apart from everybody else's. Removed when dropped.
#[derive(Debug)]
pub(super) struct Tracepoint {
    dir: PathBuf,
    event: PathBuf,
    format: Format,
    kind: Field,
    /// The ring buffers, one per CPU.
    pipes: Vec<File>,
    /// Bytes that each of them holds.
    capacity: u64,
    page: Vec<u8>,
}

impl Tracepoint {
    /// Makes the instance and enables the event in it.
    ///
    /// # Errors
    /// `NotFound` without tracefs or without the event; what the kernel says
    /// otherwise.
    pub(super) fn open(root: &Root, event: &str) -> io::Result<Self> {
        let tracing = mounted(root)?;
        let format = fs::read_to_string(tracing.join("events").join(event).join("format"))?;
        let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let format = Format::parse(&format).ok_or_else(|| malformed("the event's format"))?;
        let dir = instance(&tracing, super::own_pages::own_pid());
        match fs::create_dir(&dir) {
            // Of an earlier process with our pid.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_dir(&dir)?;
                fs::create_dir(&dir)?;
            }
            made => made?,
        }
        let mut tracepoint = Self {
            event: dir.join("events").join(event),
            dir,
            kind: Field { offset: 0, size: 2 },
            format,
            pipes: Vec::new(),
            capacity: 0,
            page: vec![0; usize::try_from(PAGE_BYTES).unwrap_or(4096)],
        };
        tracepoint.kind = tracepoint
            .field("common_type")
            .ok_or_else(|| malformed("an event without a type"))?;
        put(&tracepoint.event.join("enable"), "1")?;
        for cpu in fs::read_dir(tracepoint.dir.join("per_cpu"))? {
            let pipe = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(cpu?.path().join("trace_pipe_raw"))?;
            tracepoint.pipes.push(pipe);
        }
        Ok(tracepoint)
    }

    /// A field of the event by its name in the kernel.
    pub(super) fn field(&self, name: &str) -> Option<Field> {
        let fields = &self.format.fields;
        fields.iter().find(|(n, _)| n == name).map(|&(_, f)| f)
    }

    /// Makes the buffer of each CPU hold this many bytes. It never shrinks.
    pub(super) fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = bytes.next_multiple_of(16 * PAGE_BYTES).max(16 * PAGE_BYTES);
        if bytes > self.capacity {
            let text = (bytes / 1024).to_string();
            put(&self.dir.join("buffer_size_kb"), &text)?;
            self.capacity = bytes;
        }
        Ok(())
    }

    /// Hands out all events since the last time, CPU by CPU.
    pub(super) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        for pipe in &mut self.pipes {
            loop {
                match pipe.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(count) => entries(&self.page[..count], |event| {
                        if self.kind.get(event) == Some(self.format.id) {
                            each(event);
                        }
                    }),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Tracepoint {
    fn drop(&mut self) {
        // The kernel keeps an instance whose files are open.
        self.pipes.clear();
        // What is enabled in it ends with it.
        if let Err(error) = fs::remove_dir(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove our tracing instance");
        }
    }
}

/// Removes the instances of processes of ours that are gone. One that somebody
/// holds open stays, with a warning: it does no harm.
pub(super) fn sweep(root: &Root) {
    let Ok(tracing) = mounted(root) else {
        return;
    };
    let Ok(instances) = fs::read_dir(tracing.join("instances")) else {
        return;
    };
    for entry in instances.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let gone = owner
            .is_some_and(|pid| pid.bytes().all(|b| b.is_ascii_digit()) && !root.proc(pid).exists());
        if gone && let Err(error) = fs::remove_dir(entry.path()) {
            tracing::warn!(dir = %entry.path().display(), %error, "cannot remove a tracing instance that was left");
        }
    }
}

/// The tracing system's directory, wherever it is mounted.
fn mounted(root: &Root) -> io::Result<PathBuf> {
    ["kernel/tracing", "kernel/debug/tracing"]
        .iter()
        .map(|path| root.sys(path))
        .find(|dir| dir.join("instances").is_dir())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

fn instance(tracing: &Path, owner: Pid) -> PathBuf {
    tracing.join("instances").join(format!("{PREFIX}{owner}"))
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    super::text::write_existing(path, text)
}

/// Walks the entries of one page of a ring buffer.
fn entries(page: &[u8], mut each: impl FnMut(&[u8])) {
    let word = |at: usize| -> Option<u32> {
        let bytes = page.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let used = page
        .get(8..PAGE_HEADER)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_ne_bytes)
        & COMMIT_MASK;
    let end = PAGE_HEADER.saturating_add(usize::try_from(used).unwrap_or(0));
    let end = end.min(page.len());
    let mut at = PAGE_HEADER;
    while at < end {
        let Some(header) = word(at) else { return };
        // Little endian bit fields: the type is the lowest.
        let (kind, delta) = if cfg!(target_endian = "little") {
            (header & 31, header >> 5)
        } else {
            (header >> 27, header & ((1 << 27) - 1))
        };
        let sized = |at: usize| word(at + 4).and_then(|length| usize::try_from(length).ok());
        let (data, length) = match kind {
            0 => match sized(at) {
                // The length counts its own word.
                Some(length) if length >= 4 => (Some(at + 8..at + 4 + length), 4 + length),
                _ => return,
            },
            PADDING if delta == 0 => return,
            PADDING => match sized(at) {
                Some(length) => (None, 4 + length),
                None => return,
            },
            TIME_EXTEND | TIME_STAMP => (None, 8),
            words => {
                let length = 4 + 4 * usize::try_from(words).unwrap_or(0);
                (Some(at + 4..at + length), length)
            }
        };
        if let Some(event) = data.and_then(|range| page.get(range)) {
            each(event);
        }
        at = at.saturating_add(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMAT: &str = "name: damos_before_apply\nID: 650\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"%lu\", REC->start\n";

    fn page(entries: &[&[u32]]) -> Vec<u8> {
        let words: Vec<u32> = entries.concat();
        let mut page = vec![0; 8];
        // With a flag of missed events above the count.
        let used = (words.len() as u64 * 4) | (1 << 31);
        page.extend(used.to_ne_bytes());
        page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        page.resize(4096, 0);
        page
    }

    fn entry(kind: u32, delta: u32) -> u32 {
        kind + (delta << 5)
    }

    fn seen(page: &[u8]) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        entries(page, |event| seen.push(event.to_vec()));
        seen
    }

    #[test]
    fn the_format_says_where_fields_are() {
        let format = Format::parse(FORMAT).unwrap();
        assert_eq!(format.id, 650);
        let start = Field {
            offset: 24,
            size: 8,
        };
        assert_eq!(format.fields[2], ("start".into(), start));
        let mut event = vec![0; 32];
        event[24..].copy_from_slice(&77_u64.to_ne_bytes());
        assert_eq!(start.get(&event), Some(77));
        assert_eq!(start.get(&event[..30]), None, "cut short");
        assert_eq!(Format::parse("name: x\n"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn entries_of_all_kinds_are_walked() {
        let events = seen(&page(&[
            &[entry(2, 5), 1, 2],    // two words
            &[30, 0],                // time extend
            &[0, 8, 3],              // a length of its own: 4 bytes of data
            &[entry(29, 1), 4],      // padding with a length
            &[entry(31, 9), 0],      // absolute time
            &[1, 4],                 // one word
            &[29, 0, 0, 0, 0, 0, 0], // the rest is padding
        ]));
        let words = |event: &Vec<u8>| -> Vec<u32> {
            let words = event.as_chunks::<4>().0;
            words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
        };
        let events: Vec<_> = events.iter().map(words).collect();
        assert_eq!(events, [vec![1, 2], vec![3], vec![4]]);
    }

    proptest! {
        #[test]
        fn no_page_makes_it_stumble(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let total: usize = seen(&bytes).iter().map(Vec::len).sum();
            prop_assert!(total <= bytes.len());
        }
    }

    #[test]
    fn without_tracefs_nothing_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let error = Tracepoint::open(&root, "damon/damos_before_apply").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        sweep(&root);
    }

    #[test]
    fn instances_of_the_gone_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let instances = dir.path().join("sys/kernel/tracing/instances");
        for name in ["hmkeeper-7", "hmkeeper-8", "hmkeeper-x", "somebody-7"] {
            fs::create_dir_all(instances.join(name)).unwrap();
        }
        fs::create_dir_all(dir.path().join("proc/8")).unwrap();
        sweep(&Root::at(dir.path()));
        let left = |name: &str| instances.join(name).exists();
        assert!(!left("hmkeeper-7"));
        assert!(left("hmkeeper-8") && left("hmkeeper-x") && left("somebody-7"));
    }
}
