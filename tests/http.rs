//! The HTTP server, over a real socket, with a snapshot that nobody measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hmkeeper::ports::SamplerKind;
use hmkeeper::telemetry::Snapshot;
use hmkeeper::telemetry::http::{Source, serve};
use hmkeeper::tiering::report::{EpochReport, PauseReason};
use hmkeeper::tiering::tier::{MemoryKind, Node, TierTable};
use hmkeeper::units::{Bytes, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

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
    server.await.unwrap().unwrap();
}
