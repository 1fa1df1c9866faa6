//! The binary itself: exit codes, and errors of one line each.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn hmkeeper(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(args)
        .env_remove("HMKEEPER_LOG")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// What errors there are: stderr without the log.
fn errors(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.starts_with("hmkeeper: "))
        .map(str::to_owned)
        .collect()
}

/// A configuration whose socket and state are in `dir`, and `more`.
fn config(dir: &Path, listen: &str, more: &str) -> String {
    let path = dir.join("hmkeeper.toml");
    let text = format!(
        "[daemon]\nlog = \"error\"\nstate_dir = \"{0}\"\n[metrics]\nlisten = \"{listen}\"\n\
         [control]\nsocket = \"{0}/control.sock\"\n{more}",
        dir.display()
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn assert_fails(args: &[&str], code: i32, needle: &str) {
    let output = hmkeeper(args);
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    assert_eq!(errors.len(), 1, "{args:?}: {output:?}");
    assert!(errors[0].contains(needle), "{args:?}: {errors:?}");
}

#[test]
fn wrong_usage_is_2() {
    for (args, needle) in [
        (&["explode"][..], "explode"),
        (&["run", "--explode"], "--explode"),
        (&["run", "--pid", "x"], "--pid"),
        (&["run", "--epochs", "0"], "--epochs"),
        (&["attach"], "<PID>"),
    ] {
        assert_fails(args, 2, needle);
    }
    assert_eq!(hmkeeper(&[]).status.code(), Some(2));
}

#[test]
fn a_configuration_with_faults_is_2_with_a_line_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(
        dir.path(),
        "off",
        "[profiling]\ninterval = \"10 parsecs\"\nscans = 99\nsamplr = \"idle\"\n",
    );
    let output = hmkeeper(&["run", "--config", &file]);
    assert_eq!(output.status.code(), Some(2));
    let errors = errors(&output);
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].contains(&format!("{file}:9:12: profiling.interval")));
    assert!(
        errors[2].contains("did you mean \"sampler\"?"),
        "{errors:?}"
    );
}

#[test]
fn a_missing_named_file_is_2() {
    assert_fails(
        &["run", "--config", "/nonexistent/h.toml"],
        2,
        "/nonexistent/h.toml: cannot be read",
    );
}

#[test]
fn pids_that_cannot_be_watched_are_4() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "off", "");
    let run = |pid: &str, needle| {
        assert_fails(&["run", "--config", &file, "--pid", pid], 4, needle);
    };
    run("4194303", "no such process");
    // kthreadd, where the process ids of the host are to be seen.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
        run("2", "kernel thread");
    } else {
        eprintln!("skipped: pid 2 is not kthreadd in this pid namespace");
    }
}

#[test]
fn without_privileges_it_is_3_and_says_who_to_be() {
    const NOBODY: u32 = 65534;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hmkeeper"));
    command
        .args(["run", "--epochs", "1"])
        .env_remove("HMKEEPER_LOG");
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: the binary is where only root can run it: {e}");
            return;
        }
        output => output.unwrap(),
    };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = errors(&output);
    assert!(errors[0].contains("run hmkeeper as root"), "{errors:?}");
}

#[test]
fn a_port_in_use_is_1_and_says_whose_fault_it_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = config(dir.path(), &address, "");
    assert_fails(
        &["run", "--config", &file],
        1,
        "another program has the port",
    );
}

#[test]
fn a_missing_socket_directory_is_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(&dir.path().join("."), "off", "");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("/control.sock", "/missing/control.sock");
    std::fs::write(&file, text).unwrap();
    assert_fails(
        &["run", "--config", &file],
        1,
        "the directory is missing; create it",
    );
}

#[test]
fn control_verbs_without_a_daemon_are_1() {
    for verb in [
        &["status"][..],
        &["pause"],
        &["resume"],
        &["reload"],
        &["attach", "1"],
        &["detach", "1"],
    ] {
        let mut args = verb.to_vec();
        args.extend(["--socket", "/nonexistent/c.sock"]);
        assert_fails(&args, 1, "no daemon answers there; start one");
    }
}

