//! The plan in pieces, in the order in which they are carried out.

use std::collections::HashMap;
use std::ops::Range;

use crate::tiering::plan::{Direction, Move};
use crate::units::Bytes;

/// Bytes of moves from which on a slice of the plan ends before its next demotion.
/// Each has calls of its own, so that they should not be small.
const SLICE_BYTES: Bytes = Bytes::from_mib(16);
/// Bytes of moves that are looked up and carried out together.
const GROUP_BYTES: Bytes = Bytes::from_mib(16);

/// What is carried out together: a group, or promotions with the demotions that follow
/// them, both directions at once if there are threads for it. The room for the
/// promotions was made by slices before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// One or two, as [`groups`] makes them.
    pub(super) groups: Vec<Vec<usize>>,
    /// Whether a slice begins with it.
    pub(super) begins_slice: bool,
}

/// The whole plan.
pub(super) fn stretches(moves: &[Move]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for slice in slices(moves) {
        for (at, group) in groups(moves, slice).into_iter().enumerate() {
            let direction = |group: &[usize]| moves[group[0]].direction;
            match all.last_mut() {
                Some(last)
                    if last.groups.len() == 1
                        && direction(&last.groups[0]) == Direction::Promotion
                        && direction(&group) == Direction::Demotion =>
                {
                    last.groups.push(group);
                    last.begins_slice |= at == 0;
                }
                _ => all.push(Stretch {
                    groups: vec![group],
                    begins_slice: at == 0,
                }),
            }
        }
    }
    all
}

/// The plan in pieces: first the promotions for which there is room already, then
/// some [`SLICE_BYTES`] each, with all demotions that its promotions need, since a
/// demotion stands before its promotion.
fn slices(moves: &[Move]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = &moves[start..];
        let mut bytes = Bytes::ZERO;
        let has_room = left
            .first()
            .is_some_and(|m| m.direction == Direction::Promotion);
        let ends = |pair: &[Move]| {
            bytes += pair[0].limit;
            let turns = pair[0].direction == Direction::Promotion
                && pair[1].direction == Direction::Demotion;
            turns && (has_room || bytes >= SLICE_BYTES)
        };
        let length = left
            .windows(2)
            .position(ends)
            .map_or(left.len(), |at| at + 1);
        let slice = start..start + length;
        start = slice.end;
        (!slice.is_empty()).then_some(slice)
    })
}

/// Indices of moves to carry out together: one direction, target, source and
/// destination; in the order of the first of each, at most [`GROUP_BYTES`].
fn groups(moves: &[Move], slice: Range<usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Bytes, Vec<usize>)> = Vec::new();
    // Groups that may still grow, by key.
    let mut open: HashMap<_, usize> = HashMap::new();
    for (index, m) in slice.clone().zip(&moves[slice]) {
        let key = (m.direction, m.target, m.from, m.to);
        match open.get(&key).map(|&at| &mut groups[at]) {
            Some((bytes, group)) if *bytes < GROUP_BYTES => {
                *bytes += m.limit;
                group.push(index);
            }
            _ => {
                open.insert(key, groups.len());
                groups.push((m.limit, vec![index]));
            }
        }
    }
    // Demotions first: they make the room.
    groups.sort_by_key(|(_, group)| moves[group[0]].direction);
    groups.into_iter().map(|(_, group)| group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::TargetId;
    use crate::tiering::plan::Reason;
    use crate::units::{NodeId, PageRange, Pid, VirtAddr};

    fn asked(pid: i32, mib: u64, from: u32, to: u32, direction: Direction) -> Move {
        let start = VirtAddr(mib << 20);
        Move {
            target: TargetId(pid.cast_unsigned()),
            pid: Pid(pid),
            range: PageRange::new(start, VirtAddr((mib + 8) << 20)).unwrap(),
            from: NodeId(from),
            to: NodeId(to),
            limit: Bytes::from_mib(8),
            direction,
            reason: Reason::Hot,
        }
    }

    /// As `D` and `P` say, each as much as a slice needs.
    fn moves(directions: &str) -> Vec<Move> {
        let way = |c| match c {
            'P' => Direction::Promotion,
            _ => Direction::Demotion,
        };
        let asked = |c| Move {
            limit: SLICE_BYTES,
            ..asked(1, 0, 3, 0, way(c))
        };
        directions.chars().map(asked).collect()
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
        let cut = |directions: &str| slices(&moves(directions)).collect::<Vec<_>>();
        assert_eq!(cut("PPDDPDP"), [0..2, 2..5, 5..7]);
        assert_eq!(cut("DDPP").len(), 1);
        assert_eq!(cut("PDD"), [0..1, 1..3]);
        assert!(cut("").is_empty());
        // Small ones go together.
        let mut small = moves("PDPDPDP");
        for m in &mut small {
            m.limit = Bytes(SLICE_BYTES.0 / 4);
        }
        assert_eq!(slices(&small).collect::<Vec<_>>(), [0..1, 1..5, 5..7]);
    }

    #[test]
    fn promotions_go_beside_the_demotions_of_the_next_slice() {
        let asked = moves("DPDPDDP");
        let told = |stretch: &Stretch| (stretch.groups.clone(), stretch.begins_slice);
        let all: Vec<_> = stretches(&asked).iter().map(told).collect();
        assert_eq!(
            all,
            [
                (vec![vec![0]], true),
                (vec![vec![1], vec![2]], true),
                (vec![vec![3], vec![4]], true),
                (vec![vec![5]], false),
                (vec![vec![6]], false),
            ]
        );
        // Room that is there already is filled first.
        let asked = moves("PDP");
        assert_eq!(stretches(&asked)[0].groups, [vec![0], vec![1]]);
    }
}
