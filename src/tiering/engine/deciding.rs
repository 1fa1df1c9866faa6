//! What the policy is shown and asked.

use super::survey::Survey;
use super::{BLIND_EPOCHS, Engine, Told};
use crate::tiering::observation::{NodeUsage, Observation, TargetId};
use crate::tiering::page_cache;
use crate::tiering::plan::{Move, PageCounts, Reason, Reclaim};
use crate::tiering::policy::{Budget, Done, TargetView, View};
use crate::tiering::report::PauseReason;
use crate::tiering::settings::Asking;
use crate::tiering::shortage;
use crate::tiering::tier::TierView;
use crate::tiering::windows::Windowed;
use crate::units::{Bytes, Nanos, NodeId, TierId};

/// Less than one in so many bytes of a node's headroom are not missed.
const NOTICED: u64 = 8;

impl Engine {
    /// Whether no sample of a target is seen accessed, although it is busy; for some epochs, as
    /// long as configured.
    pub(super) fn is_blind(&self, target: TargetId) -> bool {
        let silent = self.targets[&target].silent;
        silent * self.pace.share() >= f64::from(BLIND_EPOCHS)
    }

    /// Why one target is left alone.
    pub(super) fn paused(&self, target: TargetId, view: &TierView) -> Option<PauseReason> {
        if view.is_flat() {
            let others = !self.tiers.view(&[], None).is_flat();
            Some(if others {
                PauseReason::Cpuset
            } else {
                PauseReason::OneTier
            })
        } else if self.is_blind(target) {
            Some(PauseReason::SamplerBlind)
        } else {
            None
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn decide(
        &mut self,
        seen: &Observation,
        told: &[Told],
        views: &[TierView],
        paused: &[Option<PauseReason>],
        interval: Nanos,
    ) -> Vec<Move> {
        let targets: Vec<TargetView<'_>> = seen
            .targets
            .iter()
            .zip(views)
            .zip(told)
            .zip(paused)
            .filter(|(_, paused)| paused.is_none())
            .map(|(((target, tiers), told), _)| TargetView {
                id: target.id,
                pid: target.pid,
                tiers,
                regions: self.targets[&target.id].map.regions(),
                load: told.load,
                share: target.share,
                prior: self.targets[&target.id].alike.prior(),
            })
            .collect();
        if targets.is_empty() {
            return Vec::new();
        }
        let view = View {
            epoch: self.epoch,
            scans: self.settings.profiling.scans,
            targets,
            room: self.room(&seen.nodes),
            lacking: self.lacking(&seen.nodes),
            cache: self.cache(&seen.nodes),
            loaded: match self.settings.profiling.latency {
                Asking::Always => self.machine.pressure.loaded(),
                Asking::Auto | Asking::Never => Vec::new(),
            },
            late: self.machine.pressure.late(),
            interval,
            spare: self.machine.spare.share(),
            rates: &self.rates,
            done: done(seen),
        };
        // What is configured is meant for an epoch as long as configured.
        let budget = Budget {
            bytes: Bytes((self.settings.move_bytes.as_f64() * self.pace.share()) as u64),
        };
        self.policy.decide(&view, budget)
    }

    /// See [`Policy::take_hint_faults`](crate::tiering::policy::Policy::take_hint_faults).
    pub fn take_hint_faults(&mut self) -> f64 {
        self.policy.take_hint_faults()
    }

    /// Bytes that can be filled on each node before the kernel's watermarks,
    /// our headroom or the tier's configured capacity are touched; none where others have needed
    /// what was there of late.
    fn room(&self, nodes: &[NodeUsage]) -> Vec<(NodeId, Bytes)> {
        let mut room = Vec::new();
        for (id, tier) in self.tiers.ids().zip(self.tiers.tiers()) {
            let mut left = tier
                .capacity
                .map(|capacity| capacity.saturating_sub(self.resident_on(id)));
            for usage in nodes.iter().filter(|u| tier.nodes.contains(&u.node)) {
                let mut bytes = usage
                    .free
                    .saturating_sub(usage.reserve)
                    .saturating_sub(self.headroom(usage.total));
                if self.machine.rests.holds(usage.node) {
                    bytes = Bytes::ZERO;
                }
                if let Some(left) = &mut left {
                    bytes = bytes.min(*left);
                    *left = left.saturating_sub(bytes);
                }
                room.push((usage.node, bytes));
            }
        }
        room
    }

    /// Bytes of page cache that may make room on each node.
    fn cache(&self, nodes: &[NodeUsage]) -> Vec<(NodeId, Bytes)> {
        if !self.settings.page_cache {
            return Vec::new();
        }
        // Mostly there is none, and with capacities room is counted region by region.
        if nodes
            .iter()
            .all(|u| self.machine.page_cache.room(u).is_zero())
        {
            return Vec::new();
        }
        let room = self.room(nodes);
        let mut cache = Vec::new();
        for (id, tier) in self.tiers.ids().zip(self.tiers.tiers()) {
            let of_tier = |node: NodeId| tier.nodes.contains(&node);
            let free = room.iter().filter(|(node, _)| of_tier(*node));
            let free: Bytes = free.map(|(_, bytes)| *bytes).sum();
            // What is free counts as room already.
            let mut left = tier.capacity.map_or(Bytes(u64::MAX), |capacity| {
                capacity.saturating_sub(self.resident_on(id) + free)
            });
            let rests = |usage: &&NodeUsage| self.machine.rests.holds(usage.node);
            let of_tier = nodes.iter().filter(|usage| of_tier(usage.node));
            for usage in of_tier.filter(|usage| !rests(usage)) {
                let may = self.machine.page_cache.room(usage).min(left);
                left = left.saturating_sub(may);
                cache.push((usage.node, may));
            }
        }
        cache.retain(|(_, may)| !may.is_zero());
        cache
    }

    /// Page cache that gives way to these moves.
    pub(super) fn reclaims(&self, seen: &Observation, moves: &[Move]) -> Vec<Reclaim> {
        if moves.is_empty() {
            return Vec::new();
        }
        let cache = self.cache(&seen.nodes);
        if cache.is_empty() {
            return Vec::new();
        }
        page_cache::wanted(moves, &seen.nodes, &self.room(&seen.nodes), &cache)
    }

    /// Bytes of each node's headroom that allocations, or the kernel's reserve, have used
    /// up, where they are more than free memory goes up and down by itself. Whoever wants
    /// no headroom lacks none.
    fn lacking(&self, nodes: &[NodeUsage]) -> Vec<(NodeId, Bytes)> {
        let lack = |usage: &NodeUsage| {
            let headroom = self.headroom(usage.total);
            let lack = (usage.reserve + headroom).saturating_sub(usage.free);
            (!headroom.is_zero() && lack.0 > headroom.0 / NOTICED).then_some((usage.node, lack))
        };
        nodes.iter().filter_map(lack).collect()
    }

    /// What of a node of this size no move fills: the configured share, and no less than what a burst takes
    /// until room is being made for it.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn headroom(&self, total: Bytes) -> Bytes {
        // A share of 0 to 1 of the total: no loss that matters.
        let share = Bytes((total.as_f64() * self.settings.headroom) as u64);
        share.max(self.least_free(total))
    }

    /// What is given back to a node of this size at once, whoever has to leave for it.
    pub fn least_free(&self, total: Bytes) -> Bytes {
        if self.settings.headroom > 0.0 {
            shortage::least(total)
        } else {
            Bytes::ZERO
        }
    }

    /// What all targets have on a tier.
    pub(super) fn resident_on(&self, tier: TierId) -> Bytes {
        let nodes = &self.tiers.tiers()[tier.index()].nodes;
        let pages = self
            .targets
            .values()
            .flat_map(|t| t.map.regions())
            .flat_map(|r| r.pages().iter())
            .filter(|(node, _)| nodes.contains(node))
            .map(|(_, count)| count)
            .sum();
        Bytes::from_pages(pages)
    }

    /// Chooses the windows of the next epoch, which is this long, and meant to be so many times as
    /// long as the last one. How long it is for being stretched comes and goes.
    pub(super) fn widen(
        &mut self,
        seen: &Observation,
        views: &[TierView],
        surveys: &[Survey],
        interval: Nanos,
        longer: f64,
    ) {
        let fastest = self.fastest(seen, views, surveys);
        let rates = &self.rates;
        let above = |rate: f64| -> Bytes {
            let count = rates.count(rate);
            surveys.iter().map(|survey| survey.above(count)).sum()
        };
        let differs = self.span.follow(&self.windowed(interval), fastest, above);
        if differs || longer < 1.0 || longer > 1.0 {
            self.restate(longer);
        }
    }

    /// An epoch that is this long.
    pub(super) fn windowed(&self, interval: Nanos) -> Windowed {
        Windowed {
            interval,
            scans: self.settings.profiling.scans,
            shortest: self.machine.shortest,
        }
    }

    /// All counts as the windows that are wanted now would have had them in an epoch so many times
    /// as long.
    pub(super) fn restate(&mut self, longer: f64) {
        let profiling = &self.settings.profiling;
        let wanted = super::rates(self.span, profiling);
        self.coverage = super::coverage(self.span, profiling);
        self.estimates = super::estimates(self.span, profiling);
        let rates = &self.rates;
        for tracked in self.targets.values_mut() {
            #[allow(clippy::cast_possible_truncation)]
            let restated = |count: f32| wanted.count(longer * rates.of(f64::from(count))) as f32;
            tracked.map.restate(restated);
            tracked.latest.forget();
        }
        self.rates = wanted;
    }

    /// What targets have or could have on the nodes that are fastest for any of them.
    fn fastest(&self, seen: &Observation, views: &[TierView], surveys: &[Survey]) -> Bytes {
        let mut nodes: Vec<NodeId> = Vec::new();
        for rank in views.iter().filter_map(|view| view.ranks().first()) {
            nodes.extend(&rank.nodes);
        }
        nodes.sort_unstable();
        nodes.dedup();
        let room = self.room(&seen.nodes);
        let room = room.iter().filter(|(node, _)| nodes.contains(node));
        let there: Bytes = surveys.iter().map(|survey| survey.on(&nodes)).sum();
        room.map(|(_, bytes)| *bytes).sum::<Bytes>() + there
    }
}

/// What became of the last plan.
fn done(seen: &Observation) -> Done {
    let [mut exchanged, mut given_back, mut relieved] = [PageCounts::default(); 3];
    for result in &seen.outcome.results {
        let sum = match result.asked.reason {
            Reason::Hot | Reason::Spread | Reason::Room => &mut exchanged,
            Reason::Headroom | Reason::Shortage => &mut given_back,
            Reason::Written | Reason::Read => &mut relieved,
        };
        sum.add(result.pages);
    }
    Done {
        moved: Bytes::from_pages(exchanged.moved),
        given_back: Bytes::from_pages(given_back.moved),
        relieved: Bytes::from_pages(relieved.moved),
        deferred: Bytes::from_pages(exchanged.deferred),
        cost: seen.cost.migration,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, observation, slow, tiers, usage};
    use super::*;
    use crate::tiering::observation::{AccessSet, CacheUsage, Seen};
    use crate::tiering::plan::{MoveOutcome, Plan, Reclaimed};
    use crate::tiering::settings::EngineSettings;
    use crate::tiering::tier::TierTable;
    use crate::units::{PageRange, VirtAddr};

    #[test]
    fn what_allocations_took_of_the_headroom_is_lacking() {
        // Of 60 MiB beyond watermarks of 10; seven of them come and go.
        let of = |headroom, free| {
            let settings = EngineSettings {
                headroom,
                ..EngineSettings::default()
            };
            let engine = Engine::new(settings, tiers(None), 1);
            let lacking = engine.lacking(&usage([free, 500]));
            let mib = lacking.iter().map(|(node, bytes)| (node.0, bytes.0 >> 20));
            mib.collect::<Vec<_>>()
        };
        assert_eq!(of(0.06, 80), []);
        assert_eq!(of(0.06, 63), []);
        assert_eq!(of(0.06, 62), [(0, 8)]);
        assert_eq!(of(0.06, 4), [(0, 66)]);
        // No less than what a burst takes, though 2 % of the node are 20.
        assert_eq!(of(0.02, 4), [(0, 56)]);
        assert_eq!(of(0.0, 4), []);
    }

    /// Of a target with 2 hot MiB on node 3, where node 0 is full and most of that is idle page cache:
    /// the plan, and that of the epoch after it, in which so much of what was asked for was given.
    fn full_of_cache(settings: EngineSettings, tiers: TierTable, given: Bytes) -> [Plan; 2] {
        let nodes = || {
            let mut nodes = usage([10, 500]);
            nodes[0].cache = Some(CacheUsage {
                idle: Bytes::from_mib(800),
                refaults: 7,
            });
            nodes
        };
        let mut engine = Engine::new(settings, tiers, 1);
        let first = engine.step(&observation(10, Vec::new(), 0));
        let mut next = |second, last: &Plan, outcome| {
            let mut seen = observation(second, last.samples.clone(), 2 * MIB);
            seen.residency = slow(last);
            seen.nodes = nodes();
            seen.outcome = outcome;
            engine.step(&seen)
        };
        let plan = next(20, &first, MoveOutcome::default());
        let done = plan.reclaims.iter().map(|asked| Reclaimed {
            node: asked.node,
            asked: asked.bytes,
            given,
        });
        let outcome = MoveOutcome {
            reclaimed: done.collect(),
            ..MoveOutcome::default()
        };
        let then = next(30, &plan, outcome);
        [plan, then]
    }

    #[test]
    fn page_cache_makes_room_for_what_is_moved_and_for_nothing_else() {
        let wanted = |plan: &Plan| {
            let moved: Bytes = plan.moves.iter().map(|m| m.limit).sum();
            let list = plan.reclaims.iter();
            let list: Vec<_> = list.map(|r| (r.node.0, r.bytes, r.after)).collect();
            (moved, list)
        };
        let two = Bytes::from_mib(2);
        let [plan, then] = full_of_cache(EngineSettings::default(), tiers(None), two);
        assert_eq!(wanted(&plan), (two, vec![(0, two, Bytes::ZERO)]));
        assert!(!then.report.cache_rests && !then.moves.is_empty());
        // A tier's capacity holds for it, too.
        let one = tiers(Some(Bytes::from_mib(1)));
        let [plan, _] = full_of_cache(EngineSettings::default(), one, two);
        assert_eq!(wanted(&plan).0, Bytes::from_mib(1));
        // The kernel gives nothing: nothing is planned that needs it.
        let [_, then] = full_of_cache(EngineSettings::default(), tiers(None), Bytes::ZERO);
        assert!(then.report.cache_rests);
        assert_eq!(wanted(&then), (Bytes::ZERO, vec![]));
        let off = EngineSettings {
            page_cache: false,
            ..EngineSettings::default()
        };
        let [plan, _] = full_of_cache(off, tiers(None), two);
        assert_eq!(wanted(&plan), (Bytes::ZERO, vec![]));
    }

    #[test]
    fn where_hot_pages_lie_among_cold_ones_less_is_promoted_once_that_is_learnt() {
        let size = Bytes::from_mib(512);
        let of = |is_hot: &dyn Fn(u64) -> bool| {
            let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
            let mut plan = engine.step(&observation(10, Vec::new(), 0));
            let epochs = (2..14).map(|epoch| {
                let mut seen = observation(10 * epoch, Vec::new(), 0);
                let all = PageRange::new(VirtAddr(0), VirtAddr(size.0));
                seen.targets[0].eligible = vec![all.expect("a range")];
                seen.residency = slow(&plan);
                seen.accesses = AccessSet::new(plan.samples.clone());
                for _ in 0..3 {
                    for i in 0..plan.samples.len() {
                        let is_hot = is_hot(plan.samples[i].addr.page_index());
                        let found = if is_hot { Seen::Accessed } else { Seen::Idle };
                        seen.accesses.record(i, found);
                    }
                    seen.accesses.end_scan();
                }
                plan = engine.step(&seen);
                plan.moves.iter().map(|m| m.limit).sum()
            });
            let wanted: Vec<Bytes> = epochs.collect();
            // After a few epochs.
            wanted[3..].iter().copied().sum::<Bytes>()
        };
        // A sixteenth in either case; nothing is ever carried out.
        let apart = of(&|page| (page.wrapping_mul(0x9E37_79B9) >> 5).is_multiple_of(16));
        let together = of(&|page| page / 1024 % 16 == 0);
        assert!(apart.0 < together.0 / 8, "{apart} beside {together}");
    }
}
