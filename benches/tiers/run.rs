//! The host's side: boots a guest for each run, keeps what it brings, and tells how far it is.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};

use crate::compare::{self as comparison, By};
use crate::results::{self, Job, Measured, Row};
use crate::sets::{Choice, Set};
use crate::{boot, chart, guest, host, system, table, workload};

/// Of a run, before any was done.
const GUESS: Duration = Duration::from_secs(60);

/// What to run, and where results lie.
#[derive(Args)]
pub(crate) struct Options {
    /// The run set: smoke, default, latency or full
    #[arg(default_value = "default")]
    set: String,
    #[command(flatten)]
    choice: Choice,
    /// Run again what was disturbed: while it ran, others took a tenth of one of the host's CPUs
    #[arg(long)]
    again: bool,
    /// Ask the daemon during runs which share of the accesses each node serves, and keep it beside
    /// what was counted; such runs do not belong with others
    #[arg(long, requires = "results")]
    shares: bool,
    /// Stop after so many new runs
    #[arg(long)]
    limit: Option<usize>,
    /// Where results lie [default: benches/results/tiers.json; smoke's in the target directory]
    #[arg(long)]
    results: Option<PathBuf>,
    /// Show what ran on this machine, as results name it [default: this one, or else the one with most results]
    #[arg(long)]
    host: Option<String>,
}

impl Options {
    fn set(&self) -> Result<&'static Set, String> {
        if let Some(name) = self.choice.unknown() {
            return Err(format!("there is no workload or system {name}"));
        }
        Set::named(&self.set).ok_or_else(|| {
            let name = &self.set;
            format!("there is no run set {name}: smoke, default, latency or full")
        })
    }

    /// Results are kept, but for those that say nothing.
    fn results(&self) -> PathBuf {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        match &self.results {
            Some(path) => path.clone(),
            None if self.set == "smoke" => {
                // This program lies in TARGET/PROFILE/deps.
                let me = std::env::current_exe().unwrap_or_default();
                let target = me.ancestors().nth(3).map(Path::to_owned);
                target.unwrap_or_default().join("tiers-smoke.json")
            }
            None => project.join("benches/results/tiers.json"),
        }
    }
}

