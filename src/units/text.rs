//! How quantities are written in files: `"10s"`, `"200MiB"`, `"35GB/s"`.
//!
//! Printing gives the shortest form that is exact, so that what is printed
//! and read again is the same value.
//!
//! And how text from outside is shown: names of commands, files and tiers,
//! arguments, what files and sockets say. Any of it may hold characters that
//! forge a line of a log, steer a terminal or turn what is read around.
//! [`printable`] writes those out. Whoever takes such text in, or shows it,
//! calls it; to do so twice changes nothing.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Bandwidth, Bytes, Nanos};

/// Units of sizes with their bytes: binary ones, then decimal ones.
const SIZES: [(&str, u64); 11] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of time with their nanoseconds.
const TIMES: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A number with one of `units`: digits, an optional decimal part, optional
/// blanks, the unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let scale = units.iter().find(|(name, _)| *name == unit.trim())?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Enough for every exact value; more digits than that are a mistake.
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 18 || fraction.contains('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) / denominator;
    whole.checked_add(u64::try_from(part).ok()?)
}

/// The shortest exact way to write `value`; the larger unit where equal.
fn print(value: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .filter(|(_, scale)| value.is_multiple_of(*scale))
        .map(|(name, scale)| format!("{}{name}", value / scale))
        .min_by_key(String::len)
        .expect("the last unit divides everything")
}

/// A size: `"4KiB"`, `"1.5 GiB"`, `"200MB"`. `None` when it is not one.
pub fn parse_bytes(text: &str) -> Option<Bytes> {
    parse(text, &SIZES).map(Bytes)
}

/// A size as [`parse_bytes`] reads it.
pub fn print_bytes(bytes: Bytes) -> String {
    if bytes.is_zero() {
        return "0B".into();
    }
    print(bytes.0, &SIZES)
}

/// A length of time: `"500ms"`, `"10s"`, `"2min"`. `None` when it is not one.
pub fn parse_time(text: &str) -> Option<Nanos> {
    parse(text, &TIMES).map(Nanos)
}

/// A length of time as [`parse_time`] reads it.
pub fn print_time(time: Nanos) -> String {
    if time == Nanos::ZERO {
        return "0s".into();
    }
    print(time.0, &TIMES)
}

/// A rate: `"35GB/s"`, `"200MiB/s"`. `None` when it is not one.
pub fn parse_bandwidth(text: &str) -> Option<Bandwidth> {
    let bytes = text.trim().strip_suffix("/s")?;
    parse(bytes, &SIZES).map(Bandwidth)
}

/// Whether a reader sees `c` itself: no control character, and none that
/// ends a line or changes the order in which others are shown.
fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        ))
}

fn written_out(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    let stays = |c: char| is_plain(c) || keeps(c);
    if text.chars().all(stays) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if stays(c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
    }
    out.into()
}

/// `text` as one line that shows all that is in it: a line feed as `\n`, an
/// escape as `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, |_| false)
}

/// [`printable`], but of several lines.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    written_out(text, |c| c == '\n')
}

/// JSON that shows all that is in it, and means the same.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    if json.chars().all(|c| is_plain(c) || c == '\n') {
        return json.into();
    }
    let mut out = String::with_capacity(json.len() + 8);
    let mut units = [0; 2];
    for c in json.chars() {
        if is_plain(c) || c == '\n' {
            out.push(c);
        } else {
            // Such a character stands in a string only.
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use proptest::collection;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_need_a_unit_and_know_both_families() {
        assert_eq!(parse_bytes("200MiB"), Some(Bytes::from_mib(200)));
        assert_eq!(parse_bytes("200MB"), Some(Bytes(200_000_000)));
        assert_eq!(parse_bytes(" 1.5 GiB "), Some(Bytes::from_mib(1536)));
        assert_eq!(parse_bytes("0.5KiB"), Some(Bytes(512)));
        for wrong in [
            "200",
            "MiB",
            "1.GiB",
            ".5GiB",
            "1.2.3GiB",
            "-1MiB",
            "1e3B",
            "10 mib",
            "1M",
            "",
            "99999999PiB",
        ] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("10s"), Some(Nanos::from_secs(10)));
        assert_eq!(parse_time("1.5s"), Some(Nanos::from_millis(1500)));
        assert_eq!(parse_time("2min"), Some(Nanos::from_secs(120)));
        for wrong in ["10", "10 seconds", "10m", "s", "-1s"] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_shortest_exact_form_is_printed() {
        assert_eq!(print_bytes(Bytes(200_000_000)), "200MB");
        assert_eq!(print_bytes(Bytes(64 << 10)), "64KiB");
        assert_eq!(print_bytes(Bytes(1 << 40)), "1TiB");
        assert_eq!(print_bytes(Bytes(4097)), "4097B");
        assert_eq!(print_time(Nanos::from_secs(10)), "10s");
        assert_eq!(print_time(Nanos::from_millis(1500)), "1500ms");
        assert_eq!(print_time(Nanos::from_secs(120)), "2min");
    }

    #[test]
    fn bandwidths_are_sizes_per_second() {
        assert_eq!(parse_bandwidth("35GB/s"), Some(Bandwidth(35_000_000_000)));
        assert_eq!(parse_bandwidth("1 MiB/s"), Some(Bandwidth(1 << 20)));
        assert_eq!(parse_bandwidth("35GB"), None);
    }

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert!(matches!(printable("größe → 100 %"), Cow::Borrowed(_)));
        assert_eq!(printable("a\nb\r\t"), "a\\nb\\r\\t");
        assert_eq!(
            printable("\u{1b}[2J\u{9b}1m\u{7f}"),
            "\\u{1b}[2J\\u{9b}1m\\u{7f}"
        );
        assert_eq!(printable("a\u{202e}b\u{2066}c"), "a\\u{202e}b\\u{2066}c");
        assert_eq!(printable_lines("a\n\u{1b}b"), "a\n\\u{1b}b");
        let json = serde_json::to_string("a\u{9b}\u{202e}\u{e0001}\n").unwrap();
        assert_eq!(printable_json(&json), r#""a\u009b\u202e\udb40\udc01\n""#);
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_plain_line(chars in collection::vec(any::<char>(), 0..40)) {
            let text: String = chars.into_iter().collect();
            let shown = printable(&text);
            prop_assert!(shown.chars().all(is_plain));
            prop_assert_eq!(printable(&shown), shown.clone());
            prop_assert_eq!(printable_lines(&text).lines().count(), text.split('\n').count()
                - usize::from(text.is_empty() || text.ends_with('\n')));
        }

        #[test]
        fn json_means_the_same_and_is_plain(chars in collection::vec(any::<char>(), 0..40)) {
            let text: String = chars.into_iter().collect();
            let json = serde_json::to_string(&text).unwrap();
            let shown = printable_json(&json);
            prop_assert!(shown.chars().all(is_plain));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }

        #[test]
        fn printed_sizes_read_back(n: u64) {
            prop_assert_eq!(parse_bytes(&print_bytes(Bytes(n))), Some(Bytes(n)));
        }

        #[test]
        fn printed_round_sizes_read_back(n in 0_u64..2000, unit in 0..SIZES.len()) {
            let bytes = Bytes(n * SIZES[unit].1);
            prop_assert_eq!(parse_bytes(&print_bytes(bytes)), Some(bytes));
        }

        #[test]
        fn printed_times_read_back(n: u64) {
            prop_assert_eq!(parse_time(&print_time(Nanos(n))), Some(Nanos(n)));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC*") {
            let _ = (parse_bytes(&text), parse_time(&text), parse_bandwidth(&text));
        }
    }
}
