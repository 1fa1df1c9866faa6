//! How figures and lines are written: in what width, in what unit.

use crate::units::text::printable;
use std::time::Duration;

use crate::units::Bytes;

/// Whether lines are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// No: a program reads them, or somebody later.
    All,
    /// They fit a terminal.
    Screen,
}

impl Fit {
    /// At most `width` characters, on a terminal.
    pub(super) fn cut(self, text: &str, width: usize) -> String {
        match self {
            Self::All => printable(text).into_owned(),
            Self::Screen => cut(&printable(text), width),
        }
    }

    /// In lines of at most `width` characters, on a terminal: nothing of it may be missing.
    pub(super) fn wrap(self, text: &str, width: usize) -> String {
        let text = &*printable(text);
        if self == Self::All {
            return text.to_owned();
        }
        let (mut lines, mut line) = (String::new(), String::new());
        for word in text.split_whitespace() {
            let is_full = line.chars().count() + word.chars().count() >= width;
            if is_full && !line.trim().is_empty() {
                lines = lines + &line + "\n";
                " ".clone_into(&mut line);
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines + &line
    }
}

/// So many of something.
pub fn counted(count: u64, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// Bytes, or that there are none.
pub(super) fn bytes_or_none(bytes: u64) -> String {
    match bytes {
        0 => "-".into(),
        bytes => Bytes(bytes).to_string(),
    }
}

/// A latency, or that nobody knows it.
pub(super) fn nanos(latency: Option<u64>) -> String {
    latency.map_or_else(|| "-".into(), |ns| format!("{ns} ns"))
}

/// At most `width` characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain("…".chars()).collect()
}

/// A share.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A length of time in its two largest units.
pub(super) fn age(seconds: f64) -> String {
    if seconds < 60.0 {
        let tenths = (seconds * 10.0).round() / 10.0;
        return format!("{tenths} s");
    }
    let whole = Duration::from_secs_f64(seconds.min(1e12)).as_secs();
    match whole {
        ..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}
