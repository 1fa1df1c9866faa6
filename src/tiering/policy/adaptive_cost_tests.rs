use super::super::testing::{self, Scene, regions};
use super::*;

const ALL: Budget = Budget {
    bytes: Bytes(u64::MAX),
};

fn adaptive() -> Adaptive {
    Adaptive::new(AdaptiveSettings::default())
}

#[test]
fn what_gains_less_than_it_costs_is_not_moved() {
    let regions = regions(&[(3.0, 3)]);
    let mut policy = adaptive();
    let of = |load| Scene {
        load,
        ..Scene::of(&regions, [100; 4])
    };
    assert!(testing::decide(&mut policy, of(1e-7), ALL).is_empty());
    assert_eq!(policy.holds_back(), Some(PauseReason::NoGain));
    assert_eq!(testing::decide(&mut policy, of(1.0), ALL).len(), 1);
    assert_eq!(policy.holds_back(), None);
}

#[test]
fn what_is_hot_all_over_is_said_to_gain_nothing() {
    let mut policy = adaptive();
    let mut decide = |list: &[(f32, u32)], room| {
        let regions = regions(list);
        let moves = testing::decide(&mut policy, Scene::of(&regions, room), ALL);
        assert!(moves.is_empty(), "{moves:?}");
        policy.holds_back()
    };
    let room = [0, 0, 0, 10];
    // All that is hot lies where it is to lie; or nothing of it, beside others; or the way down is full.
    assert_eq!(decide(&[(3.0, 0), (0.0, 3)], room), None);
    assert_eq!(decide(&[(3.0, 3)], room), None);
    assert_eq!(decide(&[(0.0, 0), (3.0, 3)], [0; 4]), None);
    let all = [(3.0, 0), (3.0, 3), (3.0, 3)];
    assert_eq!(decide(&all, room), Some(PauseReason::NoGain));
}

/// The least load, of powers of 1.1, of a target for which something hot is moved.
fn least_load(policy: &Adaptive, spare: f64) -> f64 {
    let regions = regions(&[(3.0, 3)]);
    let pays = |load: f64| {
        let scene = Scene {
            load,
            spare,
            ..Scene::of(&regions, [100; 4])
        };
        !testing::decide(&mut policy.clone(), scene, ALL).is_empty()
    };
    (-200..0)
        .map(|power| 1.1_f64.powi(power))
        .find(|&load| pays(load))
        .expect("it never pays")
}

#[test]
fn what_an_idle_core_spends_counts_an_eighth() {
    let busy = least_load(&adaptive(), 0.0);
    for (spare, share) in [(0.5, 0.5625), (0.8, 0.3), (1.0, 0.125)] {
        let found = least_load(&adaptive(), spare) / busy;
        assert!(
            (found / share - 1.0).abs() < 0.11,
            "{spare} of it to spare: {found} of the load"
        );
    }
}

/// Bytes that are paid for in an epoch of ten seconds, of a target with such a load, where a page costs 2.5 us.
fn paid_for(load: f64, spare: f64) -> u64 {
    let nothing = regions(&[]);
    let scene = Scene {
        load,
        spare,
        ..Scene::of(&nothing, [100; 4])
    };
    let mut policy = adaptive();
    testing::decide(&mut policy, scene, ALL);
    policy.pays_for.0
}

#[test]
fn what_is_free_goes_first_and_the_rest_counts_in_full() {
    let limit = AdaptiveSettings::default().moving_limit;
    let page_seconds = |load, spare| paid_for(load, spare) as f64 / PAGE_BYTES as f64 * 2.5e-6;
    // Seconds of CPU time by load and what is spare: all of it free, and what is beyond.
    for (load, spare, seconds) in [
        (1.0, 0.0, 10.0 * limit),
        (1.0, 1.0, 80.0 * limit),
        (1.0, 0.5, 10.0 * limit + 5.0 * 0.875),
        (64.0, 1.0, 640.0 * limit + 10.0 * 0.875),
    ] {
        let found = page_seconds(load, spare);
        assert!(
            (found / seconds - 1.0).abs() < 0.01,
            "load {load}, spare {spare}: {found} s and not {seconds}"
        );
    }
}

#[test]
fn what_is_cheap_is_neither_made_cheaper_nor_dearer() {
    let price = |cost: f64, spare| {
        let policy = Adaptive {
            cost: cost * COST_AT_FIRST,
            spare,
            ..adaptive()
        };
        policy.price() / COST_AT_FIRST
    };
    for (cost, spare, is) in [
        (1.0, 1.0, 0.125),
        (0.2, 0.0, 0.2),
        (0.2, 1.0, COST_LEAST),
        (0.01, 0.0, 0.01),
        (0.01, 1.0, 0.01),
    ] {
        let found = price(cost, spare);
        assert!((found / is - 1.0).abs() < 1e-6, "{cost}, {spare}: {found}");
    }
}

#[test]
fn what_stands_out_is_hot_enough_and_what_is_like_the_others_is_not() {
    // Of 24 regions, the last one of which the windows saw little.
    let moved = |others: f32, last: f32| {
        let mut all = vec![(others, 0); 23];
        all.push((last, 3));
        let (regions, mut policy) = (regions(&all), adaptive());
        testing::decide(&mut policy, Scene::of(&regions, [100; 4]), ALL).len()
    };
    assert_eq!(moved(0.0, 0.5), 1);
    assert_eq!(moved(0.05, 0.5), 1);
    assert_eq!(moved(0.2, 0.5), 0, "a little hotter, as some always are");
    assert_eq!(moved(0.0, 0.25), 0, "next to nothing was seen of it");
}

#[test]
fn what_is_unknown_is_neither_hot_nor_what_others_stand_out_of() {
    let mut all = regions(&[(0.2, 0), (0.2, 0), (0.2, 0), (0.5, 3)]);
    let mut unknown = regions(&[(0.0, 0)]).remove(0);
    unknown.was_never_seen();
    all.extend(std::iter::repeat_n(unknown, 30));
    let moves = testing::decide(&mut adaptive(), Scene::of(&all, [100; 4]), ALL);
    assert!(moves.is_empty(), "{moves:?}");
    let mut one = regions(&[(3.0, 3)]);
    one[0].was_never_seen();
    let mut all_may = Adaptive::new(AdaptiveSettings {
        promotion_threshold: 0.0,
        ..AdaptiveSettings::default()
    });
    let moves = testing::decide(&mut all_may, Scene::of(&one, [100; 4]), ALL);
    assert!(moves.is_empty(), "{moves:?}");
}
