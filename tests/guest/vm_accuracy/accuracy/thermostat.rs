//! One sample per 2 MiB, drawn anew in each epoch, as Thermostat has it: fixed blocks,
//! nothing remembered but a moving average. By the same idle marks as ours.

use std::thread::sleep;
use std::time::Duration;

use hmkeeper::ports::AccessSampler;
use hmkeeper::sys::page_idle::IdleSampler;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::tiering::rng::Rng;
use hmkeeper::units::{HUGE_PAGE_BYTES, Nanos, PAGE_BYTES, PageRange, Pid, VirtAddr};
use nix::time::{ClockId, clock_gettime};

use super::score::Belief;

const SCANS: u32 = 3;

/// At work.
pub(crate) struct Thermostat {
    sampler: IdleSampler,
    pid: Pid,
    blocks: Vec<PageRange>,
    /// Moving average of each block, 0 to 1.
    heat: Vec<f64>,
    rng: Rng,
    /// CPU seconds that watching took so far.
    pub(crate) seconds: f64,
}

impl Thermostat {
    pub(crate) fn start(pid: Pid, buffer: PageRange) -> Self {
        let block = HUGE_PAGE_BYTES;
        let (low, high) = (buffer.start().0, buffer.end().0);
        let blocks: Vec<PageRange> = (low / block..high.div_ceil(block))
            .filter_map(|i| {
                let (start, end) = ((i * block).max(low), ((i + 1) * block).min(high));
                PageRange::new(VirtAddr(start), VirtAddr(end))
            })
            .collect();
        Self {
            sampler: IdleSampler::open(&Root::host()).expect("idle-page tracking"),
            pid,
            heat: vec![0.0; blocks.len()],
            blocks,
            rng: Rng::new(3),
            seconds: 0.0,
        }
    }

    /// Watches for an epoch.
    pub(crate) fn watch(&mut self, epoch: Duration) -> Vec<Belief> {
        let begin = thread_seconds();
        let rng = &mut self.rng;
        let samples: Vec<Sample> = (self.blocks.iter())
            .map(|block| Sample {
                target: TargetId(0),
                pid: self.pid,
                addr: VirtAddr(block.start().0 + rng.below(block.pages()) * PAGE_BYTES),
            })
            .collect();
        let mut seen = AccessSet::new(samples.clone());
        for _ in 0..SCANS {
            let window = epoch / SCANS;
            let nanos = Nanos::from_secs_f64(window.as_secs_f64());
            self.sampler.arm(&samples, nanos).expect("arm");
            sleep(window);
            self.sampler.collect(&mut seen).expect("collect");
        }
        for (heat, tally) in self.heat.iter_mut().zip(seen.tallies()) {
            if tally.known > 0 {
                let latest = f64::from(tally.accessed) / f64::from(tally.known);
                *heat = f64::midpoint(*heat, latest);
            }
        }
        let belief = |(block, &heat): (&PageRange, &f64)| Belief {
            start: block.start().0,
            end: block.end().0,
            heat,
        };
        let beliefs = self.blocks.iter().zip(&self.heat).map(belief).collect();
        self.seconds += thread_seconds() - begin;
        beliefs
    }
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock");
    Duration::from(time).as_secs_f64()
}
