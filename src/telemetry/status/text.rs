//! The status as text: one screen for people.

use std::fmt::Write as _;

mod fit;
pub use fit::counted;
use fit::{Fit, age, bytes_or_none, nanos, percent};

use super::{
    MoveStatus, ShareStatus, Status, TargetStatus, excluded, explained, held, paging_rests,
    unwatched,
};
use crate::tiering::plan::Direction;
use crate::tiering::report::PauseReason;
use crate::units::text::printable;
use crate::units::{Bytes, Pid};

/// Columns of the text on a terminal: it fits any of this width.
pub const WIDTH: usize = 100;

impl Status {
    /// For people who read it from a pipe or a file: nothing is cut off.
    pub fn text(&self) -> String {
        self.within(Fit::All)
    }

    /// For people at a terminal: no line is longer than [`WIDTH`].
    pub fn screen(&self) -> String {
        self.within(Fit::Screen)
    }

    fn within(&self, fit: Fit) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out, fit);
        let lines = out.lines().map(|line| fit.cut(line.trim_end(), WIDTH));
        lines.map(|line| line + "\n").collect()
    }

    fn write(&self, out: &mut String, fit: Fit) -> std::fmt::Result {
        writeln!(
            out,
            "hmkeeper {}, up {}, epoch {} of {}{}, sampler {}, policy {}",
            printable(&self.version),
            age(self.uptime_seconds),
            self.epoch,
            age(self.interval_seconds),
            self.data_age_seconds
                .map_or_else(String::new, |seconds| format!(", {} ago", age(seconds))),
            printable(&self.sampler),
            printable(&self.policy)
        )?;
        self.write_age(out)?;
        if self.over_limit {
            writeln!(
                out,
                "an epoch takes {} and costs more than the limit pays for: raise profiling.interval",
                age(self.epoch_seconds)
            )?;
        } else if self.epoch_seconds > self.interval_seconds {
            writeln!(
                out,
                "an epoch takes {}: the overhead limit pays for no more",
                age(self.epoch_seconds)
            )?;
        }
        if self.epoch_seconds < self.interval_seconds && self.paused.is_empty() {
            writeln!(
                out,
                "an epoch takes {}: shorter while what is moved stays hot",
                age(self.epoch_seconds)
            )?;
        }
        for reason in &self.paused {
            writeln!(out, "nothing is moved: {}", explained(*reason))?;
        }
        for note in &self.notes {
            // What and why stand before the remedy, which may be cut.
            let (what, remedy) = note.split_once("; ").unwrap_or((note, ""));
            writeln!(out, "{}", fit.wrap(what, WIDTH))?;
            if !remedy.is_empty() {
                writeln!(out, "  {}", fit.wrap(remedy, WIDTH))?;
            }
        }
        if let Some(trouble) = &self.trouble {
            let line = format!("nothing is observed: {trouble}");
            writeln!(out, "{}", fit.wrap(&line, WIDTH))?;
        }
        for other in &self.other_movers {
            let line = format!("moves pages too: {}; {}", other.what, other.remedy);
            writeln!(out, "{}", fit.wrap(&line, WIDTH))?;
        }
        let cost = &self.cost;
        writeln!(
            out,
            "own cost {} of a CPU (profiling {:.1} s, kdamonds {:.1} s, migration {:.1} s, other {:.1} s)",
            percent(cost.cpus),
            cost.profiling_seconds,
            cost.kdamonds_seconds,
            cost.migration_seconds,
            cost.other_seconds
        )?;
        let moves = |t: &TargetStatus| t.overhead.migration > 0.0;
        if self.cost.spare > 0.0 && self.targets.iter().any(moves) {
            writeln!(
                out,
                "of the CPU time of moving {} is that of idle cores",
                percent(self.cost.spare)
            )?;
        }
        writeln!(
            out,
            "\n{:<16} {:<12} {:>10} {:>10} {:>10} {:>10}",
            "TIER", "NODES", "FREE", "TOTAL", "LATENCY", "IDLE"
        )?;
        for tier in &self.tiers {
            let nodes: Vec<String> = tier.nodes.iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "{:<16} {:<12} {:>10} {:>10} {:>10} {:>10}",
                fit.cut(&tier.name, 16),
                fit.cut(&nodes.join(","), 12),
                Bytes(tier.free_bytes),
                Bytes(tier.total_bytes),
                nanos(tier.latency_ns),
                nanos(tier.idle_latency_ns)
            )?;
        }
        if self.page_cache.reclaimed_bytes > 0 {
            let bytes = Bytes(self.page_cache.reclaimed_bytes);
            writeln!(out, "page cache made room so far: {bytes}")?;
        }
        for node in &self.resting_nodes {
            writeln!(
                out,
                "nothing is promoted to node {node} for now: other programs needed its memory"
            )?;
        }
        if self.page_cache.rests {
            writeln!(
                out,
                "page cache makes no room for now: files are read back, or the kernel gives little"
            )?;
        }
        for target in &self.targets {
            target.write(out, fit, self)?;
        }
        if self.targets.is_empty() {
            writeln!(
                out,
                "\nno target: name one in the configuration, or `hmkeeper attach PID`"
            )?;
        }
        if !self.absent.is_empty() {
            writeln!(out, "\nnot there: {}", printable(&self.absent.join(", ")))?;
        }
        Ok(())
    }
}

