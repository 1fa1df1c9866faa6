//! How quantities are written in files: `"10s"`, `"200MiB"`, `"35GB/s"`.
//!
//! Printing gives the shortest form that is exact, so that what is printed
//! and read again is the same value.

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

#[cfg(test)]
mod tests {
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

    proptest! {
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
