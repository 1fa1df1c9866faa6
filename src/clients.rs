//! Clients of a socket, within bounds: nothing that they do, or leave undone,
//! takes descriptors, memory or time from the loop.
//!
//! A listener has a fixed number of places, a small part of the descriptors
//! that this process may have. While all are taken, the next client waits in
//! the kernel's queue until one ends. A client that asks nothing, or does not
//! read, ends when its place is needed and it has had [`GRACE`]: the one that
//! came first. So a crowd of half-open connections is passed through, and a
//! well-behaved client, which asks at once, is answered meanwhile.
//!
//! Too few descriptors to accept with are no failure: they are waited for.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

/// A client keeps its place so long, whatever it does: a round trip around the
/// world.
pub const GRACE: Duration = Duration::from_millis(250);
/// A listener has at most this part of the descriptors, the loop the rest.
const PART: u64 = 16;
/// Even where that is nothing.
const PLACES_MIN: usize = 2;
/// Between two tries to accept, at first and at most.
const BACK_OFF: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Between two lines of the log about that.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A socket that clients come to.
pub trait Listener: Send {
    /// A client.
    type Stream: Send + 'static;

    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        Ok(Self::accept(self).await?.0)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }
}

/// Tells that a client waits for us, and not we for it.
#[derive(Clone, Debug, Default)]
pub struct Busy(Arc<AtomicBool>);

impl Busy {
    /// Does `work`, for which the client keeps its place.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.store(true, Ordering::Relaxed);
        let done = work.await;
        self.0.store(false, Ordering::Relaxed);
        done
    }
}

/// As many places as are wanted, or as the limit of descriptors allows.
pub fn places(wanted: usize) -> usize {
    // No limit: all that is wanted.
    let part = getrlimit(Resource::Nofile).current.map(|most| most / PART);
    let part = part.map_or(usize::MAX, |part| usize::try_from(part).unwrap_or(wanted));
    wanted.min(part.max(PLACES_MIN))
}

/// Accepts clients of `listener` until `stop` is done, at most `places` at
/// once. `what` names the listener in the log.
pub async fn serve<L, F>(
    listener: L,
    what: &str,
    places: usize,
    stop: impl Future<Output = ()>,
    client: impl Fn(L::Stream, Busy) -> F,
) where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
{
    tokio::pin!(stop);
    let mut held = Held::new(places);
    let mut trouble = Trouble::default();
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return,
            accepted = async {
                held.one_free().await;
                listener.accept().await
            } => accepted,
        };
        match accepted {
            Ok(stream) => {
                trouble.over();
                let busy = Busy::default();
                held.take(client(stream, busy.clone()), busy);
            }
            Err(error) if is_clients(&error) => {}
            Err(error) => {
                let pause = trouble.pause(what, &error);
                tokio::select! {
                    () = &mut stop => return,
                    () = sleep(pause) => {}
                }
            }
        }
    }
}

/// Whether a client went away before it was accepted: nothing is wrong here.
fn is_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// A client that has a place.
struct Place {
    task: AbortHandle,
    busy: Busy,
    since: Instant,
}

/// The places that are taken, in the order in which they were.
struct Held {
    places: usize,
    taken: VecDeque<Place>,
    tasks: JoinSet<()>,
}

impl Held {
    fn new(places: usize) -> Self {
        Self {
            places: places.max(1),
            taken: VecDeque::new(),
            tasks: JoinSet::new(),
        }
    }

    fn take(&mut self, client: impl Future<Output = ()> + Send + 'static, busy: Busy) {
        let task = self.tasks.spawn(client);
        self.taken.push_back(Place {
            task,
            busy,
            since: Instant::now(),
        });
    }

    /// Waits for a place. Nothing is lost when this is dropped half-way.
    async fn one_free(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.taken.retain(|place| !place.task.is_finished());
            if self.taken.len() < self.places {
                return;
            }
            // One that is busy now may be idle after a while.
            let is_idle = |place: &&Place| !place.busy.0.load(Ordering::Relaxed);
            let idle = self.taken.iter().find(is_idle);
            let due = idle.map_or_else(|| Instant::now() + GRACE, |place| place.since + GRACE);
            if let Some(place) = idle.filter(|_| due <= Instant::now()) {
                place.task.abort();
                // Its descriptor is closed once it is joined.
                self.tasks.join_next().await;
                continue;
            }
            tokio::select! {
                _ = self.tasks.join_next() => {}
                () = sleep_until(due) => {}
            }
        }
    }
}

/// What keeps us from accepting.
#[derive(Default)]
struct Trouble {
    pause: Duration,
    told: Option<Instant>,
}

impl Trouble {
    /// Tells of it, though not each time, and how long to wait.
    fn pause(&mut self, what: &str, error: &io::Error) -> Duration {
        let now = Instant::now();
        if self.told.is_none_or(|told| now - told >= TOLD_EVERY) {
            self.told = Some(now);
            let remedy = match error.raw_os_error() {
                Some(libc::EMFILE) => "; raise LimitNOFILE= of the unit, or `ulimit -n`",
                Some(libc::ENFILE) => "; raise the sysctl fs.file-max",
                _ => "",
            };
            warn!("{what}: no client can be accepted for now: {error}{remedy}");
        }
        self.pause = (self.pause * 2).clamp(BACK_OFF, BACK_OFF_MAX);
        self.pause
    }

