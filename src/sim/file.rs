//! How files that describe machines and workloads are read: TOML, unknown keys refused,
//! quantities with their units.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::units::text::{parse_bandwidth, parse_bytes, parse_time};
use crate::units::{Bandwidth, Bytes, Nanos};

/// A machine or workload that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is not such a file.
    #[error("{line}:{column}: {message}")]
    Malformed {
        /// From 1 on.
        line: usize,
        /// In characters, from 1 on.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// It contradicts itself.
    #[error("{key}: {message}")]
    Contradiction {
        /// Where.
        key: String,
        /// What is wrong, and what to write instead.
        message: String,
    },
}

impl FileError {
    pub(super) fn at(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Contradiction {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Reads a whole file.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        FileError::Malformed {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: error.message().replace('\n', "; "),
        }
    })
}

/// Names are shown in tables: short, and of letters, digits, `.`, `_` and `-`.
pub(super) fn name(name: String) -> Result<String, FileError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=32).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(name);
    }
    let message = "write 1 to 32 letters, digits, \".\", \"_\" and \"-\"";
    Err(FileError::at("name", message))
}

fn quantity<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: fn(&str) -> Option<T>,
    what: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).ok_or_else(|| D::Error::custom(format!("\"{text}\" is not {what}")))
}

/// `"96GB"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) Bytes);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quantity(
            deserializer,
            parse_bytes,
            "a size such as \"96GB\" or \"2MiB\"",
        )
        .map(Self)
    }
}

/// `"90ns"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) Nanos);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quantity(
            deserializer,
            parse_time,
            "a time such as \"90ns\" or \"10min\"",
        )
        .map(Self)
    }
}

/// `"95GB/s"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed(pub(super) Bandwidth);

impl<'de> Deserialize<'de> for Speed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quantity(
            deserializer,
            parse_bandwidth,
            "a bandwidth such as \"95GB/s\"",
        )
        .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct One {
        size: Size,
    }

    #[test]
    fn faults_name_their_place() {
        let of = |text: &str| read::<One>(text).map(|one| one.size.0);
        assert_eq!(of("size = \"4KiB\""), Ok(Bytes(4096)));
        let fault = of("\nsize = \"4 pages\"").unwrap_err().to_string();
        assert!(
            fault.starts_with("2:8: \"4 pages\" is not a size"),
            "{fault}"
        );
        let fault = of("size = \"4KiB\"\nsise = 1").unwrap_err().to_string();
        assert!(
            fault.starts_with("2:1: ") && fault.contains("sise"),
            "{fault}"
        );
    }
}
