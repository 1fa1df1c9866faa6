use super::carry::fitting;
use super::*;
use crate::ports::Threads;
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Direction, Reason};
use crate::units::{Bandwidth, PageRange, VirtAddr};

fn asked(pid: i32, mib: u64, from: u32, to: u32, direction: Direction) -> Move {
    let start = VirtAddr(mib << 20);
    Move {
        target: TargetId(0),
        pid: Pid(pid),
        range: PageRange::new(start, VirtAddr((mib + 8) << 20)).unwrap(),
        from: NodeId(from),
        to: NodeId(to),
        limit: Bytes::from_mib(8),
        direction,
        reason: Reason::Hot,
    }
}

const LIMITS: MoveLimits = MoveLimits {
    time: Nanos::from_secs(1),
    rate: Bandwidth(u64::MAX),
    bytes: Bytes(u64::MAX),
    call_time: Nanos::from_millis(20),
    threads: Threads::Exactly(1),
};

#[test]
fn while_somebody_waits_all_is_deferred() {
    let moves = [asked(0x7fff_fff0, 0, 3, 0, Direction::Promotion)];
    let halt = Arc::new(AtomicBool::new(true));
    let mut mover = SysMover::new(&Root::host()).halted_by(Arc::clone(&halt));
    let deferred = |mover: &mut SysMover| {
        let outcome = mover.apply(&moves, LIMITS).unwrap();
        outcome.results[0].pages.deferred
    };
    assert_eq!(deferred(&mut mover), Bytes::from_mib(8).pages());
    halt.store(false, Ordering::Relaxed);
    assert_eq!(deferred(&mut mover), 0, "there is no such process");
}

#[test]
fn a_process_that_is_gone_is_no_error() {
    // Above every pid_max.
    let moves = [asked(0x7fff_fff0, 0, 3, 0, Direction::Promotion)];
    let outcome = SysMover::new(&Root::host()).apply(&moves, LIMITS).unwrap();
    assert_eq!(outcome.results[0].pages, PageCounts::default());
    assert_eq!(outcome.results[0].asked, moves[0]);
}

#[test]
fn a_batch_fits_into_the_bytes_that_are_left() {
    let item = |pages| Item {
        index: 0,
        pid: Pid(1),
        addr: VirtAddr(0),
        pages,
        shared: false,
    };
    let items = [item(1), item(16), item(512)];
    assert_eq!(fitting(&items, Bytes::ZERO), 0);
    assert_eq!(fitting(&items, Bytes::from_pages(17)), 2);
    assert_eq!(fitting(&items, Bytes::from_pages(528)), 2);
    assert_eq!(fitting(&items, Bytes(u64::MAX)), 3);
}
