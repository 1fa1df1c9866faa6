//! Ours, through the real engine, and models of others on the same process.

use hmkeeper::tiering::engine::Engine;
use hmkeeper::tiering::governor::AIM;
use hmkeeper::tiering::looks::{Looks, Role};
use hmkeeper::tiering::observation::{
    AccessSet, EpochCost, Mapped, NodeUsage, Observation, RangeResidency, Sample, Seen, Share,
    TargetId, TargetKind, TargetMap,
};
use hmkeeper::tiering::pageout::Paging;
use hmkeeper::tiering::plan::{MoveOutcome, Sweep};
use hmkeeper::tiering::region::RegionMap;
use hmkeeper::tiering::rng::Rng;
use hmkeeper::tiering::settings::{EngineSettings, LookRule, ProfilingSettings, WindowRule};
use hmkeeper::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable};
use hmkeeper::tiering::windows::{self, Span};
use hmkeeper::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

use super::scenario::{INTERVAL, PAGES, SCANS, Scenario};

const TARGET: TargetId = TargetId(0);
/// What a scan of a sample is said to cost: the engine's own first guess, so
/// that it gets the same number of samples from the first epoch on.
const SCAN_COST: Nanos = Nanos(30_000);

/// The accessed bits of a process.
pub(crate) struct Bits<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) epoch: u64,
    pub(crate) rng: Rng,
    /// Bits that were looked at.
    pub(crate) checks: u64,
}

impl Bits<'_> {
    /// Whether a page was accessed within so many seconds; Poisson.
    fn accessed(&mut self, page: u64, seconds: f64) -> bool {
        self.checks += 1;
        let idle = (-self.scenario.rate(page, self.epoch) * seconds).exp();
        self.rng.next_u64() as f64 / u64::MAX as f64 >= idle
    }
}

/// A stretch of pages and how hot it is held to be, 0 to 1.
#[derive(Clone)]
pub(crate) struct Belief {
    pub(crate) pages: u64,
    pub(crate) heat: f64,
}

/// Watches a process for an epoch, and says what it believes then.
pub(crate) trait Profiler {
    fn name(&self) -> String;
    /// From which heat on it calls pages hot: one for all scenarios.
    fn threshold(&self) -> f64;
    fn watch(&mut self, bits: &mut Bits<'_>) -> Vec<Belief>;
}

/// Our engine.
pub(crate) struct Ours {
    name: &'static str,
    /// Whether it keeps its budget.
    is_held: bool,
    engine: Engine,
    order: u8,
    /// Samples per interval.
    budget: u64,
    /// Seconds of one, and how many of them have passed unwatched.
    interval: f64,
    passed: f64,
    belief: Vec<Belief>,
    epoch: u64,
    rule: LookRule,
    windows: WindowRule,
    samples: Vec<Sample>,
    roles: Vec<Role>,
    sweeps: Vec<Sweep>,
}

impl Ours {
    /// With so many samples in [`INTERVAL`], watching as `profiling` says.
    pub(crate) fn new(
        name: &'static str,
        profiling: ProfilingSettings,
        samples: u64,
        order: u8,
    ) -> Self {
        let interval = profiling.interval.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let budget = (samples as f64 * interval / INTERVAL) as u64;
        let settings = EngineSettings {
            profiling: ProfilingSettings {
                scans: SCANS,
                ..profiling
            },
            ..EngineSettings::default()
        };
        let mut ours = Self {
            name,
            is_held: profiling.overhead_control,
            engine: Engine::new(settings, tiers(), 1),
            order,
            budget,
            interval,
            passed: 0.0,
            belief: Vec::new(),
            epoch: 0,
            rule: profiling.look_rule(),
            windows: profiling.window_rule(),
            samples: Vec::new(),
            roles: Vec::new(),
            sweeps: Vec::new(),
        };
        ours.step(AccessSet::new(Vec::new()), 0);
        ours
    }

