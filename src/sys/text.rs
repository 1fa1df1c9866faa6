//! The small text formats of `/proc` and `/sys`: lists such as `0-2,4`, hexadecimal
//! addresses, and `Key:   123 kB` lines.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::ports::PortError;
use crate::units::Bytes;

/// A whole small file.
pub(super) fn read(path: &Path) -> Result<String, PortError> {
    fs::read_to_string(path).map_err(|source| PortError::Failed {
        what: path.display().to_string(),
        source,
    })
}

/// A number alone in a file; `None` where the file is missing or holds none.
pub(super) fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Writes to a file that is there; unlike `fs::write` it never tries to create one.
pub(super) fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// The numbers of a kernel list: `0-2,4` is 0, 1, 2, 4; an empty one is none.
/// `None` where it is malformed.
pub(super) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                // The kernel's own limits are far below; a corrupt file must
                // not make us allocate gigabytes.
                if first > last || last - first > 1 << 20 {
                    return None;
                }
                all.extend(first..=last);
            }
            None => all.push(part.parse().ok()?),
        }
    }
    Some(all)
}

/// [`parse_list`] of a file.
pub(super) fn read_list(path: &Path) -> Result<Vec<u32>, PortError> {
    let text = read(path)?;
    parse_list(&text).ok_or_else(|| PortError::Malformed {
        what: path.display().to_string(),
        detail: format!("not a list of numbers: {:?}", text.trim()),
    })
}

/// The value of `key` in lines such as `Node 0 MemTotal:  752628 kB`.
pub(super) fn kib_field(text: &str, key: &str) -> Option<Bytes> {
    text.lines().find_map(|line| {
        let (head, value) = line.split_once(':')?;
        if head.rsplit(' ').next()? != key {
            return None;
        }
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(Bytes(kib.checked_mul(1024)?))
    })
}

/// At most 16 hexadecimal digits.
pub(super) fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(value << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_ranges_and_single_numbers() {
        assert_eq!(parse_list("0-2,4\n"), Some(vec![0, 1, 2, 4]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-4294967295"), None);
        assert_eq!(parse_list("a"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Node 0 MemTotal:  752628 kB\nNode 0 MemFree: 7 kB\n";
        assert_eq!(kib_field(text, "MemFree"), Some(Bytes(7 << 10)));
        assert_eq!(kib_field(text, "Free"), None);
    }
}
