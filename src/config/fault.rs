//! What is wrong with a configuration: every fault with its place and the
//! remedy.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

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
    /// At least one.
    pub faults: Vec<Fault>,
}

impl Faults {
    /// Faults of some text whose places are byte offsets still.
    pub(crate) fn unlocated(faults: Vec<Fault>) -> Self {
        Self { file: None, faults }
    }

    /// Turns byte offsets into lines and columns of `source`, and sorts.
    pub(crate) fn locate(mut self, source: &str, file: Option<&Path>) -> Self {
        for fault in &mut self.faults {
            let before = &source[..floor_char_boundary(source, fault.span.start)];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            fault.line = before.matches('\n').count() + 1;
            fault.column = before[line_start..].chars().count() + 1;
        }
        self.faults.sort_by_key(|f| (f.line, f.column));
        self.faults.dedup();
        self.file = file.map(Path::to_owned);
        self
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Faults {
    /// One line per fault: `FILE:LINE:COLUMN: KEY: what; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
            }
            write!(f, "{fault}")?;
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
    fn a_span_past_the_end_is_the_end() {
        let faults = Faults::unlocated(vec![Fault::new(90..91, "k", "m", "")]).locate("a\nb", None);
        assert_eq!(faults.to_string(), "2:2: k: m");
    }
}
