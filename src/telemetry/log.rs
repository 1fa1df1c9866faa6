//! Logs: to the journal under systemd, to stderr otherwise, and one place that
//! says what an epoch's report reads like.

use std::fmt;
use std::os::fd::AsFd;

use tracing::field::Field;
use tracing::{Event, Level, Subscriber, debug, info, warn};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use super::status::counted;
use crate::ports::{OtherMover, TargetEvent};
use crate::tiering::plan::Direction;
use crate::tiering::report::{EpochReport, PauseReason, TargetReport};
use crate::tiering::tier::TierTable;
use crate::units::Bytes;
use crate::units::text::printable;

mod left_alone;
mod planned;
pub use left_alone::Told;
pub use planned::Planned;

/// The environment variable that overrides `daemon.log`: a level or a filter.
pub const ENVIRONMENT: &str = "HMKEEPER_LOG";

/// Changes the level of the running daemon.
pub struct LevelHandle {
    handle: reload::Handle<Targets, Registry>,
    fixed: bool,
}

impl LevelHandle {
    /// Logs from `level` on, unless the environment decides.
    pub fn set(&self, level: &str) {
        if !self.fixed {
            // Fails only when the subscriber is gone, and nobody reads logs then.
            let _ = self.handle.reload(filter(level));
        }
    }
}

/// Only what hmkeeper says; of the libraries that it uses, only warnings. What
/// is no level is taken as "info".
fn filter(level: &str) -> Targets {
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("hmkeeper", level.parse().unwrap_or(LevelFilter::INFO))
}

/// What the environment asks for: a level, or levels by module.
fn parse(text: &str) -> Result<Targets, String> {
    if text.parse::<LevelFilter>().is_ok() {
        return Ok(filter(text));
    }
    text.parse().map_err(|e| {
        format!(
            "{ENVIRONMENT}={text}: {e}; write a level such as \"debug\", or levels by module \
             such as \"info,hmkeeper::sys=trace\""
        )
    })
}

/// Starts logging from `level` on, or as the environment says.
///
/// # Errors
/// When the environment's filter cannot be read; the text names it.
pub fn start(level: &str) -> Result<LevelHandle, String> {
    let wanted = std::env::var(ENVIRONMENT).ok().filter(|v| !v.is_empty());
    let (filter, fixed) = match wanted {
        None => (filter(level), false),
        Some(text) => (parse(&text)?, true),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let output = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .fmt_fields(debug_fn(field).delimited(" "));
    let output = if in_journal() {
        output.with_ansi(false).event_format(ForJournal).boxed()
    } else {
        output.with_target(false).with_ansi(has_colours()).boxed()
    };
    // A second start, as in tests, keeps the first subscriber.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(output)
        .try_init();
    Ok(LevelHandle { handle, fixed })
}

/// A field of an event. Names of processes and files are in some, so that
/// nothing is written as it came.
fn field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => write!(out, "{}", printable(&text)),
        name => write!(out, "{name}={}", printable(&text)),
    }
}

/// A line as the journal reads it from stderr: its level first, as sd-daemon(3)
/// has it, then all that stderr would have; the time is the journal's.
struct ForJournal;

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(out, "<{level}>")?;
        context.format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

/// Whether stderr shows colours, and nobody asked for none (no-color.org).
fn has_colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let able = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    wanted && able && std::io::IsTerminal::is_terminal(&std::io::stderr())
}

/// Whether stderr is the journal's: systemd says which file that would be.
fn in_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    nix::sys::stat::fstat(std::io::stderr().as_fd())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Logs what happened to targets. All is in the message: the journal shows
/// fields only to those who ask.
pub fn events(events: &[TargetEvent]) {
    for event in events {
        match event {
            TargetEvent::Attached { pid, name } => info!("target {name} (pid {pid}) found"),
            TargetEvent::Ended { pid, name } => info!("target {name} (pid {pid}) ended"),
            TargetEvent::Replaced { pid, name } => {
                info!("target {name} (pid {pid}) runs another program: starting over");
            }
            TargetEvent::Unwatchable { pid, why } => warn!("pid {pid} cannot be watched: {why}"),
        }
    }
}