/// Runs what is not there yet.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let set = options.set()?;
    let file = options.results();
    if set.name == "smoke" && options.results.is_none() {
        let _ = std::fs::remove_file(&file);
    }
    let mut rows = results::load(&file).map_err(|e| e.to_string())?;
    if options.again {
        rows.retain(|r| r.set != set.name || !r.is_disturbed());
    }
    let mut choice = options.choice.clone();
    for name in set.wanted(&options.choice) {
        if let Some(why) = workload::missing(name) {
            println!("{name}: skipped: {why}");
            choice.absent.push(name);
        }
    }
    let here = host::here();
    let is_open = |job: &Job| !rows.iter().any(|r| r.is(job, &here));
    let jobs = set.jobs(&choice);
    let mut asked = system::BY_KERNEL.to_vec();
    asked.retain(|name| jobs.iter().any(|job| job.system == *name && is_open(job)));
    match boot::missing(&asked) {
        Ok(missing) => {
            for (name, why) in missing {
                println!("{name}: skipped: {why}");
                choice.absent.push(name);
            }
        }
        // They fail by themselves, or do not.
        Err(e) => println!(
            "{}: not known whether the kernel has them: {e}",
            asked.join(", ")
        ),
    }
    let jobs = set.jobs(&choice);
    let todo: Vec<&Job> = jobs
        .iter()
        .filter(|job| is_open(job))
        .take(options.limit.unwrap_or(usize::MAX))
        .collect();
    let there: Vec<&Row> = (rows.iter())
        .filter(|r| jobs.iter().any(|job| r.is(job, &here)))
        .collect();
    println!(
        "{}: {} runs, {} are there, {} to do; on {here}",
        set.name,
        jobs.len(),
        there.len(),
        todo.len()
    );
    let commit = commit();
    if there.iter().any(|row| row.commit != commit) {
        println!(
            "what is there was measured at other commits than {commit}: --results FILE begins anew"
        );
    }
    let wide = 2 * todo.len().to_string().len() + 1;
    if !todo.is_empty() {
        println!("{}", table::head(wide));
    }
    let begin = Instant::now();
    let mut done = 0;
    let guests = set.guests(&todo);
    let next = Mutex::new(guests.iter());
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..set.at_once {
            let (next, tell) = (&next, tell.clone());
            scope.spawn(move || {
                let one = || next.lock().ok()?.next();
                while let Some(jobs) = one() {
                    if tell.send(boot(jobs, set, options.shares)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(tell);
        progress(&todo, begin.elapsed(), done);
        for guest in told {
            clear_progress();
            for (job, result) in guest.jobs.iter().zip(guest.results) {
                done += 1;
                let at = format!("{done}/{}", todo.len());
                let row = result.map(|measured| Row {
                    set: job.set.to_owned(),
                    workload: job.workload.to_owned(),
                    system: job.system.to_owned(),
                    pace: job.pace,
                    run: job.run,
                    relative_to_first_touch: None,
                    host_others_cpu_seconds: guest.others,
                    commit: commit.clone(),
                    host: here.clone(),
                    measured,
                });
                let fault = |row: Row| row.fault().map_or(Ok(row.clone()), |f| Err(f.to_owned()));
                match row.and_then(fault) {
                    Ok(row) => {
                        rows.push(row);
                        results::relate(&mut rows);
                        results::save(&file, &rows)
                            .map_err(|e| format!("{}: {e}", file.display()))?;
                        let row = &rows[rows.len() - 1];
                        let left = left(begin.elapsed(), done, todo.len());
                        let took = guest.took.as_secs();
                        let noisy = if set.is_timed() && row.is_disturbed() {
                            ", others were busy: see --again"
                        } else {
                            ""
                        };
                        println!(
                            "{at:>wide$}  {}  {took} s, {left} left{noisy}",
                            table::line(row)
                        );
                    }
                    Err(e) => {
                        println!("{at:>wide$}  {} {}: FAILED: {e}", job.workload, job.system);
                    }
                }
            }
            progress(&todo, begin.elapsed(), done);
        }
        Ok::<(), String>(())
    })?;
    clear_progress();
    println!();
    show(options)?;
    // As whoever reads the file will find it.
    let rows = results::load(&file).map_err(|e| e.to_string())?;
    let failed = todo.iter().filter(|j| !rows.iter().any(|r| r.is(j, &here)));
    match failed.count() {
        0 if options.limit.is_some() => Ok(()),
        0 => set.covered_by(&rows, &choice),
        n => Err(format!(
            "{n} runs failed: the same command tries them again"
        )),
    }
}

/// The table of all results of the set, and its charts beside the results.
pub(crate) fn show(options: &Options) -> Result<(), String> {
    let set = options.set()?;
    let file = options.results();
    let rows = shown(options, &file, true)?;
    let cells = results::cells(&rows, stretch()?);
    let best = results::best_paces(&cells);
    print!("{}\n{}", table::all(&cells), table::means(&best));
    print!("{}", table::latencies(&rows));
    print!("{}", table::shares(&rows));
    let stem = file.with_extension("");
    for (name, chart) in chart::all(&best) {
        let path = format!("{}-{}-{name}.svg", stem.display(), set.name);
        std::fs::write(&path, chart).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// The rows of the set on one machine; `tells`: says which.
fn shown(options: &Options, file: &Path, tells: bool) -> Result<Vec<Row>, String> {
    let set = options.set()?;
    let mut rows = results::load(file).map_err(|e| e.to_string())?;
    rows.retain(|r| r.set == set.name);
    let all = rows.len();
    let default = || results::shown_host(&rows, &host::here());
    let chosen = options.host.clone().unwrap_or_else(default);
    rows.retain(|r| r.host == chosen);
    if tells && !rows.is_empty() {
        let name = if chosen.is_empty() {
            "a machine that was not kept"
        } else {
            &chosen
        };
        let commits = results::commits(&rows);
        let commits: Vec<String> = (commits.iter())
            .map(|(commit, count)| format!("{commit} ({count})"))
            .collect();
        println!("On {name}, at {}", commits.join(", "));
        if all > rows.len() {
            println!(
                "{} more of other machines are left out: --host",
                all - rows.len()
            );
        }
    }
    Ok(rows)
}

/// Whether pairs of systems that are apart keep their order in other results.
pub(crate) fn compare(options: &Options, with: &Path) -> Result<(), String> {
    let stretch = stretch()?;
    let first = results::cells(&shown(options, &options.results(), true)?, stretch);
    let second = results::cells(&shown(options, with, true)?, stretch);
    for by in [By::Clock, By::Model] {
        let (apart, turned) = comparison::compare(by, &first, &second);
        if apart == 0 && by == By::Clock {
            return Err("they have no two systems in common that are apart".to_owned());
        }
        print!("{}", comparison::text(by, apart, &turned));
    }
    Ok(())
}

/// How many times longer everything takes in the guest than on the modelled machine.
fn stretch() -> Result<f64, String> {
    let file = format!(
        "{}/tests/vm/tierlat/{}.preset",
        env!("CARGO_MANIFEST_DIR"),
        boot::MACHINE
    );
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let scale = text.lines().find_map(|l| l.strip_prefix("scale "));
    let word = scale.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|w| w.parse().ok())
        .ok_or_else(|| format!("{file}: no line \"scale FACTOR\""))
}

/// What one guest brought.
struct Brought<'a> {
    jobs: &'a [&'a Job],
    /// Of each job.
    results: Vec<Result<Measured, String>>,
    took: Duration,
    /// CPU seconds that others took of the host meanwhile.
    others: f64,
}

/// Runs these, one after the other, in one guest.
fn boot<'a>(jobs: &'a [&'a Job], set: &Set, shares: bool) -> Brought<'a> {
    let begin = Instant::now();
    let before = host_others();
    let results = boot::measure(jobs, set, shares).unwrap_or_else(|e| vec![Err(e); jobs.len()]);
    Brought {
        jobs,
        results,
        took: begin.elapsed(),
        others: (host_others() - before).max(0.0),
    }
}

/// CPU seconds since the host's start that were not taken by this program and what it has run.
fn host_others() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|w| w.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq, steal; guests are in user already.
    let busy: f64 = [0, 1, 2, 5, 6, 7]
        .iter()
        .filter_map(|&i| ticks.get(i))
        .sum();
    let own = |who| {
        let usage = getrusage(who).ok();
        usage.map_or(0.0, |u| {
            let time = u.user_time() + u.system_time();
            time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
        })
    };
    let ours = own(UsageWho::RUSAGE_SELF) + own(UsageWho::RUSAGE_CHILDREN);
    busy / guest::TICKS_PER_SECOND - ours
}

/// What is measured: a commit, with `+` where the tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| -> Option<String> {
        let mut command = Command::new("git");
        command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = command.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some(hash) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        ":!benches/results",
    ]);
    let is_clean = changes.is_some_and(|c| c.is_empty());
    if is_clean { hash } else { format!("{hash}+") }
}

/// How long what is left will take, if it takes what was done.
fn left(elapsed: Duration, done: usize, all: usize) -> String {
    let each = match u32::try_from(done) {
        Ok(n) if n > 0 => elapsed / n,
        _ => GUESS,
    };
    let seconds = (each * u32::try_from(all - done).unwrap_or(u32::MAX)).as_secs();
    if seconds < 90 {
        format!("{seconds} s")
    } else {
        format!("{} min", seconds.div_ceil(60))
    }
}

fn progress(todo: &[&Job], elapsed: Duration, done: usize) {
    if let Some(job) = todo.get(done)
        && io::stdout().is_terminal()
    {
        let all = todo.len();
        let left = left(elapsed, done, all);
        print!(
            "{}/{all} {} {} … {left} left",
            done + 1,
            job.workload,
            job.system
        );
        let _ = io::stdout().flush();
    }
}

fn clear_progress() {
    if io::stdout().is_terminal() {
        print!("\r\x1b[K");
    }
}
