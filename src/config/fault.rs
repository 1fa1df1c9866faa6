//! What is wrong with a configuration: every fault with its place and the
//! remedy.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::units::text::printable;

/// Faults that are told: whoever has more corrects these first.
pub(super) const FAULTS_MAX: usize = 20;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Line, from 1; 0 before [`Faults::locate`].
    pub line: usize,
    /// Column in characters, from 1; 0 before [`Faults::locate`].
    pub column: usize,
    /// The key's path, such as `profiling.interval`; empty for a fault of the
    /// file's form.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
    /// Bytes of the source that it is about.
    #[serde(skip)]
    pub(crate) span: Range<usize>,
}

impl Fault {
    /// A fault whose line and column are not known yet.
    pub(crate) fn new(
        span: Range<usize>,
        key: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            line: 0,
            column: 0,
            key: key.into(),
            message: message.into(),
            remedy: remedy.into(),
            span,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// All faults of one file, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// The file; `None` for text without one.
    pub file: Option<PathBuf>,
    /// At least one, at most [`FAULTS_MAX`].
    pub faults: Vec<Fault>,
    /// How many more there are.
    pub more: usize,
}

impl Faults {
    /// Faults of some text whose places are byte offsets still.
    pub(crate) fn unlocated(faults: Vec<Fault>) -> Self {
        let (file, more) = (None, 0);
        Self { file, faults, more }
    }

    /// Turns byte offsets into lines and columns of `source`, and sorts.
    pub(crate) fn locate(mut self, source: &str, file: Option<&Path>) -> Self {
        self.faults.sort_by_key(|f| f.span.start);
        self.faults.dedup();
        self.more = self.faults.len().saturating_sub(FAULTS_MAX);
        self.faults.truncate(FAULTS_MAX);
        for fault in &mut self.faults {
            fault.key = cut(&fault.key);
            fault.message = cut(&fault.message);
            let before = &source[..floor_char_boundary(source, fault.span.start)];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            fault.line = before.matches('\n').count() + 1;
            fault.column = before[line_start..].chars().count() + 1;
        }
        self.file = file.map(Path::to_owned);
        self
    }

    /// How many faults there are.
    pub fn count(&self) -> usize {
        self.faults.len() + self.more
    }

    /// One line per fault: `FILE:LINE:COLUMN: KEY: what; remedy`, and one for
    /// those beyond [`FAULTS_MAX`].
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let place = self.file.as_ref();
        let place = place.map_or_else(String::new, |file| format!("{}:", file.display()));
        let more = match self.more {
            0 => None,
            more => Some(format!(
                "{place} and {more} more faults; correct these first"
            )),
        };
        let faults = self.faults.iter();
        let faults = faults.map(move |fault| printable(&format!("{place}{fault}")).into_owned());
        faults.chain(more)
    }
}

/// What a line of the report can take.
fn cut(text: &str) -> String {
    const LONG: usize = 200;
    if text.chars().nth(LONG).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONG).chain("…".chars()).collect()
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Faults {
    /// [`Faults::lines`], each on a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, line) in self.lines().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&line)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_and_are_sorted() {
        let source = "a = 1\n# größe\nmaß = 2 # é\n";
        let at = |needle: &str| {
            let start = source.find(needle).unwrap();
            start..start + needle.len()
        };
        let faults = Faults::unlocated(vec![
            Fault::new(at("# é"), "maß", "late", "move it"),
            Fault::new(at("2"), "maß", "two", "write 3"),
            Fault::new(at("1"), "", "one", ""),
        ])
        .locate(source, Some(Path::new("x.toml")));
        assert_eq!(
            faults.to_string(),
            "x.toml:1:5: one\nx.toml:3:7: maß: two; write 3\nx.toml:3:9: maß: late; move it"
        );
    }

    #[test]
    fn only_the_first_faults_are_told_and_the_others_counted() {
        let source = "x\n".repeat(50);
        let faults = (0..50)
            .rev()
            .map(|i| Fault::new(2 * i..2 * i + 1, "k", "m", "r"));
        let faults = Faults::unlocated(faults.collect()).locate(&source, None);
        let lines: Vec<String> = faults.lines().collect();
        assert_eq!(faults.count(), 50);
        assert_eq!(lines.len(), FAULTS_MAX + 1);
        assert_eq!(lines[0], "1:1: k: m; r");
        assert_eq!(
            lines[FAULTS_MAX],
            " and 30 more faults; correct these first"
        );
        let long = Fault::new(0..1, "k".repeat(1 << 20), "a\n\u{1b}", "");
        let line = Faults::unlocated(vec![long]).locate("x", None).to_string();
        assert!(
            line.chars().count() < 300 && line.ends_with("a\\n\\u{1b}"),
            "{line}"
        );
    }

    #[test]
    fn a_span_past_the_end_is_the_end() {
        let faults = Faults::unlocated(vec![Fault::new(90..91, "k", "m", "")]).locate("a\nb", None);
        assert_eq!(faults.to_string(), "2:2: k: m");
    }
}
