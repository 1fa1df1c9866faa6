//! The HTTP server, over a real socket, with a snapshot that nobody measured.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hmkeeper::control::server::Socket;
use hmkeeper::control::{self, Call, Reply, Request};
use hmkeeper::ports::SamplerKind;
use hmkeeper::telemetry::Snapshot;
use hmkeeper::telemetry::http::{Source, serve};
use hmkeeper::tiering::report::{EpochReport, PauseReason};
use hmkeeper::tiering::tier::{MemoryKind, Node, TierTable};
use hmkeeper::units::{Bytes, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

fn snapshot() -> Snapshot {
    let nodes = vec![Node {
        id: NodeId(0),
        kind: MemoryKind::Dram,
        size: Bytes::from_mib(1024),
        cpus: vec![0],
        kernel_tier: None,
    }];
    let tiers = TierTable::new(TierTable::default_tiers(&nodes), nodes, vec![]).unwrap();
    let mut snapshot = Snapshot::new(Instant::now(), SamplerKind::Idle, Arc::new(tiers));
    snapshot.configured = vec!["db".into()];
    snapshot.standing = vec![PauseReason::OneTier];
    snapshot
}

async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

#[tokio::test]
async fn the_routes_show_the_last_snapshot() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, snapshots) = watch::channel(Arc::new(snapshot()));
    let alive = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&alive);
    let source = Source {
        snapshots,
        healthy: Arc::new(move || health.load(Ordering::Relaxed)),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, source, async {
        let _ = stopped.await;
    }));

    let (status, page) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    let page = page.to_ascii_lowercase();
    assert!(
        page.contains("content-type: text/plain; version=0.0.4"),
        "{page}"
    );
    assert!(
        page.contains("hmkeeper_paused{reason=\"one-tier\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("hmkeeper_target_up{target=\"db\"} 0\n"),
        "{page}"
    );
    assert!(page.contains("hmkeeper_epochs_total 0\n"), "{page}");

    sender.send_modify(|shared| {
        Arc::make_mut(shared).record(EpochReport {
            epoch: 1,
            ..EpochReport::default()
        });
    });
    let (_, page) = get(address, "/metrics").await;
    assert!(page.contains("hmkeeper_epochs_total 1\n"), "{page}");

    let (status, page) = get(address, "/").await;
    assert_eq!(status, 200);
    assert!(page.contains("nothing is moved: one-tier"), "{page}");
    assert!(page.contains("not there: db"), "{page}");

    assert_eq!(get(address, "/healthz").await.0, 200);
    alive.store(false, Ordering::Relaxed);
    assert_eq!(get(address, "/healthz").await.0, 503);
    assert_eq!(get(address, "/nothing").await.0, 404);

    stop.send(()).unwrap();
    server.await.unwrap();
}

/// Descriptors that the server below may have.
const DESCRIPTORS: u64 = 1024;
/// Clients that behave badly: more than it has descriptors for.
const CROWD: usize = 1500;
/// What they may cost it.
const GROWTH_MAX_KIB: u64 = 16 << 10;
/// Descriptors that the loop wants at once: three for each of 200 targets.
const LOOP_NEEDS: usize = 600;
const CHILD: &str = "HMKEEPER_TEST_SERVER";

/// Not a test of its own: the server of the tests below, in a process whose
/// descriptors are few. Beside it a loop opens files as the daemon's does, and
/// its end is this process's. `HMKEEPER_TEST_SERVER` names a control socket.
#[test]
fn a_server_with_few_descriptors() {
    let Ok(socket) = std::env::var(CHILD) else {
        return;
    };
    let limit = rustix::process::Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (_sender, snapshots) = watch::channel(Arc::new(snapshot()));
    let source = Source {
        snapshots,
        healthy: Arc::new(|| true),
    };
    let control = Socket::bind(std::path::Path::new(&socket)).unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        serve(listener, source, std::future::pending()).await;
    });
    let (calls, mut called) = mpsc::channel::<Call>(4);
    runtime.spawn(control.serve(calls, CancellationToken::new()));
    runtime.spawn(async move {
        while let Some(call) = called.recv().await {
            let _ = call.reply.send(Reply::done("x".repeat(4000)));
        }
    });
    println!("port {port}");
    // The loop: it ends when whoever started us closes our stdin.
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(over);
    });
    let tick = Duration::from_millis(20);
    while is_over.recv_timeout(tick) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let files: Result<Vec<_>, _> = (0..LOOP_NEEDS)
            .map(|_| std::fs::File::open("/proc/self/stat"))
            .collect();
        if let Err(error) = files {
            println!("the loop failed: {error}");
            std::process::exit(9);
        }
    }
    println!("the loop went on");
}

