//! Mappings that come and go beside the buffer, as an allocator's do.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use crate::units::Bytes;

/// Mappings made per second, of each kind.
const PER_SECOND: u32 = 8;

/// Bytes that are mapped per second, and unmapped a second later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Churn {
    /// Never touched.
    pub untouched: Bytes,
    /// Every page touched once.
    pub touched: Bytes,
}

impl Churn {
    /// Maps and unmaps for as long as the process lives. What cannot be mapped is
    /// left out.
    pub(super) fn run(self) {
        let mut live = VecDeque::new();
        let mut next = Instant::now();
        loop {
            live.push_back([
                map(self.untouched),
                map(self.touched).inspect(|buffer| {
                    for page in buffer.words().chunks(WORDS_PER_PAGE) {
                        page[0].store(1, Ordering::Relaxed);
                    }
                }),
            ]);
            if live.len() > PER_SECOND as usize {
                live.pop_front();
            }
            // Never catches up on what a busy machine made it miss.
            next = (next + Duration::from_secs(1) / PER_SECOND).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

fn map(per_second: Bytes) -> Option<Buffer> {
    let bytes = Bytes(per_second.0 / u64::from(PER_SECOND));
    if bytes == Bytes::ZERO {
        return None;
    }
    Buffer::new(bytes, HugePages::Refused).ok()
}
