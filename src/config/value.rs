//! How nodes and mappings are written in the configuration: `"0-2,4"`,
//! `"0x1000-0x3000"`. Sizes and times are as everywhere ([`units::text`](crate::units::text)).

use crate::ports::MappingFilter;
pub use crate::units::text::{parse_bytes, parse_time, print_bytes, print_time};
use crate::units::{NodeId, PageRange, VirtAddr};

/// Node numbers beyond this are taken for a slip of the pen: the kernel's
/// largest `CONFIG_NODES_SHIFT` is 10.
const NODE_COUNT_MAX: u32 = 1024;

/// A list of nodes as the kernel writes them: `"0-2,4"`. Ascending, each once.
pub fn parse_nodes(text: &str) -> Option<Vec<NodeId>> {
    let mut nodes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().ok()?;
        let last: u32 = last.trim().parse().ok()?;
        if first > last || last >= NODE_COUNT_MAX {
            return None;
        }
        nodes.extend((first..=last).map(NodeId));
    }
    let count = nodes.len();
    nodes.sort_unstable();
    nodes.dedup();
    (nodes.len() == count).then_some(nodes)
}

/// A node number, where it can be one.
pub fn parse_node(number: i64) -> Option<NodeId> {
    u32::try_from(number)
        .ok()
        .filter(|n| *n < NODE_COUNT_MAX)
        .map(NodeId)
}

/// Addresses `"0x7f0000000000-0x7f0040000000"` (half-open, page-aligned) or,
/// when it does not begin with `0x`, a glob over mapping names.
pub fn parse_mapping(text: &str) -> Result<MappingFilter, &'static str> {
    if !text.starts_with("0x") {
        if text.is_empty() {
            return Err("is empty");
        }
        return Ok(MappingFilter::Name(text.to_owned()));
    }
    let address = |part: &str| {
        let digits = part.trim().strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok().map(VirtAddr)
    };
    let (start, end) = text
        .split_once('-')
        .and_then(|(start, end)| Some((address(start)?, address(end)?)))
        .ok_or("is not a range of addresses")?;
    if start.page() != start || end.page() != end {
        return Err("does not begin and end at multiples of 0x1000");
    }
    PageRange::new(start, end)
        .map(MappingFilter::Range)
        .ok_or("is empty: its end is not above its start")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes_as_the_kernel_writes_them() {
        let ids = |list: &[u32]| Some(list.iter().copied().map(NodeId).collect::<Vec<_>>());
        assert_eq!(parse_nodes("0-2,4"), ids(&[0, 1, 2, 4]));
        assert_eq!(parse_nodes("3,1"), ids(&[1, 3]));
        for wrong in ["", "2-0", "0,0", "0-1,1", "a", "0-99999999"] {
            assert_eq!(parse_nodes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn mappings_are_ranges_or_names() {
        assert_eq!(
            parse_mapping("0x1000-0x3000"),
            Ok(MappingFilter::Range(
                PageRange::new(VirtAddr(0x1000), VirtAddr(0x3000)).unwrap()
            ))
        );
        assert_eq!(
            parse_mapping("[heap]"),
            Ok(MappingFilter::Name("[heap]".into()))
        );
        assert!(parse_mapping("0x3000-0x1000").unwrap_err().contains("end"));
        assert!(
            parse_mapping("0x1001-0x3000")
                .unwrap_err()
                .contains("multiples")
        );
        assert!(parse_mapping("0x1000").unwrap_err().contains("not a range"));
        assert!(parse_mapping("").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC*") {
            let _ = (parse_nodes(&text), parse_mapping(&text));
        }
    }
}
