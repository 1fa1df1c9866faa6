//! The status as text: one screen for people.

use std::fmt::Write as _;
use std::time::Duration;

use super::{ShareStatus, Status, TargetStatus, excluded, explained, held, paging_rests};
use crate::tiering::plan::Direction;
use crate::units::Bytes;

/// Columns of the text: it fits any terminal of this width.
pub const WIDTH: usize = 100;

impl Status {
    /// One screen for people; no line is longer than [`WIDTH`].
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        let lines = out.lines().map(|line| cut(line.trim_end(), WIDTH));
        lines.map(|line| line + "\n").collect()
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "hmkeeper {}, up {}, epoch {} of {}, sampler {}, policy {}",
            self.version,
            age(self.uptime_seconds),
            self.epoch,
            age(self.interval_seconds),
            self.sampler,
            self.policy
        )?;
        if self.epoch_seconds > self.interval_seconds {
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
                cut(&tier.name, 16),
                cut(&nodes.join(","), 12),
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
            target.write(out, cost.limit)?;
        }
        if self.targets.is_empty() {
            writeln!(
                out,
                "\nno target: name one in the configuration, or `hmkeeper attach PID`"
            )?;
        }
        if !self.absent.is_empty() {
            writeln!(out, "\nnot there: {}", self.absent.join(", "))?;
        }
        Ok(())
    }
}

/// A latency, or that nobody knows it.
fn nanos(latency: Option<u64>) -> String {
    latency.map_or_else(|| "-".into(), |ns| format!("{ns} ns"))
}