/// Logs an epoch: a line at debug, and one at info for each target of which
/// something was moved.
pub fn epoch(report: &EpochReport, tiers: &TierTable) {
    let cost = &report.cost;
    debug!(
        "epoch {}: {}, {} samples paid for until the next, {} from now; {} elapsed: \
         {} profiling ({} for {} scans of a sample, {} for counting {} pages), {} kdamonds, \
         {} migration, {} other; {:.2} of moving's is spare",
        report.epoch,
        counted(report.targets.len() as u64, "target"),
        report.sample_quota,
        report.interval,
        cost.elapsed,
        cost.profiling,
        cost.scanning,
        cost.scanned,
        cost.sweeping,
        cost.swept,
        cost.kdamonds,
        cost.migration,
        cost.other,
        report.spare
    );
    for target in &report.targets {
        let (up, down) = (
            moved(target, Direction::Promotion),
            moved(target, Direction::Demotion),
        );
        if up + down > Bytes::ZERO {
            info!(
                "epoch {}: {} (pid {}): promoted {up}, demoted {down} ({})",
                report.epoch,
                target.name,
                target.pid,
                ways(target, tiers)
            );
        }
    }
}

/// Logs who else began to move pages, and who has ended.
pub fn other_movers(before: &[OtherMover], now: &[OtherMover]) {
    for other in now.iter().filter(|other| !before.contains(other)) {
        warn!(
            "{} moves pages too, and each undoes what the other does: {}",
            other.what, other.remedy
        );
    }
    for other in before.iter().filter(|other| !now.contains(other)) {
        info!("{} no longer moves pages", other.what);
    }
}

/// Logs what changed about why nothing is moved, once for each change.
pub fn pauses(before: &[PauseReason], now: &[PauseReason]) {
    for reason in now.iter().filter(|r| !before.contains(r)) {
        let explained = super::status::explained(*reason);
        // Nothing to be remedied.
        if *reason == PauseReason::NoGain {
            info!("nothing is moved: {explained}");
        } else {
            warn!("nothing is moved: {explained}");
        }
    }
    for reason in before.iter().filter(|r| !now.contains(r)) {
        info!("no longer paused: {}", reason.as_str());
    }
}

fn moved(target: &TargetReport, direction: Direction) -> Bytes {
    let flows = target.flows.iter().filter(|f| f.direction == direction);
    flows.map(|f| f.moved).sum()
}

/// What went which way, as in "hot mem3 → dram0 134.2 MiB".
fn ways(target: &TargetReport, tiers: &TierTable) -> String {
    let moved = target.flows.iter().filter(|f| !f.moved.is_zero());
    let ways: Vec<String> = moved
        .map(|f| {
            let (reason, from, to) = (f.reason.as_str(), tiers.name(f.from), tiers.name(f.to));
            format!("{reason} {from} → {to} {}", f.moved)
        })
        .collect();
    ways.join(", ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let kept = Kept::default();
        let writer = kept.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .fmt_fields(debug_fn(field).delimited(" "))
            .event_format(ForJournal);
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let name = "a\n<3>forged\u{1b}[2J\u{9b}\u{202e}";
            warn!(path = name, "target {name} found");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let shown = "a\\n<3>forged\\u{1b}[2J\\u{9b}\\u{202e}";
        assert!(
            text.starts_with(&format!("<4>target {shown} found")),
            "{text}"
        );
        assert!(text.contains("path="), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(crate::units::text::printable_lines(&text), text);
    }

    #[test]
    fn a_level_is_ours_and_libraries_only_warn() {
        for targets in [filter("debug"), parse("debug").expect("a level")] {
            assert!(targets.would_enable("hmkeeper::daemon", &Level::DEBUG));
            assert!(!targets.would_enable("hmkeeper::daemon", &Level::TRACE));
            assert!(targets.would_enable("hyper::proto", &Level::WARN));
            assert!(!targets.would_enable("hyper::proto", &Level::INFO));
        }
    }

    #[test]
    fn a_filter_names_modules() {
        let targets = parse("info,hmkeeper::sys=trace").expect("a filter");
        assert!(targets.would_enable("hmkeeper::sys::pagemap", &Level::TRACE));
        assert!(!targets.would_enable("hmkeeper::daemon", &Level::DEBUG));
        assert!(targets.would_enable("hyper::proto", &Level::INFO));
    }

    #[test]
    fn an_unreadable_filter_is_named_with_its_remedy() {
        let error = parse("hmkeeper=loud").expect_err("no level");
        assert!(error.contains("HMKEEPER_LOG=hmkeeper=loud"), "{error}");
        assert!(error.contains("write a level"), "{error}");
    }
}
