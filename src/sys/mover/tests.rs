use super::*;
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

#[test]
fn moves_are_grouped_and_demotions_come_first() {
    use Direction::{Demotion, Promotion};
    let moves = [
        asked(1, 0, 3, 0, Promotion),
        asked(1, 8, 2, 0, Promotion),
        asked(1, 16, 3, 0, Promotion),
        asked(1, 24, 0, 1, Demotion),
        // The first group has its 16 MiB.
        asked(1, 32, 3, 0, Promotion),
        asked(2, 40, 3, 0, Promotion),
    ];
    assert_eq!(
        groups(&moves, 0..moves.len()),
        [vec![3], vec![0, 2], vec![1], vec![4], vec![5]]
    );
}

#[test]
fn what_has_room_is_a_slice_and_so_is_each_demotion_with_its_promotions() {
    let moves = |directions: &str| -> Vec<Move> {
        let way = |c| match c {
            'P' => Direction::Promotion,
            _ => Direction::Demotion,
        };
        // 8 MiB each: more than a slice needs.
        let asked = |c| asked(1, 0, 3, 0, way(c));
        directions.chars().map(asked).collect()
    };
    let cut = |directions: &str| slices(&moves(directions)).collect::<Vec<_>>();
    assert_eq!(cut("PPDDPDP"), [0..2, 2..5, 5..7]);
    assert_eq!(cut("DDPP").len(), 1);
    assert_eq!(cut("PDD"), [0..1, 1..3]);
    assert!(cut("").is_empty());
    // Small ones go together.
    let mut small = moves("PDPDPDP");
    for m in &mut small {
        m.limit = Bytes::from_mib(1);
    }
    assert_eq!(slices(&small).collect::<Vec<_>>(), [0..1, 1..5, 5..7]);
}

const LIMITS: MoveLimits = MoveLimits {
    time: Nanos::from_secs(1),
    rate: Bandwidth(u64::MAX),
    bytes: Bytes(u64::MAX),
    call_time: Nanos::from_millis(20),
    threads: 1,
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
        addr: VirtAddr(0),
        pages,
    };
    let items = [item(1), item(16), item(512)];
    assert_eq!(fitting(&items, Bytes::ZERO), 0);
    assert_eq!(fitting(&items, Bytes::from_pages(17)), 2);
    assert_eq!(fitting(&items, Bytes::from_pages(528)), 2);
    assert_eq!(fitting(&items, Bytes(u64::MAX)), 3);
}
