//! Chooses the sampler, best first.

use std::path::Path;

use super::damon::{self, DamonSampler, Space};
use super::page_idle::{self, IdleSampler};
use super::referenced::ReferencedSampler;
use super::root::Root;
use crate::ports::{AccessSampler, PortError, SamplerKind};

/// Opens the wanted sampler, or with `None` the best that this kernel has.
/// First undoes what a crashed run left in the kernel, as noted in
/// `state_dir`, where it notes its own changes too.
///
/// # Errors
/// For a wanted sampler its own trouble; with `None` that of all of them in
/// one, of the kind that is easiest to remedy.
pub fn open(
    root: &Root,
    want: Option<SamplerKind>,
    state_dir: &Path,
) -> Result<Box<dyn AccessSampler>, PortError> {
    damon::clean_up(root, state_dir)?;
    match want {
        Some(SamplerKind::Idle) => idle(root),
        Some(SamplerKind::Damon) => damon(root, Space::Virtual, state_dir),
        Some(SamplerKind::DamonPaddr) => damon(root, Space::Physical, state_dir),
        Some(SamplerKind::Referenced) => Ok(Box::new(ReferencedSampler::open(root)?)),
        Some(kind @ SamplerKind::Simulated) => Err(PortError::Missing {
            what: format!("sampler \"{}\"", kind.as_str()),
            remedy: "choose idle, damon, damon-paddr or referenced".into(),
        }),
        None => best(root, state_dir),
    }
}

/// The best that there is. Page frames only where the kernel knows no other addresses:
/// whatever else is in the way of these is in the way of those as well.
fn best(root: &Root, state_dir: &Path) -> Result<Box<dyn AccessSampler>, PortError> {
    let mut errors = Vec::new();
    match idle(root) {
        Ok(sampler) => return Ok(sampler),
        Err(error) => errors.push(error),
    }
    for space in [Space::Virtual, Space::Physical] {
        match damon(root, space, state_dir) {
            Ok(sampler) => {
                for error in errors {
                    tracing::info!("passed over: {error}");
                }
                return Ok(sampler);
            }
            Err(error) => {
                let is_missing = matches!(error, PortError::Missing { .. });
                errors.push(error);
                if !is_missing {
                    break;
                }
            }
        }
    }
    Err(merge(errors))
}

fn idle(root: &Root) -> Result<Box<dyn AccessSampler>, PortError> {
    page_idle::try_own_page(root)?;
    let mut sampler = IdleSampler::open(root)?;
    match sampler.find_shortest() {
        Ok(shortest) => tracing::info!(%shortest, "what is touched all the time shows in windows"),
        Err(error) => tracing::warn!(%error, "how short windows may be could not be tried"),
    }
    Ok(Box::new(sampler))
}

fn damon(root: &Root, space: Space, state_dir: &Path) -> Result<Box<dyn AccessSampler>, PortError> {
    let mut sampler = DamonSampler::open(root, space, state_dir)?;
    // With a note in the state directory, as for any kdamond of ours.
    sampler.try_own_page()?;
    Ok(Box::new(sampler))
}

/// One error that tells all. Stopping somebody is easier than being root, that is
/// easier than another kernel.
fn merge(mut errors: Vec<PortError>) -> PortError {
    let rank = |error: &PortError| match error {
        PortError::Busy { .. } => 0,
        PortError::Forbidden { .. } => 1,
        PortError::Missing { .. } => 2,
        PortError::Failed { .. } | PortError::Malformed { .. } => 3,
    };
    let what = "a way to see accessed pages (idle-page tracking or DAMON)".to_owned();
    let mut told: Vec<String> = errors.iter().map(ToString::to_string).collect();
    told.dedup();
    let remedy = told.join("; ");
    let missing = |remedy| PortError::Missing {
        what: what.clone(),
        remedy,
    };
    match errors.iter().map(rank).min() {
        Some(0) => PortError::Busy { what, remedy },
        Some(1) => PortError::Forbidden { what, remedy },
        Some(2) => missing(remedy),
        _ => errors.pop().unwrap_or_else(|| missing(remedy)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_kernel_without_either_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let state = dir.path().join("state");
        let error = open(&root, None, &state).err().unwrap();
        assert!(matches!(error, PortError::Missing { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("CONFIG_IDLE_PAGE_TRACKING"), "{text}");
        assert!(text.contains("CONFIG_DAMON_VADDR"), "{text}");
        assert!(!state.exists(), "nothing was noted");
    }

    #[test]
    fn somebody_elses_kdamonds_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kdamonds = dir.path().join("sys/kernel/mm/damon/admin/kdamonds");
        fs::create_dir_all(&kdamonds).unwrap();
        fs::write(kdamonds.join("nr_kdamonds"), "2\n").unwrap();
        let root = Root::at(dir.path());
        let state = dir.path().join("state");
        for want in [Some(SamplerKind::Damon), None] {
            let error = open(&root, want, &state).err().unwrap();
            assert!(matches!(error, PortError::Busy { .. }), "{error}");
            assert!(error.to_string().contains("damo stop"), "{error}");
        }
        let count = fs::read_to_string(kdamonds.join("nr_kdamonds")).unwrap();
        assert_eq!(count, "2\n");
    }

    #[test]
    fn the_simulated_sampler_is_not_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        let want = Some(SamplerKind::Simulated);
        let error = open(&Root::at(dir.path()), want, dir.path()).err().unwrap();
        assert!(matches!(error, PortError::Missing { .. }), "{error}");
    }
}