impl TargetStatus {
    fn write(&self, out: &mut String, limit: f64) -> std::fmt::Result {
        writeln!(
            out,
            "\n{} (pid {}): {} hot of {} in {} regions, {} samples ({} accessed, {} unknown)",
            cut(&self.name, 24),
            self.pid,
            Bytes(self.hot_bytes),
            Bytes(self.eligible_bytes),
            self.regions,
            self.samples,
            self.samples_accessed,
            self.samples_unknown
        )?;
        if let Some(bytes) = self.written_bytes {
            writeln!(out, "  writes {} in an epoch", Bytes(bytes))?;
        }
        if let Some(reason) = self.paused {
            writeln!(out, "  left alone: {}", explained(reason))?;
        }
        writeln!(
            out,
            "  costs it {} of its CPU time: profiling {}, migration {}, own share {}; limit {}",
            percent(self.overhead.total),
            percent(self.overhead.profiling),
            percent(self.overhead.migration),
            percent(self.overhead.target),
            percent(limit)
        )?;
        writeln!(
            out,
            "  {:<16} {:>10} {:>10}",
            "TIER", "RESIDENT", "ACCESSES"
        )?;
        let rank = |tier: &str| {
            let holds = |rank: &Vec<String>| rank.iter().any(|t| t == tier);
            self.ranking.iter().position(holds).unwrap_or(usize::MAX)
        };
        let mut tiers: Vec<&ShareStatus> = self.tiers.iter().collect();
        tiers.sort_by_key(|share| rank(&share.tier));
        for share in tiers {
            writeln!(
                out,
                "  {:<16} {:>10} {:>10} ({:.0}..{:.0})",
                cut(&share.tier, 16),
                Bytes(share.resident_bytes),
                percent(share.access_ratio),
                // Outwards: what is told to lie between does so.
                (share.access_ratio_low * 100.0).floor(),
                (share.access_ratio_high * 100.0).ceil()
            )?;
        }
        self.write_left_alone(out)?;
        self.write_paging(out)?;
        if self.moves.is_empty() {
            writeln!(out, "  nothing was moved yet")?;
            return self.write_pages(out);
        }
        writeln!(
            out,
            "  {:<10} {:<16} {:<16} {:<8} {:>10} {:>10}",
            "MOVED", "FROM", "TO", "WHY", "LAST", "SO FAR"
        )?;
        for way in &self.moves {
            writeln!(
                out,
                "  {:<10} {:<16} {:<16} {:<8} {:>10} {:>10}",
                match way.direction {
                    Direction::Demotion => "demoted",
                    Direction::Promotion => "promoted",
                },
                cut(&way.from, 16),
                cut(&way.to, 16),
                way.reason.as_str(),
                Bytes(way.last_bytes),
                Bytes(way.total_bytes)
            )?;
        }
        self.write_pages(out)
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

/// At most `width` characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain("…".chars()).collect()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A length of time in its two largest units.
fn age(seconds: f64) -> String {
    if seconds < 60.0 {
        let tenths = (seconds * 10.0).round() / 10.0;
        return format!("{tenths} s");
    }
    let whole = Duration::from_secs_f64(seconds.min(1e12)).as_secs();
    match whole {
        ..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::{report, snapshot, target};
    use crate::tiering::observation::Exclusion;
    use crate::tiering::report::{Hold, PauseReason};
    use crate::units::{Nanos, NodeId};

    fn status() -> Status {
        let mut status = Status::new(&snapshot(), Duration::from_secs(123));
        status.pid = 99;
        status.version = "0.1.0".into();
        status
    }

    #[test]
    fn the_text_is_one_screen() {
        let text = status().text();
        let expected = "\
hmkeeper 0.1.0, up 2 min 3 s, epoch 1 of 10 s, sampler idle, policy hm-keeper
own cost 0.0 % of a CPU (profiling 0.0 s, kdamonds 0.0 s, migration 0.0 s, other 0.0 s)
of the CPU time of moving 75.0 % is that of idle cores

TIER             NODES              FREE      TOTAL    LATENCY       IDLE
dram0            0             640.0 MiB    1.0 GiB     210 ns      95 ns
cxl1             1              80.0 MiB    1.0 GiB          -          -
page cache made room so far: 24.0 MiB

db (pid 4001): 100.0 MiB hot of 1.0 GiB in 512 regions, 900 samples (90 accessed, 9 unknown)
  writes 60.0 MiB in an epoch
  costs it 1.7 % of its CPU time: profiling 1.2 %, migration 0.4 %, own share 0.1 %; limit 5.0 %
  TIER               RESIDENT   ACCESSES
  dram0              96.0 MiB     91.2 % (87..96)
  cxl1              928.0 MiB      8.8 % (4..13)
  NOT MOVED             BYTES  WHY, AND WHAT WOULD CHANGE THAT
  file                3.0 MiB  of files, such as programs; anonymous memory is moved
  locked              5.0 MiB  mlocked by its program; `move_locked = true` of the target moves it
  shared pages        6.0 MiB  in another process too, as after a fork: until that ends or writes
  MOVED      FROM             TO               WHY            LAST     SO FAR
  demoted    dram0            cxl1             room        4.0 MiB    4.0 MiB
  demoted    dram0            cxl1             headroom    2.0 MiB    2.0 MiB
  promoted   cxl1             dram0            hot         8.0 MiB    8.0 MiB
  pages so far: 3072 moved, 2 busy

not there: absent
";
        assert_eq!(text, expected);
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
        long.allowed_nodes = Some((0..64).map(NodeId).collect());
        long.paused = Some(PauseReason::SamplerBlind);
        snapshot.standing = PauseReason::ALL.to_vec();
        snapshot.record(report(2, vec![long]));
        let text = Status::new(&snapshot, Duration::from_secs(1_000_000)).text();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            let is_ours = line.starts_with("  ") && !line.contains("among nodes");
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
    fn ages_are_short() {
        assert_eq!(age(2.0), "2 s");
        assert_eq!(age(0.25), "0.3 s");
        assert_eq!(age(61.0), "1 min 1 s");
        assert_eq!(age(7_260.0), "2 h 1 min");
        assert_eq!(age(200_000.0), "2 d 7 h");
    }
}
