//! Commands on their way to the loop.
//!
//! While one waits, the mover is to end its turn: a flag that it reads says so.
//! The flag changes together with the queue, under one lock: it is set exactly
//! while a command waits. Were it set beside the queue, a command could be taken
//! before its flag is set, and the next turn would move nothing for a command
//! that was obeyed long since.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A queue with a flag that tells whether it holds anything.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queue: Mutex<Queue<T>>,
    came: Condvar,
    halt: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: Vec<T>,
    is_closed: bool,
}

impl<T> Inbox<T> {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                waiting: Vec::new(),
                is_closed: false,
            }),
            came: Condvar::new(),
            halt: Arc::default(),
        }
    }

    /// Set while anything waits.
    pub(super) fn halt(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.halt)
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing is done half under this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one in; one that is closed drops it.
    pub(super) fn put(&self, item: T) {
        let mut queue = self.lock();
        if queue.is_closed {
            return;
        }
        queue.waiting.push(item);
        self.halt.store(true, Ordering::Relaxed);
        self.came.notify_one();
    }

    /// Takes all out.
    pub(super) fn take(&self) -> Vec<T> {
        self.taken(&mut self.lock())
    }

    fn taken(&self, queue: &mut Queue<T>) -> Vec<T> {
        self.halt.store(false, Ordering::Relaxed);
        std::mem::take(&mut queue.waiting)
    }

    /// Waits until something is there, at most for `time`, and takes it.
    pub(super) fn wait(&self, time: Duration) -> Vec<T> {
        let is_empty = |queue: &mut Queue<T>| queue.waiting.is_empty();
        let waited = (self.came).wait_timeout_while(self.lock(), time, is_empty);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.taken(&mut queue)
    }

    /// Nobody takes any more: what waits is dropped, and what comes.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let dropped = self.taken(&mut queue);
        drop(queue);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_was_taken_halts_no_turn() {
        let inbox = Arc::new(Inbox::new());
        let halt = inbox.halt();
        for round in 0..5_000 {
            let sender = Arc::clone(&inbox);
            let thread = std::thread::spawn(move || sender.put(round));
            let mut taken = Vec::new();
            while taken.is_empty() {
                taken = inbox.take();
            }
            // Taken, perhaps before `put` has returned; and then it has.
            thread.join().unwrap();
            assert_eq!(taken, [round]);
            assert!(!halt.load(Ordering::Relaxed), "round {round}");
        }
    }

    #[test]
    fn a_command_that_waits_halts_the_turn() {
        let inbox = Inbox::new();
        let halt = inbox.halt();
        assert_eq!(inbox.take(), [0; 0]);
        inbox.put(1);
        inbox.put(2);
        assert!(halt.load(Ordering::Relaxed));
        assert_eq!(inbox.wait(Duration::from_secs(60)), [1, 2]);
        assert!(!halt.load(Ordering::Relaxed));
        assert_eq!(inbox.wait(Duration::from_millis(1)), [0; 0]);
    }

    #[test]
    fn a_closed_one_drops_what_it_is_given() {
        let inbox = Inbox::new();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        inbox.put(sender.clone());
        inbox.close();
        inbox.put(sender);
        assert!(receiver.recv().is_err());
        assert!(!inbox.halt().load(Ordering::Relaxed));
    }
}