    fn over(&mut self) {
        self.pause = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    /// Clients that come at once, as many as wanted, then errors, then none.
    struct Crowd {
        clients: AtomicUsize,
        errors: Mutex<Vec<i32>>,
    }

    impl Listener for Crowd {
        type Stream = usize;

        async fn accept(&self) -> io::Result<usize> {
            let left = self.clients.load(Ordering::Relaxed);
            if left > 0 {
                self.clients.store(left - 1, Ordering::Relaxed);
                return Ok(left);
            }
            let error = self.errors.lock().unwrap().pop();
            match error {
                Some(error) => Err(io::Error::from_raw_os_error(error)),
                None => std::future::pending().await,
            }
        }
    }

    #[derive(Default)]
    struct Count {
        now: AtomicUsize,
        most: AtomicUsize,
        ended: AtomicUsize,
    }

    struct Present(Arc<Count>);

    impl Present {
        fn new(count: &Arc<Count>) -> Self {
            let now = count.now.fetch_add(1, Ordering::Relaxed) + 1;
            count.most.fetch_max(now, Ordering::Relaxed);
            Self(Arc::clone(count))
        }
    }

    impl Drop for Present {
        fn drop(&mut self) {
            self.0.now.fetch_sub(1, Ordering::Relaxed);
            self.0.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn crowd(clients: usize, places: usize, time: Duration, busy_ones: usize) -> Arc<Count> {
        let count = Arc::new(Count::default());
        let crowd = Crowd {
            clients: clients.into(),
            errors: Mutex::new(vec![libc::EMFILE; 3]),
        };
        let counted = Arc::clone(&count);
        serve(crowd, "test", places, sleep(time), move |number, busy| {
            let present = Present::new(&counted);
            async move {
                let _present = present;
                let forever = std::future::pending::<()>();
                if number > clients - busy_ones {
                    busy.during(forever).await;
                } else {
                    forever.await;
                }
            }
        })
        .await;
        // Those that were sent away end when it is their turn.
        sleep(Duration::from_millis(1)).await;
        count
    }

    #[tokio::test(start_paused = true)]
    async fn idle_clients_make_room_one_after_the_other() {
        let count = crowd(1500, 64, Duration::from_secs(60), 0).await;
        assert_eq!(count.most.load(Ordering::Relaxed), 64);
        // And all go when the listener does.
        assert_eq!(count.ended.load(Ordering::Relaxed), 1500);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_sent_away_before_the_grace_is_over() {
        let count = crowd(10, 8, GRACE / 2, 0).await;
        assert_eq!(count.ended.load(Ordering::Relaxed), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_us_keeps_its_place() {
        // The first five wait for us, and the others share what is left.
        let count = crowd(20, 8, Duration::from_secs(60), 5).await;
        assert_eq!(count.most.load(Ordering::Relaxed), 8);
        let count = crowd(20, 5, Duration::from_secs(60), 5).await;
        assert_eq!(count.ended.load(Ordering::Relaxed), 5, "no sixth came in");
    }

    #[tokio::test(start_paused = true)]
    async fn lack_of_descriptors_is_waited_for() {
        let (tell, told) = oneshot::channel();
        let tell = Mutex::new(Some(tell));
        let crowd = Crowd {
            clients: 1.into(),
            errors: Mutex::new(vec![]),
        };
        let broken = Broken(crowd, AtomicUsize::new(5));
        let stop = async { told.await.unwrap() };
        serve(broken, "test", 4, stop, |_, _| {
            let tell = tell.lock().unwrap().take();
            async move {
                tell.unwrap().send(()).unwrap();
            }
        })
        .await;
    }

    /// Errors first.
    struct Broken(Crowd, AtomicUsize);

    impl Listener for Broken {
        type Stream = usize;

        async fn accept(&self) -> io::Result<usize> {
            if self.1.load(Ordering::Relaxed) > 0 {
                self.1.fetch_sub(1, Ordering::Relaxed);
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            self.0.accept().await
        }
    }

    #[test]
    fn back_off_grows_and_is_bounded() {
        let mut trouble = Trouble::default();
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let pauses: Vec<Duration> = (0..8).map(|_| trouble.pause("test", &error)).collect();
        assert_eq!(pauses[0], BACK_OFF);
        assert_eq!(pauses[1], BACK_OFF * 2);
        assert_eq!(pauses[7], BACK_OFF_MAX);
        trouble.over();
        assert_eq!(trouble.pause("test", &error), BACK_OFF);
    }

    #[test]
    fn places_are_a_small_part_of_the_descriptors() {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(places(64) <= 64);
        assert!(places(usize::MAX) as u64 <= (limit / PART).max(PLACES_MIN as u64));
    }
}
