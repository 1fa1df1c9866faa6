//! Reads single values: their type, their bounds, and a fault with its remedy
//! where they are wrong.

use std::ops::Range;

use toml::Value;

use super::fault::Fault;
use super::raw::Entry;
use super::value::{parse_bytes, parse_time, print_bytes, print_time};
use crate::tiering::settings::Asking;
use crate::units::{Bytes, Nanos, PAGE_BYTES};

/// The largest page table entry that a region could begin with (1 GiB).
const REGION_MAX: Bytes = Bytes(1 << 30);

/// Collects faults; each reader gives `None` for what is absent or wrong.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) faults: Vec<Fault>,
}

impl Checker {
    pub(super) fn fault(
        &mut self,
        entry: &Entry,
        key: &str,
        message: impl Into<String>,
        remedy: &str,
    ) {
        self.at(entry.span(), key, message, remedy);
    }

    pub(super) fn at(
        &mut self,
        span: Range<usize>,
        key: &str,
        message: impl Into<String>,
        remedy: &str,
    ) {
        self.faults.push(Fault::new(span, key, message, remedy));
    }

    pub(super) fn read<T>(
        &mut self,
        entry: Option<&Entry>,
        key: &str,
        what: &str,
        remedy: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let entry = entry?;
        let value = read(entry.get_ref());
        if value.is_none() {
            self.fault(
                entry,
                key,
                format!("{} is not {what}", shown(entry.get_ref())),
                remedy,
            );
        }
        value
    }

    pub(super) fn text(&mut self, entry: Option<&Entry>, key: &str) -> Option<String> {
        self.read(entry, key, "a string", "write it in quotes", |v| {
            v.as_str().map(str::to_owned)
        })
    }

    pub(super) fn name(&mut self, entry: Option<&Entry>, key: &str) -> Option<String> {
        let remedy = "names are letters, digits and any of -_.@: for they become metric labels";
        self.read(entry, key, "a name", remedy, |v| {
            let text = v.as_str()?;
            let ok = |c: char| c.is_alphanumeric() || "-_.@:".contains(c);
            (!text.is_empty() && text.chars().all(ok)).then(|| text.to_owned())
        })
    }

    pub(super) fn boolean(&mut self, entry: Option<&Entry>, key: &str) -> Option<bool> {
        self.read(entry, key, "true or false", "write true or false", |v| {
            v.as_bool()
        })
    }

    pub(super) fn asking(&mut self, entry: Option<&Entry>, key: &str) -> Option<Asking> {
        let what = "true, false or \"auto\"";
        self.read(
            entry,
            key,
            what,
            "write true, false or \"auto\"",
            |v| match v {
                Value::Boolean(true) => Some(Asking::Always),
                Value::Boolean(false) => Some(Asking::Never),
                Value::String(text) if text == "auto" => Some(Asking::Auto),
                _ => None,
            },
        )
    }

    pub(super) fn integer(
        &mut self,
        entry: Option<&Entry>,
        key: &str,
        min: i64,
        max: i64,
        remedy: &str,
    ) -> Option<i64> {
        let what = format!("a whole number from {min} to {max}");
        self.read(entry, key, &what, remedy, |v| {
            v.as_integer().filter(|n| (min..=max).contains(n))
        })
    }

    /// A number within `min..=max`, or above `min` when `open`.
    pub(super) fn ratio(
        &mut self,
        entry: Option<&Entry>,
        key: &str,
        open: bool,
        max: f64,
    ) -> Option<f64> {
        let what = if open {
            format!("a number above 0, at most {max}")
        } else {
            format!("a number from 0 to {max}")
        };
        self.read(entry, key, &what, "write a share such as 0.05", |v| {
            #[allow(clippy::cast_precision_loss, reason = "only 0 and 1 are in range")]
            let number = v.as_float().or(v.as_integer().map(|n| n as f64))?;
            let above = if open { number > 0.0 } else { number >= 0.0 };
            (above && number <= max).then_some(number)
        })
    }

    pub(super) fn time(
        &mut self,
        entry: Option<&Entry>,
        key: &str,
        min: Nanos,
        max: Nanos,
    ) -> Option<Nanos> {
        let remedy = "write a number and a unit: \"500ms\", \"10s\", \"2min\"";
        let time = self.read(entry, key, "a length of time", remedy, |v| {
            v.as_str().and_then(parse_time)
        })?;
        if time < min || time > max {
            let range = format!("choose from {} to {}", print_time(min), print_time(max));
            self.fault(entry?, key, "is out of bounds", &range);
            return None;
        }
        Some(time)
    }

    pub(super) fn bytes(&mut self, entry: Option<&Entry>, key: &str, min: Bytes) -> Option<Bytes> {
        let remedy = "write a number and a unit: \"64KiB\", \"200MiB\", \"1.5GiB\"";
        let bytes = self.read(entry, key, "a size", remedy, |v| {
            v.as_str().and_then(parse_bytes)
        })?;
        if bytes < min {
            let least = format!("write \"{}\" or more", print_bytes(min));
            self.fault(entry?, key, "is too small", &least);
            return None;
        }
        Some(bytes)
    }

    pub(super) fn region(&mut self, entry: Option<&Entry>, key: &str) -> Option<Bytes> {
        let bytes = self.bytes(entry, key, Bytes(PAGE_BYTES))?;
        if !bytes.0.is_power_of_two() || bytes > REGION_MAX {
            let remedy = "write \"4KiB\", \"8KiB\" … \"2MiB\" … \"1GiB\"";
            self.fault(entry?, key, "is not a power of two up to 1 GiB", remedy);
            return None;
        }
        Some(bytes)
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        entry: Option<&Entry>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(n, _)| format!("\"{n}\"")).collect();
        let remedy = format!("choose {}", names.join(" or "));
        self.read(entry, key, "known here", &remedy, |v| {
            let text = v.as_str()?;
            choices.iter().find(|(n, _)| *n == text).map(|(_, t)| *t)
        })
    }
}

/// A value as it was written, cut where it is long.
fn shown(value: &Value) -> String {
    const LONG: usize = 60;
    let text = match value {
        Value::Table(_) => "a section".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    };
    if text.chars().count() > LONG {
        return text.chars().take(LONG).chain("…".chars()).collect();
    }
    text
}

/// Whether it says `"auto"`, as absence does.
pub(super) fn is_auto(entry: Option<&Entry>) -> bool {
    entry.is_none_or(|e| e.get_ref().as_str() == Some("auto"))
}

/// Whether it says that this is not wanted.
pub(super) fn is_off(entry: &Entry) -> bool {
    matches!(entry.get_ref().as_str(), Some("" | "off"))
}
