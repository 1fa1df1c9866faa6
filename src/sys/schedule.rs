//! How the daemon's threads share CPUs with everybody else.
//!
//! **Problem.** The kernel gives each thread its fair part of a CPU in slices, and a thread that becomes ready often waits until
//! whoever runs has used its own. Who moves pages for a second
//! so keeps a program that was only waiting for an answer from its CPU for
//! milliseconds, again and again. A nice value does not help: it makes slices rarer, not shorter. With
//! `SCHED_IDLE` whoever touches a page that is on its way would wait until a thread that seldom
//! has its turn has moved it.
//!
//! **Approach.** Our part stays as large as it is, but who becomes ready need not wait for it: `SCHED_BATCH`, whose threads do not
//! interrupt others when they become ready, and a slice longer than others have (Linux 6.12): to a thread of a longer slice the kernel
//! prefers one of a shorter, if that has not had more than its part. No longer than is needed for that, since some kernels
//! let a slice be used up before a thread has its turn that was ready all the time.

use std::io;

/// In nanoseconds. Others have 0.7 ms on one CPU, and up to 2.8 on eight and more.
const SLICE: u64 = 20_000_000;

/// The kernel's `struct sched_attr`, as long as its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice, of threads without a deadline of their own.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = 48;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);
const BATCH: u32 = libc::SCHED_BATCH as u32;

impl Attributes {
    /// Those of the calling thread.
    fn read() -> io::Result<Self> {
        let mut read = Self::default();
        // SAFETY: the kernel fills SIZE bytes, which are `read`'s.
        let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut read, SIZE, 0_u32) };
        if done == 0 {
            Ok(read)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn set(self) -> io::Result<()> {
        // SAFETY: the kernel reads `size` bytes, which are `self`'s.
        let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self, 0_u32) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// The calling thread, and those that it starts later, let others go first. Its nice value stays. Kernels before Linux 6.12
/// take no notice of the slice. What somebody else has chosen for it (`chrt`, a unit's
/// `CPUSchedulingPolicy=`) stays as it is.
///
/// # Errors
/// When the kernel, or a filter of system calls, refuses.
pub fn let_others_first() -> io::Result<()> {
    let now = Attributes::read()?;
    if now.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    let wanted = Attributes {
        size: SIZE,
        policy: BATCH,
        runtime: SLICE,
        ..now
    };
    wanted.set()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_let_others_first_and_so_do_those_that_they_start() {
        let of_child = || {
            let now = Attributes::read()?;
            let before = Attributes {
                size: SIZE,
                nice: now.nice.max(5),
                ..now
            };
            before.set()?;
            let_others_first()?;
            let child = std::thread::spawn(Attributes::read);
            Ok::<_, io::Error>((before, child.join().expect("it does not panic")?))
        };
        // In a thread of its own: the others go on as they were.
        let (before, after) = std::thread::spawn(of_child)
            .join()
            .expect("it does not panic")
            .expect("the kernel allows it");
        assert_eq!(after.nice, before.nice);
        if before.policy != libc::SCHED_OTHER as u32 {
            assert_eq!(after.policy, before.policy, "chosen by somebody else");
            return;
        }
        assert_eq!(after.policy, BATCH);
        // Where the kernel tells of slices it has taken this one.
        assert!(before.runtime == 0 || after.runtime == SLICE, "{after:?}");
    }
}
