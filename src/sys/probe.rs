//! What this host offers, tried by doing.

use serde::Serialize;

use super::root::Root;

/// Whether something can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Tried, and it works.
    Present,
    /// The kernel or machine does not have it.
    Missing,
    /// It is there but we may not.
    Forbidden,
    /// It is there but somebody else holds it.
    Busy,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Short stable name: `idle-page-tracking`, `damon-vaddr`, `move-pages`…
    pub name: &'static str,
    /// What came out.
    pub state: State,
    /// Whether hmkeeper can do nothing useful without it.
    pub required: bool,
    /// What was seen, in one line.
    pub detail: String,
    /// What the operator can do about it; empty when present.
    pub remedy: String,
}

/// Tries everything. Leaves the kernel as it was.
pub fn probe(_root: &Root) -> Vec<Finding> {
    Vec::new()
}
