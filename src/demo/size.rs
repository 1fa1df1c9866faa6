//! Sizes as people type them.

use crate::units::Bytes;

/// Reads `64MiB`, `1GiB`, `4096`: whole numbers of bytes, or with a binary
/// unit (`K`, `KiB`, `M`, `MiB`, `G`, `GiB`).
///
/// # Errors
/// What is wrong, and what is right.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(format!("{unit:?} is no unit of bytes: use KiB, MiB or GiB")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no size: write 64MiB or 1GiB"))?;
    number
        .checked_mul(1 << shift)
        .map(Bytes)
        .ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_bytes("64MiB"), Ok(Bytes::from_mib(64)));
        assert_eq!(parse_bytes("1G"), Ok(Bytes::from_mib(1024)));
        assert_eq!(parse_bytes("4096"), Ok(Bytes(4096)));
        assert!(parse_bytes("1.5G").is_err());
        assert!(parse_bytes("MiB").is_err());
        assert!(parse_bytes("64MB").unwrap_err().contains("use KiB"));
        assert!(parse_bytes("99999999999GiB").unwrap_err().contains("large"));
    }
}
