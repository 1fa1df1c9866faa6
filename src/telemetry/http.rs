//! HTTP for dashboards and health checks: `/metrics`, `/healthz`, `/`.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Snapshot;
use super::metrics;
use super::status::Status;

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
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    source: Source,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(source))
        .with_graceful_shutdown(shutdown)
        .await
}

/// The routes.
pub fn router(source: Source) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(health))
        .route("/", get(status))
        .with_state(source)
}

async fn metrics_page(State(source): State<Source>) -> Response {
    let snapshot = Arc::clone(&source.snapshots.borrow());
    match metrics::render(&snapshot) {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn health(State(source): State<Source>) -> Response {
    if (source.healthy)() {
        "ok\n".into_response()
    } else {
        let text = "the loop makes no progress\n";
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn status(State(source): State<Source>) -> String {
    let snapshot = Arc::clone(&source.snapshots.borrow());
    Status::new(&snapshot, snapshot.started.elapsed()).text()
}
