//! What `/proc/PID/smaps` says of how much of each mapping was touched.

use super::text::hex;
use crate::tiering::observation::Seen;
use crate::units::{Bytes, HUGE_PAGE_BYTES, PAGE_BYTES, PageRange, VirtAddr};

/// Share of a mapping that must have been touched for all of it to count as accessed.
pub(super) const NEARLY_ALL: f64 = 0.75;
/// What may have been touched where a mapping still counts as idle: next to nothing of
/// it, and little by itself, for it may be what is touched all the time.
const NEXT_TO_NOTHING: f64 = 1.0 / 64.0;
const LITTLE: Bytes = Bytes::from_kib(64);

/// A mapping, as `smaps` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: PageRange,
    pub(super) is_anonymous: bool,
    /// Bytes that are present.
    pub(super) present: Bytes,
    /// Of these, those that were touched.
    pub(super) referenced: Bytes,
    /// Of those that are present, those in huge pages that are mapped as one.
    pub(super) huge: Bytes,
}

impl Mapping {
    /// Page table entries that map it; of what is not cleared, none.
    pub(super) fn entries(self) -> u64 {
        if !self.is_anonymous {
            return 0;
        }
        let small = self.present.saturating_sub(self.huge);
        small.0 / PAGE_BYTES + self.huge.0.div_ceil(HUGE_PAGE_BYTES)
    }

    /// Of them, those whose accessed bit was set again, if all are touched alike.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn set_again(self) -> u64 {
        // A share of a number of entries: no loss that matters.
        (self.entries() as f64 * self.touched()) as u64
    }

    /// Share of what is present that was touched.
    fn touched(self) -> f64 {
        if self.present.is_zero() {
            0.0
        } else {
            (self.referenced.as_f64() / self.present.as_f64()).min(1.0)
        }
    }

    pub(super) fn verdict(self) -> Seen {
        let share = self.touched();
        if self.present.is_zero() || !self.is_anonymous {
            Seen::Unknown
        } else if share >= NEARLY_ALL {
            Seen::Accessed
        } else if share <= NEXT_TO_NOTHING && self.referenced <= LITTLE {
            Seen::Idle
        } else {
            Seen::Unknown
        }
    }
}

/// What is mapped by huge entries: anonymous, of shared memory, of files.
const HUGE: [&[u8]; 3] = [b"AnonHugePages:", b"ShmemPmdMapped:", b"FilePmdMapped:"];

/// The mappings in the text of `smaps`, in order. What cannot be read is left out.
pub(super) fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping> {
    let mut lines = text.split(|&b| b == b'\n').peekable();
    let mut reached = VirtAddr(0);
    std::iter::from_fn(move || {
        loop {
            // "7f1c6a000000-7f1c6a021000 rw-p 00000000 00:00 0"
            let (range, is_anonymous) = lines.find_map(header)?;
            let mut mapping = Mapping {
                range,
                is_anonymous,
                present: Bytes::ZERO,
                referenced: Bytes::ZERO,
                huge: Bytes::ZERO,
            };
            while let Some(line) = lines.next_if(|line| header(line).is_none()) {
                if let Some(rest) = line.strip_prefix(b"Rss:") {
                    mapping.present = kib(rest);
                } else if let Some(rest) = line.strip_prefix(b"Referenced:") {
                    mapping.referenced = kib(rest);
                } else if HUGE.iter().any(|key| line.starts_with(key)) {
                    let rest = line.split(|&b| b == b':').nth(1).unwrap_or_default();
                    mapping.huge += kib(rest);
                }
            }
            // Between two of the kernel's buffers the target may remap.
            if range.start() >= reached {
                reached = range.end();
                return Some(mapping);
            }
        }
    })
}

/// The range of a mapping's first line, and whether no file stands behind it; `None` of the
/// lines that follow it, which begin with a capital letter.
fn header(line: &[u8]) -> Option<(PageRange, bool)> {
    let mut fields = line.split(|&b| b == b' ');
    let range = fields.next()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    // After permissions, offset and device comes the inode.
    let is_anonymous = fields.nth(3) == Some(b"0");
    Some((
        PageRange::new(VirtAddr(start), VirtAddr(end))?,
        is_anonymous,
    ))
}

/// "       132 kB".
fn kib(text: &[u8]) -> Bytes {
    let digits = text.trim_ascii().split(|&b| b == b' ').next();
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let kib: u64 = number.and_then(|n| n.parse().ok()).unwrap_or(0);
    Bytes(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] =
        b"7f0000000000-7f0000010000 rw-p 00000000 00:00 0                          [anon:a b]\n\
        Size:                 64 kB\n\
        Rss:                  64 kB\n\
        Pss:                  64 kB\n\
        Referenced:           48 kB\n\
        Anonymous:            64 kB\n\
        AnonHugePages:      2048 kB\n\
        ShmemPmdMapped:        0 kB\n\
        VmFlags: rd wr mr mw me ac sd\n\
        7f0000010000-7f0000020000 r--p 00000000 08:02 173521 /usr/lib/Rss: 7 kB\n\
        Rss:                   0 kB\n\
        Referenced:            0 kB\n\
        7f0000008000-7f0000030000 rw-p 00000000 00:00 0\n\
        Rss:                  64 kB\n";

    #[test]
    fn mappings_are_read_with_what_was_touched_of_them() {
        let all: Vec<Mapping> = mappings(TEXT).collect();
        assert_eq!(all.len(), 2, "one that goes back is left out");
        assert_eq!(all[0].range.start(), VirtAddr(0x7f00_0000_0000));
        assert_eq!(all[0].present, Bytes(64 << 10));
        assert_eq!(all[0].referenced, Bytes(48 << 10));
        assert_eq!(all[0].huge, Bytes::from_mib(2));
        assert_eq!(all[0].verdict(), Seen::Accessed);
        assert_eq!(all[1].verdict(), Seen::Unknown, "nothing of it is there");
    }

    #[test]
    fn a_mapping_of_which_a_part_was_touched_tells_nothing() {
        let verdict = |present: u64, referenced: u64| {
            let mapping = Mapping {
                range: PageRange::new(VirtAddr(0), VirtAddr(1 << 30)).unwrap(),
                is_anonymous: true,
                present: Bytes(present << 10),
                referenced: Bytes(referenced << 10),
                huge: Bytes::ZERO,
            };
            mapping.verdict()
        };
        assert_eq!(verdict(1024, 1024), Seen::Accessed);
        assert_eq!(verdict(1024, 767), Seen::Unknown);
        assert_eq!(verdict(1024, 17), Seen::Unknown);
        assert_eq!(verdict(1024, 16), Seen::Idle);
        assert_eq!(verdict(1 << 20, 64), Seen::Idle);
        assert_eq!(
            verdict(1 << 20, 68),
            Seen::Unknown,
            "it may be touched all the time"
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_stays_sorted(
            text in proptest::collection::vec(any::<u8>(), 0..400),
            at in 0..TEXT.len(),
        ) {
            let mixed = [&TEXT[..at], &text, &TEXT[at..]].concat();
            let mut end = VirtAddr(0);
            for mapping in mappings(&mixed) {
                prop_assert!(mapping.range.start() >= end);
                end = mapping.range.end();
            }
        }
    }
}
