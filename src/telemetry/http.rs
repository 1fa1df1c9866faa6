//! HTTP for dashboards and health checks: `/metrics`, `/healthz`, `/`.
//!
//! Any local user may connect. So a connection carries one request, has
//! [`LIFE`] from its first byte to the last of its answer, and a place among
//! few ([`crate::clients`]). A page is rendered once for all who ask within
//! a second, so that neither their number nor how slowly they read takes
//! more memory than a few pages have.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Snapshot;
use super::metrics;
use super::status::Status;
use crate::clients;

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;
/// A request has so long to be sent.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// A connection has so long, as Prometheus gives a scrape by default.
pub const LIFE: Duration = Duration::from_secs(10);
/// The longest request; a browser's is some 2 KiB.
const REQUEST_MAX: usize = 16 << 10;
/// A page is as good as new for so long.
const FRESH: Duration = Duration::from_secs(1);

/// Whether the loop makes progress.
pub type Health = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the routes show.
#[derive(Clone)]
pub struct Source {
    /// The loop's last word.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Whether it still speaks.
    pub healthy: Health,
}

/// Answers on `listener` until `shutdown` is done.
pub async fn serve(listener: TcpListener, source: Source, shutdown: impl Future<Output = ()>) {
    let router = router(source);
    let places = clients::places(CONNECTIONS_MAX);
    clients::serve(listener, "metrics.listen", places, shutdown, |stream, _| {
        connection(stream, router.clone())
    })
    .await;
}

/// One client, from its request to the end of its answer.
async fn connection(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(REQUEST_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that goes away or takes too long is its own affair.
    let _ = timeout(LIFE, connection).await;
}

/// The routes.
pub fn router(source: Source) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(health))
        .route("/", get(status))
        .with_state(Pages {
            source,
            metrics: Kept::default(),
            status: Kept::default(),
        })
}

/// A page, and what it was made from.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<Page>>>);

struct Page {
    /// Weak: the loop changes a snapshot in place where nobody holds it.
    of: Weak<Snapshot>,
    made: Instant,
    bytes: Bytes,
}

impl Kept {
    /// The page of `snapshot`, made by `render` where there is none yet.
    fn page<E>(
        &self,
        snapshot: &Arc<Snapshot>,
        render: impl FnOnce(&Snapshot) -> Result<String, E>,
    ) -> Result<Bytes, E> {
        // Nothing is left half-done by a panic.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = kept
            .as_ref()
            .filter(|page| page.made.elapsed() < FRESH)
            .filter(|page| page.of.as_ptr() == Arc::as_ptr(snapshot));
        if let Some(page) = fresh {
            return Ok(page.bytes.clone());
        }
        let bytes = Bytes::from(render(snapshot)?);
        *kept = Some(Page {
            of: Arc::downgrade(snapshot),
            made: Instant::now(),
            bytes: bytes.clone(),
        });
        Ok(bytes)
    }
}

#[derive(Clone)]
struct Pages {
    source: Source,
    metrics: Kept,
    status: Kept,
}

impl Pages {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.source.snapshots.borrow())
    }
}

async fn metrics_page(State(pages): State<Pages>) -> Response {
    match pages.metrics.page(&pages.snapshot(), metrics::render) {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn health(State(pages): State<Pages>) -> Response {
    if (pages.source.healthy)() {
        "ok\n".into_response()
    } else {
        let text = "the loop makes no progress\n";
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn status(State(pages): State<Pages>) -> Response {
    let render = |snapshot: &Snapshot| {
        Ok::<_, Infallible>(Status::new(snapshot, snapshot.started.elapsed()).text())
    };
    let Ok(page) = pages.status.page(&pages.snapshot(), render);
    let text = "text/plain; charset=utf-8";
    ([(header::CONTENT_TYPE, text)], page).into_response()
}