    fn step(&mut self, accesses: AccessSet, scanned: u64) {
        self.epoch += 1;
        let per_epoch = SCAN_COST.0 * self.budget * u64::from(SCANS);
        let limit = ProfilingSettings::default().overhead_limit * AIM;
        let cpu = Nanos::from_secs_f64(per_epoch as f64 / 1e9 / limit);
        let sweeps = std::mem::take(&mut self.sweeps);
        let counted = |sweep: &Sweep| RangeResidency {
            target: TARGET,
            range: sweep.range,
            pages_by_node: vec![(NodeId(0), sweep.range.pages())],
        };
        let residency: Vec<RangeResidency> = sweeps.iter().map(counted).collect();
        let swept = sweeps.iter().map(|s| s.range.pages()).sum();
        let seen = Observation {
            at: Nanos::from_secs_f64(self.interval * self.epoch as f64),
            targets: vec![TargetMap {
                id: TARGET,
                pid: Pid(1),
                name: "bench".into(),
                sharers: 0,
                kind: TargetKind::Generic,
                eligible: whole().into_iter().collect(),
                cpu_time: Nanos(cpu.0 * self.epoch),
                memory_time: Nanos(cpu.0 * self.epoch),
                cpu_share: vec![(NodeId(0), 1.0)],
                allowed_nodes: None,
                excluded: Vec::new(),
                mapped: Mapped::default(),
                share: Share::default(),
            }],
            accesses,
            // All of it is on the one node, and free to count: what samples cost is
            // what is compared here.
            residency,
            forgotten: Vec::new(),
            nodes: vec![NodeUsage {
                node: NodeId(0),
                total: Bytes(1 << 40),
                free: Bytes::ZERO,
                reserve: Bytes::ZERO,
                latency: None,
                cache: None,
            }],
            cost: EpochCost {
                scanning: Nanos(SCAN_COST.0 * scanned),
                profiling: Nanos(SCAN_COST.0 * scanned),
                scanned,
                swept,
                elapsed: Nanos::from_secs_f64(self.interval),
                ..EpochCost::default()
            },
            idle: Nanos::ZERO,
            capacity: u64::MAX,
            shortest: windows::SHORTEST_AT_ONCE,
            outcome: MoveOutcome::default(),
            paging: Paging::default(),
        };
        let plan = self.engine.step(&seen);
        self.samples = plan.samples;
        self.roles = plan.roles;
        self.sweeps = plan.sweeps;
    }

    /// Watches for an interval.
    fn round(&mut self, bits: &mut Bits<'_>) {
        // The first epoch watches as if it were busy for a whole interval.
        let times = match self.rule {
            LookRule::Fresh => u64::from(SCANS),
            // They hold themselves to it.
            LookRule::Sequential => u64::MAX / self.budget,
            LookRule::Repeated => 1,
        };
        let most = usize::try_from(self.budget * times).unwrap_or(usize::MAX);
        let mut samples = std::mem::take(&mut self.samples);
        if self.is_held {
            samples.truncate(most);
        }
        let roles = std::mem::take(&mut self.roles);
        let each = (SCANS, self.budget);
        let mut looks = Looks::new(samples, roles, each, self.rule, self.epoch);
        let mut scanned = 0;
        for scan in 0..SCANS {
            let window = self.interval * windows::share(Span::new(self.windows).get(), SCANS, scan);
            looks.begin();
            let part = looks.part();
            for i in 0..part.samples().len() {
                let page = part.samples()[i].addr.page_index();
                let accessed = bits.accessed(page, window);
                part.record(i, if accessed { Seen::Accessed } else { Seen::Idle });
                part.place(i, self.order, Some(NodeId(0)));
            }
            scanned += part.samples().len() as u64;
            looks.end(true);
        }
        self.step(looks.into_seen(), scanned);
        let regions = self.engine.regions(TARGET).map(RegionMap::regions);
        self.belief = regions
            .unwrap_or_default()
            .iter()
            .map(|region| Belief {
                pages: region.range().pages(),
                heat: f64::from(region.heat()) / f64::from(SCANS),
            })
            .collect();
    }
}

impl Profiler for Ours {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn threshold(&self) -> f64 {
        // As `hot_bytes` of the status has it.
        0.5
    }

    fn watch(&mut self, bits: &mut Bits<'_>) -> Vec<Belief> {
        self.passed += INTERVAL;
        while self.passed >= self.interval {
            self.passed -= self.interval;
            self.round(bits);
        }
        self.belief.clone()
    }
}

fn whole() -> Option<PageRange> {
    PageRange::new(VirtAddr(0), VirtAddr(PAGES * PAGE_BYTES))
}

fn tiers() -> TierTable {
    let nodes = vec![Node {
        id: NodeId(0),
        kind: MemoryKind::Dram,
        size: Bytes(1 << 40),
        cpus: vec![0],
        kernel_tier: None,
    }];
    let path = Path {
        from: NodeId(0),
        to: NodeId(0),
        distance: 10,
        latency: Figure {
            value: Nanos(90),
            source: Source::Config,
        },
        bandwidth: None,
    };
    TierTable::new(TierTable::default_tiers(&nodes), nodes, vec![path]).expect("a valid table")
}

/// DAMON's regions (mm/damon/core.c): each check looks at a page drawn anew in
/// each region; an aggregation merges neighbours whose counts differ by at most
/// a tenth, unless that makes a region larger than the least number allows, and
/// then splits each in two at random while there are at most half as many as
/// may be.
pub(crate) struct Damon {
    name: &'static str,
    least: u64,
    most: u64,
    /// Checks per aggregation, and aggregations per epoch.
    checks: u64,
    /// Bits that may be looked at per epoch; `None`: 5 ms and 100 ms, as it comes.
    budget: Option<u64>,
    /// Pages and accesses of each region.
    regions: Vec<(u64, u64)>,
}

impl Damon {
    /// With at least 10 and at most `most` regions.
    pub(crate) fn new(name: &'static str, most: u64, budget: Option<u64>) -> Self {
        let least = 10;
        Self {
            name,
            least,
            most,
            checks: 20,
            budget,
            regions: vec![(PAGES / least, 0); usize::try_from(least).unwrap_or(1)],
        }
    }