impl Status {
    /// That what is told is old.
    fn write_age(&self, out: &mut String) -> std::fmt::Result {
        let Some(seconds) = self.data_age_seconds else {
            return Ok(());
        };
        let epoch = self.epoch_seconds.max(self.interval_seconds);
        if seconds > 2.0 * epoch {
            writeln!(
                out,
                "what follows is {} old, more than two epochs: the loop is late or hung, see its log",
                age(seconds)
            )?;
        }
        Ok(())
    }
}

/// A share of accesses and between what it is, or that nothing is known of it yet.
fn hit_rate(share: &ShareStatus) -> String {
    // Outwards: what is told to lie between does so.
    let low = (share.access_ratio_low * 100.0).floor();
    let high = (share.access_ratio_high * 100.0).ceil();
    if low <= 0.0 && high >= 100.0 {
        return "not known yet".into();
    }
    format!("{:>10} ({low:.0}..{high:.0})", percent(share.access_ratio))
}

/// Which process, or how many share it.
fn who(pid: Pid, sharers: u32) -> String {
    match sharers {
        0 => format!("pid {pid}"),
        1 => format!("mapped several times by pid {pid}"),
        _ => format!("{sharers} processes, most in pid {pid}"),
    }
}

impl TargetStatus {
    fn write(&self, out: &mut String, fit: Fit, all: &Status) -> std::fmt::Result {
        writeln!(
            out,
            "\n{} ({}): {} hot of {} in {}, {} ({} accessed, {} unknown)",
            fit.cut(&self.name, 24),
            who(self.pid, self.sharers),
            Bytes(self.hot_bytes),
            Bytes(self.eligible_bytes),
            counted(self.regions, "region"),
            counted(self.samples, "sample"),
            self.samples_accessed,
            self.samples_unknown
        )?;
        self.write_covered(out)?;
        if let Some(bytes) = self.written_bytes {
            writeln!(out, "  writes {} in an epoch", Bytes(bytes))?;
        }
        if let Some(reason) = self.paused {
            writeln!(out, "  left alone: {}", explained(reason))?;
        }
        writeln!(
            out,
            "  watching costs {} of {}, limit {} (ours {:.1}, its own {:.1}); moving {}",
            percent(self.overhead.profiling + self.overhead.target),
            if self.idle {
                "a tenth of a CPU"
            } else {
                "its CPU time"
            },
            percent(all.cost.limit),
            self.overhead.profiling * 100.0,
            self.overhead.target * 100.0,
            percent(self.overhead.migration)
        )?;
        writeln!(
            out,
            "  {:<16} {:>10} {:>11} {:>10}",
            "TIER", "RESIDENT", "", "ACCESSES"
        )?;
        let rank = |tier: &str| {
            let holds = |rank: &Vec<String>| rank.iter().any(|t| t == tier);
            self.ranking.iter().position(holds).unwrap_or(usize::MAX)
        };
        let mut tiers: Vec<&ShareStatus> = self.tiers.iter().collect();
        tiers.sort_by_key(|share| rank(&share.tier));
        for share in tiers {
            let error = match share.resident_error_bytes {
                0 => "counted".to_owned(),
                bytes => format!("±{}", Bytes(bytes)),
            };
            writeln!(
                out,
                "  {:<16} {:>10} {error:>11} {}",
                fit.cut(&share.tier, 16),
                Bytes(share.resident_bytes),
                hit_rate(share)
            )?;
        }
        if self.resident_age_seconds > 0.0 {
            writeln!(
                out,
                "  counted in the last {}; ± is what recounts found wrong, and what is being moved",
                age(self.resident_age_seconds)
            )?;
        }
        self.write_left_alone(out)?;
        self.write_paging(out)?;
        self.write_moves(out, fit, all)?;
        self.write_pages(out)
    }

