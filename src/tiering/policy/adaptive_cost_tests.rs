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
    for (spare, share) in [(0.5, 0.5), (0.75, 0.25), (1.0, 0.125), (64.0, 0.125)] {
        let found = least_load(&adaptive(), spare) / busy;
        assert!(
            (found / share - 1.0).abs() < 0.11,
            "{spare} CPUs to spare: {found} of the load"
        );
    }
}

#[test]
fn a_core_that_idles_for_a_moment_counts_for_little() {
    let nothing = regions(&[]);
    let mut policy = adaptive();
    let mut see = |spare| {
        let scene = Scene {
            spare,
            ..Scene::of(&nothing, [100; 4])
        };
        testing::decide(&mut policy, scene, ALL);
        policy.displaced()
    };
    assert!(see(0.0) > 0.99);
    assert!(see(1.0) > 0.6);
    let later = [(); 20].map(|()| see(1.0));
    assert!(later[19] < 0.13, "{later:?}");
}