#[test]
fn help_names_only_verbs_that_work() {
    let output = hmkeeper(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for verb in [
        "run", "check", "topology", "status", "attach", "detach", "pause", "resume", "reload",
        "replay", "report",
    ] {
        assert!(text.contains(&format!("\n  {verb} ")), "{verb}: {text}");
    }
    assert!(!text.contains("generate"), "{text}");
    assert!(text.contains("3 the host lacks"), "{text}");
}

#[test]
fn man_page_and_completions_come_from_the_same_definitions() {
    let page = hmkeeper(&["generate", "man"]);
    assert!(String::from_utf8_lossy(&page.stdout).contains("hmkeeper\\-topology"));
    for shell in ["bash", "zsh", "fish"] {
        let output = hmkeeper(&["generate", "completions", shell]);
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("detach"));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(["generate", "completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before anything was read.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn what_the_daemon_refuses_comes_with_its_code_and_all_faults() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        // Whether it is there, and then what is wanted.
        let faults = r#"{"ok":false,"error":"2 faults","code":2,"faults":["a:1:1: x","a:2:1: y"]}"#;
        for (command, reply) in [("status", r#"{"ok":true}"#), ("reload", faults)] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            assert_eq!(request, format!("{{\"command\":\"{command}\"}}\n"));
            writeln!(stream, "{reply}").unwrap();
        }
    });
    let output = hmkeeper(&["reload", "--socket", path.to_str().unwrap()]);
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        errors(&output),
        [
            "hmkeeper: a:1:1: x",
            "hmkeeper: a:2:1: y",
            "hmkeeper: 2 faults"
        ]
    );
}

#[test]
fn a_report_leaves_what_is_there_when_it_cannot_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("notes.csv"), "kept").unwrap();
    let (notes, out) = (path("notes.csv"), path("out.csv"));
    let unknown = path("out.gif");
    assert_fails(
        &["report", &notes, "--out", &unknown],
        2,
        "write X.svg, X.png",
    );
    assert_fails(
        &["report", &notes, "--out", &notes],
        1,
        "is not a recording",
    );
    assert_fails(&["report", &path("absent"), "--out", &out], 1, "absent");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "kept");

    // A recording of no epochs is a table of no rows; and never its own table.
    let recording = path("a.csv");
    drop(hmkeeper::record::file::Writer::append(Path::new(&recording), 1).unwrap());
    let before = std::fs::read(&recording).unwrap();
    assert_fails(&["report", &recording, "--out", &recording], 2, "itself");
    assert_eq!(std::fs::read(&recording).unwrap(), before);
    let output = hmkeeper(&["report", &recording, "--out", &out]);
    assert!(output.status.success(), "{output:?}");
    let table = std::fs::read_to_string(&out).unwrap();
    assert_eq!(table.trim(), hmkeeper::record::csv::HEADER);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 3, "nothing else stays");
}

/// Runs it, and ends it after `limit`: it must have ended by itself.
fn within(limit: std::time::Duration, args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(args)
        .env_remove("HMKEEPER_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > limit {
            child.kill().unwrap();
            panic!("{args:?} took more than {limit:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// On a busy host; what is wrong here takes for ever.
const SOON: std::time::Duration = std::time::Duration::from_secs(8);

#[test]
fn files_without_end_or_writer_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap();
    let large = dir.path().join("large.toml");
    std::fs::write(&large, "#\n".repeat(1 << 20)).unwrap();
    let large = large.to_str().unwrap();
    for (file, needle) in [
        (fifo, "it is a pipe, not a regular file"),
        ("/dev/zero", "it is a device, not a regular file"),
        ("/", "it is a directory, not a regular file"),
        (large, "it has more than 1048576 bytes"),
    ] {
        for verb in ["run", "topology"] {
            let output = within(SOON, &[verb, "--config", file]);
            assert_eq!(output.status.code(), Some(2), "{verb} {file}: {output:?}");
            let errors = errors(&output);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains(needle), "{errors:?}");
            assert!(
                errors[0].contains("name another with --config"),
                "{errors:?}"
            );
        }
    }
    for args in [
        &["replay", fifo][..],
        &["report", fifo, "--out", "/tmp/x.svg"],
        &["topology", "--xml", fifo],
        &["topology", "--xml", "/dev/zero"],
        &["simulate", "--machine", "/dev/zero", "--workload", "gups"],
    ] {
        let output = within(SOON, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(
            errors(&output)[0].contains("not a regular file"),
            "{output:?}"
        );
    }
}

#[test]
fn forty_thousand_faults_are_told_in_twenty_lines() {
    use std::fmt::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let (mut unknown, mut broken, mut sections) = (String::new(), String::new(), String::new());
    for i in 0..40_000 {
        let _ = writeln!(unknown, "key{i} = {i}");
        let _ = writeln!(broken, "k{i} = {i}s");
        let _ = writeln!(sections, "[[targets]]");
    }
    let long = format!("{} = 1\n", "k".repeat(1_000_000));
    for (text, count) in [(unknown, 21), (broken, 21), (sections, 21), (long, 1)] {
        let file = dir.path().join("hmkeeper.toml");
        std::fs::write(&file, &text).unwrap();
        let output = within(SOON, &["run", "--config", file.to_str().unwrap()]);
        let errors = errors(&output);
        assert_eq!(errors.len(), count, "{errors:#?}");
        assert!(errors.iter().all(|e| e.len() < 1000), "{errors:#?}");
        if count > 1 {
            assert!(
                errors[20].contains("more faults; correct these first"),
                "{errors:?}"
            );
        }
    }
}

#[test]
fn nothing_from_outside_steers_the_terminal() {
    let evil = "x\nhmkeeper: forged\u{1b}[2J\u{9b}1m\u{202e}";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("evil.toml");
    let key = "\"a\\u001b[2J\\nforged\\u202e\" = 1\n";
    std::fs::write(&file, key).unwrap();
    for args in [
        &["run", "--config", evil][..],
        &["run", "--config", file.to_str().unwrap()],
        &["replay", evil],
        &["report", evil, "--out", evil],
        &["report", evil, "--out", "x.csv"],
        &["simulate", "--machine", evil],
        &["simulate", "--workload", &format!("/{evil}")],
        &["topology", "--xml", evil],
        &["status", "--socket", evil],
        &["attach", evil],
        &[evil],
        &["run", &format!("--{evil}")],
    ] {
        let output = hmkeeper(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{args:?}");
        assert!(!text.contains("\nhmkeeper: forged"), "{args:?}: {text}");
        let is_bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(is_bad), "{args:?}: {text:?}");
        assert!(text.starts_with("hmkeeper: "), "{args:?}: {text:?}");
    }
}