    fn aggregate(&mut self, bits: &mut Bits<'_>, window: f64) {
        let mut start = 0;
        for (pages, accesses) in &mut self.regions {
            *accesses = 0;
            for _ in 0..self.checks {
                let page = start + bits.rng.below(*pages);
                *accesses += u64::from(bits.accessed(page, window));
            }
            start += *pages;
        }
    }

    fn adapt(&mut self, rng: &mut Rng) {
        let limit = PAGES / self.least;
        let alike = self.checks / 10;
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.regions.len());
        for &(pages, accesses) in &self.regions {
            match merged.last_mut() {
                Some((p, a)) if a.abs_diff(accesses) <= alike && *p + pages <= limit => {
                    *a = (*a * *p + accesses * pages) / (*p + pages);
                    *p += pages;
                }
                _ => merged.push((pages, accesses)),
            }
        }
        if merged.len() as u64 <= self.most / 2 {
            let split = |&(pages, accesses): &(u64, u64)| {
                // Between a tenth and nine tenths.
                let low = (pages * (1 + rng.below(9)) / 10).min(pages - 1);
                let parts = [(low, accesses), (pages - low, accesses)];
                parts.into_iter().filter(|part| part.0 > 0)
            };
            merged = merged.iter().flat_map(split).collect();
        }
        self.regions = merged;
    }
}

impl Profiler for Damon {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn threshold(&self) -> f64 {
        // As DAMON's own migrate_hot examples: accessed in 5 % of the checks
        // finds everything and its neighbours; a quarter scored best here.
        0.25
    }

    fn watch(&mut self, bits: &mut Bits<'_>) -> Vec<Belief> {
        let (rounds, window) = match self.budget {
            None => (100, 0.005),
            Some(budget) => {
                let per_round = self.checks * self.regions.len() as u64;
                let rounds = (budget / per_round.max(1)).max(1);
                (rounds, INTERVAL / (rounds * self.checks) as f64)
            }
        };
        let mut belief = Vec::new();
        for round in 0..rounds {
            self.aggregate(bits, window);
            if round + 1 == rounds {
                let told = |&(pages, accesses): &(u64, u64)| Belief {
                    pages,
                    heat: accesses as f64 / self.checks as f64,
                };
                belief = self.regions.iter().map(told).collect();
            }
            let mut rng = bits.rng.clone();
            self.adapt(&mut rng);
            bits.rng = rng;
        }
        belief
    }
}

/// Fixed blocks of 2 MiB, each with a sample of its own. As Thermostat has it
/// (one page per block, a part of the blocks in turn where not all are paid
/// for), and as memtierd does with its regions of 512 pages (an access counts
/// once per scan).
pub(crate) struct Fixed {
    name: &'static str,
    budget: u64,
    turn: u64,
    /// Moving average of each block.
    heat: Vec<f64>,
}

impl Fixed {
    /// So many samples per epoch.
    pub(crate) fn new(name: &'static str, budget: u64) -> Self {
        let blocks = usize::try_from(PAGES / 512).unwrap_or(1);
        Self {
            name,
            budget,
            turn: 0,
            heat: vec![0.0; blocks],
        }
    }
}

impl Profiler for Fixed {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn threshold(&self) -> f64 {
        0.5
    }

    fn watch(&mut self, bits: &mut Bits<'_>) -> Vec<Belief> {
        let blocks = self.heat.len() as u64;
        for _ in 0..self.budget.min(blocks) {
            let block = self.turn % blocks;
            self.turn += 1;
            let page = block * 512 + bits.rng.below(512);
            let window = INTERVAL / f64::from(SCANS);
            let hits = (0..SCANS).filter(|_| bits.accessed(page, window)).count();
            let heat = &mut self.heat[usize::try_from(block).unwrap_or(0)];
            *heat = f64::midpoint(*heat, hits as f64 / f64::from(SCANS));
        }
        let belief = |&heat: &f64| Belief { pages: 512, heat };
        self.heat.iter().map(belief).collect()
    }
}
