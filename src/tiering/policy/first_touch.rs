//! `first-touch`: nothing is moved. The daemon only watches, and tells what it sees.

use super::{Budget, Policy, View};
use crate::tiering::plan::Move;

/// Leaves all where it is.
#[derive(Clone, Copy, Debug)]
pub struct FirstTouch;

impl Policy for FirstTouch {
    fn name(&self) -> &'static str {
        "first-touch"
    }

    fn ema(&self) -> f32 {
        0.5
    }

    fn decide(&mut self, _: &View<'_>, _: Budget) -> Vec<Move> {
        Vec::new()
    }
}
