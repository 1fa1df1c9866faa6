//! A trace of accesses, as a text of one line each.
//!
//! ```text
//! # whatever
//! seconds,address,count,writes
//! 12.345678,0x7f1234567890,1,0
//! ```
//!
//! **Unit.** Seconds of any clock that ascends; addresses in bytes, hexadecimal after `0x`;
//! `count` accesses that the line stands for (1 where it is left out; the period, where
//! accesses are sampled), of which `writes` (0) write.
//!
//! **Approach.** Line by line into a [`Collector`], page by page. What is touched at a time
//! counts until the next line that is [`TICK`] later or more: a trace may have a line for each
//! access or a count for each minute. Memory that it never names is not there.

use std::io::{self, BufRead, Read};

use super::played::{Collector, PlayError, Played};
use crate::units::{PAGE_BYTES, PageRange, VirtAddr};

/// Accesses no further apart are at one time.
const TICK: f64 = 0.1;
/// A line may be so much earlier than one before it: buffers of several CPUs.
const BACK: f64 = 1.0;
/// Bytes of a line.
const LINE_MAX: usize = 256;
/// Lines: an hour's work.
const LINES_MAX: u64 = 1 << 33;
/// No address of a process is beyond: five levels of page tables reach to 2^57.
const ADDRESS_END: u64 = 1 << 57;
/// Accesses that a line stands for: below it each number is one of an `f64`.
const COUNT_MAX: u64 = 1 << 53;

/// Why a trace cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line is none of a trace.
    #[error("{line}: {message}")]
    Line {
        /// From 1 on.
        line: u64,
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// As a whole it is nothing to play.
    #[error("{0}")]
    Play(#[from] PlayError),
}

/// Whether a file that begins so is a trace: its first line that is no comment begins
/// with a number or `seconds`, and a comma.
pub fn is_trace(begin: &[u8]) -> bool {
    let lines = begin.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    let first = lines.next().and_then(|line| {
        let comma = line.iter().position(|byte| *byte == b',')?;
        std::str::from_utf8(&line[..comma]).ok()
    });
    first.is_some_and(|first| is_header(first) || first.trim().parse::<f64>().is_ok())
}

fn is_header(first: &str) -> bool {
    ["seconds", "time"].contains(&first.trim())
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Access {
    seconds: f64,
    page: PageRange,
    count: u64,
    writes: u64,
}

impl Access {
    /// `Err` says what is wrong.
    fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let (seconds, address, count, writes) = match fields[..] {
            [seconds, address] => (seconds, address, None, None),
            [seconds, address, count] => (seconds, address, Some(count), None),
            [seconds, address, count, writes] => (seconds, address, Some(count), Some(writes)),
            _ => {
                return Err(
                    "write seconds,address,count,writes; the last two may be left out".into(),
                );
            }
        };
        let at: f64 = seconds
            .parse()
            .map_err(|_| format!("\"{seconds}\" is no time; write seconds such as 12.345678"))?;
        // Below 2^53 a tick is told from the next.
        if !(0.0..=COUNT_MAX as f64).contains(&at) {
            return Err(format!("\"{seconds}\" is no time; write seconds from 0 on"));
        }
        let count = match count {
            Some(text) => number(text, "count")?,
            None => 1,
        };
        let writes = match writes {
            Some(text) => number(text, "writes")?,
            None => 0,
        };
        if count == 0 || writes > count {
            return Err("write a count of at least 1, and no more writes than that".into());
        }
        Ok(Self {
            seconds: at,
            page: page(address)?,
            count,
            writes,
        })
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number <= COUNT_MAX);
    number.ok_or_else(|| format!("\"{text}\" is no {what}; write a whole number up to 2^53"))
}

fn page(text: &str) -> Result<PageRange, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let address = match hex {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let address = address.map_err(|_| {
        format!("\"{text}\" is no address; write it as 0x7f1234567890, with 0x before it")
    })?;
    if address >= ADDRESS_END {
        return Err(format!(
            "{text} is no address of a process; leave out the kernel's (perf: event:u)"
        ));
    }
    let first = address / PAGE_BYTES * PAGE_BYTES;
    let page = PageRange::new(VirtAddr(first), VirtAddr(first + PAGE_BYTES));
    page.filter(|_| first > 0).ok_or_else(|| {
        format!("{text} is in the page that nobody has; leave out what has no address")
    })
}

/// The time of a trace as it is read.
#[derive(Clone, Copy, Debug)]
struct Now {
    /// When the tick under way began.
    began: f64,
    /// The latest line.
    latest: f64,
    /// How long the tick before took.
    before: f64,
}

/// Reads all of it.
///
/// # Errors
/// When it cannot be read, a line is none of a trace, or there is more than can be played.
pub fn read(mut input: impl BufRead) -> Result<Played, TraceError> {
    let mut collector = Collector::default();
    let mut now: Option<Now> = None;
    let (mut count, mut writes) = (0.0, 0.0);
    let mut bytes = Vec::new();
    let mut line = 0_u64;
    loop {
        bytes.clear();
        let most = LINE_MAX as u64 + 1;
        if input.by_ref().take(most).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        line += 1;
        let fault = |message: String| TraceError::Line { line, message };
        if bytes.len() > LINE_MAX {
            return Err(fault(format!(
                "is longer than {LINE_MAX} bytes: no line of a trace"
            )));
        }
        if line > LINES_MAX {
            return Err(fault(
                "is one too many; take a part of it, or count by page".into(),
            ));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| fault("is no text".into()))?;
        let text = text.trim();
        let is_first = now.is_none();
        let begins = text.split(',').next().unwrap_or_default();
        if text.is_empty() || text.starts_with('#') || is_first && is_header(begins) {
            continue;
        }
        let access = Access::parse(text).map_err(fault)?;
        let at = access.seconds;
        let mut time = now.unwrap_or(Now {
            began: at,
            latest: at,
            before: 0.0,
        });
        if at < time.latest - BACK {
            let back = time.latest - at;
            let message = format!("is {back:.1} s before the last; sort by time: sort -t, -k1,1g");
            return Err(fault(message));
        }
        if at - time.began >= TICK {
            time.before = at - time.began;
            collector
                .pass(time.before)
                .map_err(|e| fault(e.to_string()))?;
            time.began = at;
        }
        time.latest = time.latest.max(at);
        now = Some(time);
        count += access.count as f64;
        writes += access.writes as f64;
        collector
            .touch(0, access.page, access.count as f64)
            .map_err(|e| fault(e.to_string()))?;
    }
    let now = now.ok_or(PlayError::Empty)?;
    // Nothing tells when the last one ended.
    collector.pass(now.before.max(TICK))?;
    Ok(collector.finish(0, writes / count)?)
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