    /// What was moved, what the last plan moves, and why.
    fn write_moves(&self, out: &mut String, fit: Fit, all: &Status) -> std::fmt::Result {
        let any = |way: &&MoveStatus| way.planned_bytes + way.last_bytes + way.total_bytes > 0;
        let mut ways = self.moves.iter().filter(any).peekable();
        if ways.peek().is_none() {
            return writeln!(out, "  nothing was moved yet");
        }
        let is_planned_only =
            |reason: &&PauseReason| matches!(reason, PauseReason::Operator | PauseReason::DryRun);
        if let Some(reason) = all.paused.iter().find(is_planned_only) {
            writeln!(
                out,
                "  PLANNED is what would be moved now, but is not: {}",
                reason.as_str()
            )?;
        }
        writeln!(
            out,
            "  {:<10} {:<16} {:<16} {:<8} {:>10} {:>10} {:>10}",
            "MOVED", "FROM", "TO", "WHY", "PLANNED", "LAST", "SO FAR"
        )?;
        for way in ways {
            writeln!(
                out,
                "  {:<10} {:<16} {:<16} {:<8} {:>10} {:>10} {:>10}",
                match way.direction {
                    Direction::Demotion => "demoted",
                    Direction::Promotion => "promoted",
                },
                fit.cut(&way.from, 16),
                fit.cut(&way.to, 16),
                way.reason.as_str(),
                bytes_or_none(way.planned_bytes),
                bytes_or_none(way.last_bytes),
                bytes_or_none(way.total_bytes)
            )?;
        }
        Ok(())
    }
}

impl TargetStatus {
    /// What became of the pages that were to be moved, where that is not the same of all.
    fn write_pages(&self, out: &mut String) -> std::fmt::Result {
        let results = self.move_pages.labelled();
        let told: Vec<String> = (results.iter().filter(|(_, pages)| *pages > 0))
            .map(|(result, pages)| format!("{pages} {result}"))
            .collect();
        if told.len() > 1 || self.move_pages.moved == 0 && !told.is_empty() {
            writeln!(out, "  pages so far: {}", told.join(", "))?;
        }
        Ok(())
    }

    /// What of its memory is watched, and why the rest is not.
    fn write_covered(&self, out: &mut String) -> std::fmt::Result {
        if self.resident_bytes > 0 {
            let (covered, resident) = (Bytes(self.covered_bytes), Bytes(self.resident_bytes));
            writeln!(
                out,
                "  watches {covered} of {resident} that it has in memory"
            )?;
        }
        if let Some(why) = self.not_covered {
            writeln!(out, "  the rest: {}", unwatched(why))?;
        }
        Ok(())
    }

    /// What went to swap, where that is wanted.
    fn write_paging(&self, out: &mut String) -> std::fmt::Result {
        if self.paged_out_bytes > 0 {
            writeln!(out, "  paged out so far: {}", Bytes(self.paged_out_bytes))?;
        }
        if let Some(why) = self.page_out_rests {
            let (name, why) = (why.as_str(), paging_rests(why));
            writeln!(out, "  nothing is paged out: {name} ({why})")?;
        }
        Ok(())
    }

