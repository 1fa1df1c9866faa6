//! `/proc/PID/maps`, line by line, without an allocation per line: a target
//! may have 100,000 mappings, and they are read once per epoch.
//!
//! ```text
//! 7f1c6a000000-7f1c6a021000 rw-p 00000000 00:00 0          [anon:arena]
//! start-end permissions offset device inode                name
//! ```
//! The name may hold blanks and ` (deleted)`; the kernel writes its newlines
//! as `\012`, so that a line is always one mapping.

use crate::sys::text::hex;
use crate::units::{PageRange, VirtAddr};

/// One mapping, as its line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sys) struct Line<'a> {
    pub(in crate::sys) range: PageRange,
    /// `rwxp`, as the kernel writes it.
    pub(in crate::sys) perms: [u8; 4],
    /// Whether a file, or shared memory, stands behind it.
    pub(super) has_file: bool,
    /// Where in that it begins, in bytes.
    pub(super) offset: u64,
    /// The device and the inode of that; 0 where there is none.
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Empty for an anonymous mapping that nobody has named.
    pub(super) name: &'a [u8],
}

/// The mappings in `text`, in order. A line that cannot be read is left out,
/// as is one that does not lie above those before it: the kernel gives each
/// mapping whole, but between two of its buffers the target may remap.
pub(in crate::sys) fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut reached = VirtAddr(0);
    text.split(|&b| b == b'\n').filter_map(move |line| {
        let line = parse(line)?;
        if line.range.start() < reached {
            return None;
        }
        reached = line.range.end();
        Some(line)
    })
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    // The name is the rest, whatever it holds: only five blanks separate.
    let mut fields = line.splitn(6, |&b| b == b' ');
    let (start, end) = split_once(fields.next()?, b'-')?;
    let range = PageRange::new(VirtAddr(hex(start)?), VirtAddr(hex(end)?))?;
    let perms: [u8; 4] = fields.next()?.try_into().ok()?;
    let offset = fields.next()?;
    let device = fields.next()?;
    let inode = fields.next()?;
    let name = fields.next().unwrap_or_default();
    let name = &name[name.iter().take_while(|&&b| b == b' ').count()..];
    Some(Line {
        range,
        perms,
        has_file: inode != b"0" || device.iter().any(|b| !matches!(b, b'0' | b':')),
        offset: hex(offset)?,
        device: split_once(device, b':')
            .and_then(|(major, minor)| Some(hex(major)? << 32 | hex(minor)?))
            .unwrap_or(0),
        inode: std::str::from_utf8(inode)
            .ok()
            .and_then(|i| i.parse().ok())
            .unwrap_or(0),
        name,
    })
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|&b| b == at)?;
    Some((&text[..index], &text[index + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_read_field_by_field() {
        let text =
            b"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus daemon (deleted)\n\
            7ffd0000-7ffd2000 rw-p 00000000 00:00 0 \n\
            7fff0000-7fff2000 rw-s 00000000 00:01 7                          /dev/zero (deleted)\n";
        let all: Vec<Line<'_>> = lines(text).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].name, b"/usr/bin/dbus daemon (deleted)");
        assert!(all[0].has_file);
        assert_eq!(all[1].name, b"");
        assert!(!all[1].has_file);
        assert_eq!(all[1].range.start(), VirtAddr(0x7ffd_0000));
        assert_eq!(&all[2].perms, b"rw-s");
        assert_eq!((all[0].device, all[0].inode), (8 << 32 | 2, 173_521));
        assert_eq!((all[2].device, all[2].inode), (1, 7));
    }

    #[test]
    fn a_mapping_that_goes_back_is_left_out() {
        let text =
            b"2000-4000 rw-p 0 00:00 0 \n3000-5000 rw-p 0 00:00 0 \n5000-6000 rw-p 0 00:00 0 \n";
        let starts: Vec<u64> = lines(text).map(|l| l.range.start().0).collect();
        assert_eq!(starts, [0x2000, 0x5000]);
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read_back(
            start in 0_u64..1 << 40, pages in 1_u64..1 << 20,
            name in "(\\[anon:[ -~]{0,20}\\]|/[ -~]{0,40}( \\(deleted\\))?|/a\\\\012b|)",
            inode in 0_u64..1 << 40,
        ) {
            let (start, end) = (start << 12, (start + pages) << 12);
            let line = format!("{start:x}-{end:x} rw-p 00000000 00:00 {inode}");
            let line = format!("{line:<72} {name}\n");
            let read: Vec<Line<'_>> = lines(line.as_bytes()).collect();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(read[0].range.start().0, start);
            prop_assert_eq!(read[0].range.end().0, end);
            prop_assert_eq!(read[0].name, name.as_bytes());
            prop_assert_eq!(read[0].has_file, inode != 0);
        }

        #[test]
        fn garbage_never_panics_and_stays_sorted(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut end = VirtAddr(0);
            for line in lines(&text) {
                prop_assert!(line.range.start() >= end);
                end = line.range.end();
            }
        }
    }
}