struct Server {
    child: std::process::Child,
    address: std::net::SocketAddr,
    socket: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_server_with_few_descriptors", "--nocapture"])
            .env(CHILD, &socket)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
        let mut line = String::new();
        let port = loop {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "no server");
            // The harness's own words come before it on the same line.
            if let Some((_, port)) = line.trim().split_once("port ") {
                break port.parse::<u16>().unwrap();
            }
        };
        Self {
            child,
            address: ([127, 0, 0, 1], port).into(),
            socket,
            _dir: dir,
        }
    }

    fn rss_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn sockets(&self) -> usize {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        fds.filter(|fd| {
            let link = fd.as_ref().map(|fd| std::fs::read_link(fd.path()));
            link.is_ok_and(|l| l.is_ok_and(|l| l.to_string_lossy().starts_with("socket:")))
        })
        .count()
    }

    /// Closes its stdin, and tells whether the loop went on all the while.
    fn end(mut self) -> bool {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        let mut out = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
        self.child.wait().unwrap().success() && rest.contains("the loop went on")
    }
}

/// `CROWD` clients that each send `text` and no more, and read nothing. The
/// server may end any of them.
fn crowd(address: std::net::SocketAddr, text: &[u8]) -> Vec<std::net::TcpStream> {
    (0..CROWD)
        .map(|_| {
            let wait = Duration::from_secs(60);
            let mut client = std::net::TcpStream::connect_timeout(&address, wait).unwrap();
            let _ = client.write_all(text);
            client
        })
        .collect()
}

/// The server outlives `CROWD` clients that send `text`, at no great cost, and
/// answers somebody else meanwhile.
async fn outlives(text: &'static [u8]) {
    let server = Server::start();
    let address = server.address;
    // What the first answer needs is no growth.
    assert_eq!(get(address, "/metrics").await.0, 200);
    let before = server.rss_kib();
    let bad = tokio::task::spawn_blocking(move || crowd(address, text));
    let wait = Duration::from_secs(90);
    while !bad.is_finished() {
        let answer = tokio::time::timeout(wait, get(address, "/metrics")).await;
        assert_eq!(answer.expect("an answer meanwhile").0, 200);
    }
    let bad = bad.await.unwrap();
    for page in ["/metrics", "/", "/healthz"] {
        let answer = tokio::time::timeout(wait, get(address, page)).await;
        assert_eq!(answer.expect("an answer").0, 200, "{page}");
    }
    let grown = server.rss_kib().saturating_sub(before);
    assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more");
    let sockets = server.sockets();
    assert!(sockets <= 100, "{sockets} sockets");
    assert!(server.end(), "the loop failed");
    drop(bad);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_sent_requests_do_not_end_the_loop() {
    outlives(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_send_nothing_do_not_end_the_loop() {
    outlives(b"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stay_after_their_answer_do_not_end_the_loop() {
    outlives(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_do_not_end_the_loop() {
    // Many requests, so that the answers fill what the kernel keeps.
    static MANY: std::sync::LazyLock<Vec<u8>> =
        std::sync::LazyLock::new(|| b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200));
    outlives(&MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_do_not_end_the_loop() {
    static LONG: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let mut text = b"GET /metrics HTTP/1.1\r\nX-a: ".to_vec();
        text.resize(60 << 10, b'a');
        text
    });
    outlives(&LONG).await;
}

#[test]
fn clients_of_the_control_socket_do_not_end_the_loop() {
    let many = "{\"command\":\"status\"}\n".repeat(500);
    // Who is idle is sent away after the grace, 32 at a time: fewer do, then.
    for (text, clients) in [("", 240), ("{\"command\":", 120), (&many, 120)] {
        let server = Server::start();
        let path = server.socket.clone();
        let ask = || control::client::call(&server.socket, Request::Pause);
        assert!(ask().unwrap().ok);
        let before = server.rss_kib();
        let bytes = text.as_bytes().to_vec();
        let crowd = std::thread::spawn(move || {
            let clients = (0..clients).map(|_| {
                let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
                client.set_nonblocking(true).unwrap();
                let _ = client.write(&bytes);
                client
            });
            clients.collect::<Vec<_>>()
        });
        let answer = || {
            ask()
                .unwrap_or_else(|e| panic!("{clients} clients, {text:.20}: {e}"))
                .ok
        };
        while !crowd.is_finished() {
            assert!(answer());
        }
        assert!(answer());
        let grown = server.rss_kib().saturating_sub(before);
        assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more");
        assert!(server.sockets() <= 100, "{} sockets", server.sockets());
        assert!(server.end(), "the loop failed");
        drop(crowd);
    }
}

#[test]
fn a_stopped_daemon_is_named_within_seconds() {
    use nix::sys::signal::{Signal, kill};
    let server = Server::start();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let socket = server.socket.to_str().unwrap();
    for args in [
        &["status"][..],
        &["attach", "1"],
        &["detach", "1"],
        &["pause"],
        &["resume"],
        &["reload"],
    ] {
        let began = Instant::now();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
            .args(args)
            .args(["--socket", socket])
            .output()
            .unwrap();
        let took = began.elapsed();
        // What is above 3 s is this host's: it was 121 s.
        assert!(took < Duration::from_secs(20), "{args:?}: {took:?}");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let named = format!("hmkeeper (pid {pid}) does not answer within 3 s");
        assert!(text.contains(&named), "{text}");
        assert!(text.contains("kill -CONT"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(server.end());
}