    /// What cannot be moved, why, and what would lift that.
    fn write_left_alone(&self, out: &mut String) -> std::fmt::Result {
        let excluded =
            (self.excluded.iter()).map(|e| (e.why.as_str().to_owned(), e.bytes, excluded(e.why)));
        let held =
            (self.held.iter()).map(|h| (format!("{} pages", h.why.as_str()), h.bytes, held(h.why)));
        let mut rows = excluded.chain(held).filter(|row| row.1 > 0).peekable();
        if rows.peek().is_some() {
            writeln!(
                out,
                "  {:<16} {:>10}  WHY, AND WHAT WOULD CHANGE THAT",
                "NOT MOVED", "BYTES"
            )?;
        }
        for (name, bytes, why) in rows {
            writeln!(out, "  {name:<16} {:>10}  {why}", Bytes(bytes))?;
        }
        if let Some(nodes) = &self.allowed_nodes {
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            let nodes = nodes.join(",");
            writeln!(
                out,
                "  moved among nodes {nodes} only: its cpuset allows no other"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ports::OtherMover;
    use crate::telemetry::Snapshot;
    use crate::telemetry::testing::{report, snapshot, target};
    use crate::tiering::observation::Exclusion;
    use crate::tiering::report::{Hold, PauseReason, Unwatched};
    use crate::units::{Nanos, NodeId};

    fn status() -> Status {
        let mut status = Status::new(&snapshot(), Duration::from_secs(123));
        status.data_age_seconds = Some(3.0);
        status.pid = 99;
        status.version = "0.1.0".into();
        status
    }

    #[test]
    fn the_text_is_one_screen() {
        let text = status().text();
        let expected = "\
hmkeeper 0.1.0, up 2 min 3 s, epoch 1 of 10 s, 3 s ago, sampler idle, policy hm-keeper
own cost 0.0 % of a CPU (profiling 0.0 s, kdamonds 0.0 s, migration 0.0 s, other 0.0 s)
of the CPU time of moving 75.0 % is that of idle cores

TIER             NODES              FREE      TOTAL    LATENCY       IDLE
dram0            0             640.0 MiB    1.0 GiB     210 ns      95 ns
cxl1             1              80.0 MiB    1.0 GiB          -          -
page cache made room so far: 24.0 MiB

db (pid 4001): 100.0 MiB hot of 1.0 GiB in 512 regions, 900 samples (90 accessed, 9 unknown)
  watches 1.0 GiB of 1.0 GiB that it has in memory
  writes 60.0 MiB in an epoch
  watching costs 1.3 % of its CPU time, limit 5.0 % (ours 1.2, its own 0.1); moving 0.4 %
  TIER               RESIDENT               ACCESSES
  dram0              96.0 MiB   ±18.0 MiB     91.2 % (87..96)
  cxl1              928.0 MiB   ±20.0 MiB      8.8 % (4..13)
  counted in the last 40 s; ± is what recounts found wrong, and what is being moved
  NOT MOVED             BYTES  WHY, AND WHAT WOULD CHANGE THAT
  file                3.0 MiB  of files, such as programs; anonymous memory is moved
  locked              5.0 MiB  mlocked by its program; `move_locked = true` of the target moves it
  shared pages        6.0 MiB  in another process too (fork, KSM): `follow_children` watches both
  MOVED      FROM             TO               WHY         PLANNED       LAST     SO FAR
  demoted    dram0            cxl1             room        5.0 MiB    4.0 MiB    4.0 MiB
  demoted    dram0            cxl1             headroom    3.0 MiB    2.0 MiB    2.0 MiB
  promoted   cxl1             dram0            hot         9.0 MiB    8.0 MiB    8.0 MiB
  pages so far: 3072 moved, 2 busy

not there: absent
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_name_forges_no_line() {
        let mut status = status();
        let evil = "a\n\u{1b}[2J\u{9b}\u{202e}x";
        let lines = status.text().lines().count();
        status.targets[0].name = evil.into();
        status.tiers[0].name = evil.into();
        status.absent = vec![evil.into()];
        status.version = evil.into();
        let text = status.text();
        assert_eq!(text.lines().count(), lines, "{text:?}");
        assert_eq!(crate::units::text::printable_lines(&text), text);
    }

    #[test]
    fn no_line_is_too_long() {
        let mut snapshot = snapshot();
        let mut long = target(1, &"ä".repeat(200));
        long.excluded = [
            Exclusion::Shared,
            Exclusion::File,
            Exclusion::Locked,
            Exclusion::Hugetlb,
            Exclusion::Policy,
            Exclusion::Configured,
            Exclusion::Special,
        ]
        .map(|why| (why, Bytes(1023 << 40)))
        .to_vec();
        long.held = [Hold::Shared, Hold::Pinned].map(|why| (why, Bytes(1023 << 40)));
        long.watched.lacks = Some(Unwatched::Excluded(Exclusion::Locked));
        long.allowed_nodes = Some((0..64).map(NodeId).collect());
        long.paused = Some(PauseReason::SamplerBlind);
        snapshot.standing = PauseReason::ALL.to_vec();
        snapshot.record(report(2, vec![long]));
        snapshot.report.is_unpaid = true;
        snapshot.report.interval = Nanos::from_secs(60);
        let status = Status::new(&snapshot, Duration::from_secs(1_000_000));
        let (text, whole) = (status.screen(), status.text());
        assert!(whole.contains(&"ä".repeat(200)), "cut off in a pipe");
        assert!(!whole.contains('…'));
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            let is_ours = !line.contains('ä') && !line.contains("among nodes");
            let fits = !is_ours || !line.ends_with('…');
            assert!(fits, "an explanation is cut off: {line}");
        }
    }

    #[test]
    fn a_target_that_pauses_says_why() {
        let mut snapshot = snapshot();
        snapshot.standing = vec![PauseReason::OneTier];
        snapshot.report.paused = vec![PauseReason::OneTier, PauseReason::Operator];
        let status = Status::new(&snapshot, Duration::ZERO);
        assert_eq!(status.paused, [PauseReason::Operator, PauseReason::OneTier]);
        assert!(status.text().contains("nothing to move to"));
    }

    #[test]
    fn an_epoch_that_is_stretched_says_so() {
        let mut snapshot = snapshot();
        snapshot.report.interval = Nanos::from_secs(40);
        let text = Status::new(&snapshot, Duration::ZERO).text();
        assert!(text.contains("an epoch takes 40 s"), "{text}");
    }

    #[test]
    fn what_is_older_than_two_epochs_says_so() {
        let mut snapshot = snapshot();
        let old = |snapshot: &Snapshot, seconds| {
            let status = Status::new(snapshot, Duration::from_secs(seconds));
            assert_eq!(status.data_age_seconds, Some(seconds as f64));
            status.text().contains("old, more than two epochs")
        };
        assert!(!old(&snapshot, 20));
        assert!(old(&snapshot, 21));
        snapshot.report.interval = Nanos::from_secs(60);
        assert!(!old(&snapshot, 120));
        assert!(old(&snapshot, 121));
        snapshot.recorded = None;
        let status = Status::new(&snapshot, Duration::from_secs(500));
        assert_eq!(status.data_age_seconds, None);
    }

    #[test]
    fn what_even_a_long_epoch_does_not_pay_for_is_said() {
        let mut snapshot = snapshot();
        snapshot.report.interval = Nanos::from_secs(60);
        snapshot.report.is_unpaid = true;
        let text = Status::new(&snapshot, Duration::ZERO).text();
        let line = "an epoch takes 1 min 0 s and costs more than the limit pays for";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn an_idle_target_costs_shares_of_a_tenth_of_a_cpu() {
        let mut snapshot = snapshot();
        let mut idle = target(1, "db");
        idle.overhead.target_cpu = Nanos::from_millis(1);
        snapshot.record(report(2, vec![idle]));
        let status = Status::new(&snapshot, Duration::ZERO);
        assert!(status.targets[0].idle);
        let text = status.text();
        let line = "watching costs 1.3 % of a tenth of a CPU, limit 5.0 %";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_dry_run_shows_what_would_be_moved_and_why() {
        let mut snapshot = snapshot();
        let mut one = target(1, "db");
        for flow in &mut one.flows {
            flow.moved = Bytes::ZERO;
        }
        snapshot.totals = crate::telemetry::totals::Totals::default();
        snapshot.standing = vec![PauseReason::DryRun];
        snapshot.record(report(2, vec![one.clone()]));
        let status = Status::new(&snapshot, Duration::ZERO);
        let text = status.text();
        for line in [
            "PLANNED is what would be moved now, but is not: dry-run",
            "demoted    dram0            cxl1             room        5.0 MiB          -          -",
            "promoted   cxl1             dram0            hot         9.0 MiB          -          -",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        // Nothing of it is under way.
        assert_eq!(status.targets[0].tiers[0].resident_error_bytes, 1 << 20);
        // What comes to nothing has no row.
        one.flows[0].planned = Bytes::ZERO;
        snapshot.record(report(3, vec![one]));
        let text = Status::new(&snapshot, Duration::ZERO).text();
        assert!(!text.contains(" room  "), "{text}");
        assert!(text.contains("headroom"), "{text}");
    }

    #[test]
    fn a_hit_rate_of_anything_is_not_known_yet() {
        let mut snapshot = snapshot();
        let mut new = target(1, "db");
        new.accesses.low = vec![0.0, 0.0];
        new.accesses.high = vec![1.0, 0.999];
        new.regions = 1;
        new.samples = 1;
        snapshot.record(report(2, vec![new]));
        let text = Status::new(&snapshot, Duration::ZERO).text();
        assert_eq!(text.matches("not known yet").count(), 2, "{text}");
        assert!(!text.contains("(0..100)"), "{text}");
        assert!(text.contains("in 1 region, 1 sample ("), "{text}");
    }

    #[test]
    fn why_nothing_is_observed_is_said_until_something_is() {
        let mut snapshot = snapshot();
        snapshot.fail("kdamonds is in use: stop damo".into());
        let says = |snapshot: &Snapshot| {
            let text = Status::new(snapshot, Duration::ZERO).text();
            text.contains("nothing is observed: kdamonds is in use: stop damo")
        };
        let mut blind = target(1, "db");
        blind.samples = 0;
        snapshot.record(report(2, vec![blind]));
        assert!(
            says(&snapshot),
            "an epoch without a sample says nothing of it"
        );
        snapshot.record(report(3, vec![target(1, "db")]));
        assert!(!says(&snapshot));
        // Of one without a sample of its own it is of the past after a while.
        snapshot.fail("kdamonds is in use: stop damo".into());
        for (epoch, told) in [(4, true), (5, true), (6, false)] {
            let mut blind = target(1, "db");
            blind.samples = 0;
            snapshot.record(report(epoch, vec![blind]));
            assert_eq!(says(&snapshot), told, "{epoch}");
        }
    }

    #[test]
    fn a_remedy_is_not_cut_off() {
        let mut snapshot = snapshot();
        let why = "/sys/kernel/mm/damon/admin/kdamonds is in use: somebody else has set up \
                   kdamonds (2): stop their owner (damo stop), or write 0 to nr_kdamonds there";
        snapshot.fail(why.into());
        let text = Status::new(&snapshot, Duration::ZERO).screen();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(why), "{text}");
    }

    #[test]
    fn who_else_moves_pages_is_named() {
        let mut snapshot = snapshot();
        snapshot.others = vec![OtherMover {
            name: "numa-balancing".into(),
            what: "the kernel's NUMA balancing (mode 2)".into(),
            remedy: "write 0 to /proc/sys/kernel/numa_balancing".into(),
        }];
        let text = Status::new(&snapshot, Duration::ZERO).screen();
        let line = "moves pages too: the kernel's NUMA balancing (mode 2); write 0 to \
                    /proc/sys/kernel/numa_balancing\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!(age(2.0), "2 s");
        assert_eq!(age(0.25), "0.3 s");
        assert_eq!(age(61.0), "1 min 1 s");
        assert_eq!(age(7_260.0), "2 h 1 min");
        assert_eq!(age(200_000.0), "2 d 7 h");
    }
}
