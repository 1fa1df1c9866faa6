//! What goes below the slowest tier.

use super::Engine;
use crate::tiering::observation::{Observation, TargetMap};
use crate::tiering::pageout::{self, Candidate, PageOut, Pageable, PagingRest};
use crate::tiering::tier::TierView;
use crate::units::{Bytes, Nanos};

impl Engine {
    /// What to page out until the next step, and, for each target, why nothing of it.
    pub(super) fn page_out(
        &mut self,
        seen: &Observation,
        views: &[TierView],
        elapsed: Nanos,
        interval: Nanos,
    ) -> (Vec<PageOut>, Vec<Option<PagingRest>>) {
        let Some(settings) = self.settings.page_out else {
            return (Vec::new(), vec![None; seen.targets.len()]);
        };
        for target in &seen.targets {
            let Some(tracked) = self.targets.get_mut(&target.id) else {
                continue;
            };
            let faults = seen.paging.of(target.id).map(|told| told.faults);
            let pages = seen.paging.pages_of(target.id);
            tracked.returns.learn(elapsed, pages, faults, settings.idle);
        }
        let room = pageout::room(seen.paging.swap, &settings);
        let rests = |target: &TargetMap| {
            let tracked = &self.targets[&target.id];
            let told = seen.paging.of(target.id);
            match room {
                Err(why) => Some(why),
                Ok(_) if told.is_some_and(|t| !t.is_permitted) => Some(PagingRest::NotPermitted),
                Ok(_) if told.is_some_and(Pageable::is_limited) => Some(PagingRest::GroupLimit),
                Ok(_) if self.is_blind(target.id) => Some(PagingRest::SamplerBlind),
                Ok(_) if tracked.returns.is_resting() => Some(PagingRest::ComesBack),
                Ok(_) => None,
            }
        };
        let rests: Vec<Option<PagingRest>> = seen.targets.iter().map(rests).collect();
        let candidates: Vec<Candidate<'_>> = (seen.targets.iter().zip(views).zip(&rests))
            // The kernel pages out nothing that several map.
            .filter(|((target, _), rests)| rests.is_none() && target.sharers == 0)
            .map(|((target, view), _)| Candidate {
                id: target.id,
                pid: target.pid,
                regions: self.targets[&target.id].map.regions(),
                slowest: view.ranks().last().map_or(&[], |rank| &rank.nodes),
                room: (seen.paging.of(target.id))
                    .and_then(|told| told.room)
                    .unwrap_or(Bytes(u64::MAX)),
            })
            .collect();
        let budget = settings.rate.over(interval);
        let budget = budget.min(room.unwrap_or(Bytes::ZERO));
        (pageout::choose(&candidates, &settings, budget), rests)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ID, MIB, observation, slow, tiers};
    use super::*;
    use crate::tiering::pageout::{PagedOut, Paging, Swap};
    use crate::tiering::plan::Plan;
    use crate::tiering::settings::{EngineSettings, PageOutSettings};

    fn engine(page_out: Option<PageOutSettings>) -> Engine {
        let settings = EngineSettings {
            page_out,
            ..EngineSettings::default()
        };
        Engine::new(settings, tiers(None), 1)
    }

    /// What was quiet for 30 s.
    fn settings() -> PageOutSettings {
        PageOutSettings {
            idle: Nanos::from_secs(30),
            ..PageOutSettings::default()
        }
    }

    fn pageable(is_permitted: bool) -> Pageable {
        Pageable {
            target: ID,
            faults: 5,
            is_permitted,
            room: None,
        }
    }

    const SWAP: Swap = Swap {
        total: Bytes::from_mib(64),
        free: Bytes::from_mib(64),
        is_memory: true,
    };

    /// The next epoch: all of the target lies on the slow node, its first 2 MiB are hot.
    fn next(engine: &mut Engine, last: Option<&Plan>, epoch: u64, paging: Paging) -> Plan {
        let samples = last.map_or(Vec::new(), |plan| plan.samples.clone());
        let mut seen = observation(10 * epoch, samples, 2 * MIB);
        seen.residency = last.map_or(Vec::new(), slow);
        seen.paging = paging;
        engine.step(&seen)
    }

    fn told(plan: &Plan) -> (Bytes, Option<PagingRest>) {
        let [target] = &plan.report.targets[..] else {
            panic!("{:?}", plan.report.targets);
        };
        (target.paged_out, target.paging_rests)
    }

    #[test]
    fn what_was_quiet_goes_once_and_the_report_tells() {
        let mut engine = engine(Some(settings()));
        let mut plan: Option<Plan> = None;
        let mut out: Vec<PageOut> = Vec::new();
        for epoch in 1..=6 {
            let results = plan
                .iter()
                .flat_map(|p| &p.page_outs)
                .map(|asked| PagedOut {
                    asked: asked.clone(),
                    pages: asked.range.pages(),
                    is_whole: true,
                });
            let paging = Paging {
                results: results.collect(),
                targets: vec![pageable(true)],
                swap: Some(SWAP),
            };
            let pages: u64 = paging.results.iter().map(|r| r.pages).sum();
            let new = next(&mut engine, plan.as_ref(), epoch, paging);
            assert_eq!(told(&new), (Bytes::from_pages(pages), None));
            out.extend(new.page_outs.iter().cloned());
            plan = Some(new);
        }
        // The 6 MiB behind what is hot, after three epochs of silence; not again before three
        // more.
        let bytes: Bytes = out.iter().map(|o| o.range.bytes()).sum();
        let first = out.iter().map(|o| o.range.start().0).min();
        assert!(first >= Some(2 * MIB), "{out:?}");
        assert!(
            bytes > Bytes::from_mib(3) && bytes <= Bytes::from_mib(8),
            "{out:?}"
        );
    }

    #[test]
    fn nothing_goes_unasked_or_without_swap_or_leave() {
        let limited = Pageable {
            room: Some(Bytes::from_kib(60)),
            ..pageable(true)
        };
        let refused = pageable(false);
        for (page_out, swap, of_target, why) in [
            (None, Some(SWAP), refused, None),
            (Some(settings()), None, refused, Some(PagingRest::NoSwap)),
            (
                Some(settings()),
                Some(SWAP),
                refused,
                Some(PagingRest::NotPermitted),
            ),
            (
                Some(settings()),
                Some(SWAP),
                limited,
                Some(PagingRest::GroupLimit),
            ),
        ] {
            let mut engine = engine(page_out);
            let mut plan: Option<Plan> = None;
            for epoch in 1..=8 {
                let paging = Paging {
                    targets: vec![of_target],
                    swap,
                    ..Paging::default()
                };
                let new = next(&mut engine, plan.as_ref(), epoch, paging);
                assert_eq!(told(&new), (Bytes::ZERO, why));
                assert_eq!(new.page_outs, []);
                plan = Some(new);
            }
        }
    }
}
