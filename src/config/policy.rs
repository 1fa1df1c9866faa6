//! `[policy]`: from what was written to what is meant.

use super::checker::Checker;
use super::raw::{Entry, RawAdaptive, RawHmKeeper, RawMemoryTiering, RawPolicy};
use crate::tiering::settings::{
    AdaptiveSettings, HmKeeperSettings, MemoryTieringSettings, PolicyName, PolicySettings,
};
use crate::units::{Bytes, PAGE_BYTES};

pub(super) fn policy(check: &mut Checker, raw: &RawPolicy) -> PolicySettings {
    let name = check.one_of(raw.name.as_ref(), "policy.name", &PolicyName::CHOICES);
    PolicySettings {
        name: name.unwrap_or_default(),
        adaptive: adaptive(check, &raw.adaptive),
        hm_keeper: hm_keeper(check, &raw.hm_keeper),
        memory_tiering: memory_tiering(check, &raw.memory_tiering),
    }
}

fn memory_tiering(check: &mut Checker, raw: &RawMemoryTiering) -> MemoryTieringSettings {
    let bits = check.integer(
        raw.time_bits.as_ref(),
        "policy.memory-tiering.time_bits",
        12,
        31,
        "8 and those of CONFIG_NR_CPUS: 21 of 8192",
    );
    let key = "policy.memory-tiering.by_worker";
    let by_worker = check.boolean(raw.by_worker.as_ref(), key);
    let default = MemoryTieringSettings::default();
    MemoryTieringSettings {
        time_bits: bits
            .and_then(|n| u8::try_from(n).ok())
            .unwrap_or(default.time_bits),
        by_worker: by_worker.unwrap_or(default.by_worker),
    }
}

fn adaptive(check: &mut Checker, raw: &RawAdaptive) -> AdaptiveSettings {
    let default = AdaptiveSettings::default();
    let mut epochs = |entry: &Option<Entry>, key: &str, least, hint, default| {
        let epochs = check.integer(entry.as_ref(), key, least, 1000, hint);
        epochs
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(default)
    };
    let horizon = epochs(
        &raw.horizon,
        "policy.adaptive.horizon",
        1,
        "64 are ten minutes",
        default.horizon,
    );
    let rest_epochs = epochs(
        &raw.rest_epochs,
        "policy.adaptive.rest_epochs",
        0,
        "a few epochs do",
        default.rest_epochs,
    );
    let mut ratio = |entry: &Option<Entry>, key: &str, above_zero, most, default| {
        let value = check.ratio(entry.as_ref(), key, above_zero, most);
        value.unwrap_or(default)
    };
    let key = "policy.adaptive.ema";
    let ema = ratio(&raw.ema, key, true, 1.0, default.ema);
    let key = "policy.adaptive.memory_bound";
    let memory_bound = ratio(&raw.memory_bound, key, true, 1.0, default.memory_bound);
    let key = "policy.adaptive.payback";
    let payback = ratio(&raw.payback, key, false, 1000.0, default.payback);
    let key = "policy.adaptive.certainty";
    let certainty = ratio(&raw.certainty, key, false, 10.0, default.certainty);
    let key = "policy.adaptive.promotion_threshold";
    let entry = &raw.promotion_threshold;
    let promotion_threshold = ratio(entry, key, false, 1.0, default.promotion_threshold);
    let key = "policy.adaptive.moving_limit";
    let moving_limit = ratio(&raw.moving_limit, key, true, 1.0, default.moving_limit);
    let pace = ratio(&raw.pace, "policy.adaptive.pace", true, 1.0, default.pace);
    let key = "policy.adaptive.first_bytes";
    let first_bytes = check.bytes(raw.first_bytes.as_ref(), key, Bytes(PAGE_BYTES));
    AdaptiveSettings {
        ema,
        memory_bound,
        payback,
        certainty,
        promotion_threshold,
        horizon,
        rest_epochs,
        first_bytes: first_bytes.unwrap_or(default.first_bytes),
        moving_limit,
        pace,
    }
}

fn hm_keeper(check: &mut Checker, raw: &RawHmKeeper) -> HmKeeperSettings {
    let default = HmKeeperSettings::default();
    let buckets = check.integer(
        raw.buckets.as_ref(),
        "policy.hm-keeper.buckets",
        2,
        1024,
        "HM-Keeper uses 16",
    );
    let rest = check.integer(
        raw.rest_epochs.as_ref(),
        "policy.hm-keeper.rest_epochs",
        0,
        1000,
        "a few epochs do",
    );
    let prior = check.integer(
        raw.prior_samples.as_ref(),
        "policy.hm-keeper.prior_samples",
        0,
        255,
        "one or two do",
    );
    HmKeeperSettings {
        ema: check
            .ratio(raw.ema.as_ref(), "policy.hm-keeper.ema", true, 1.0)
            .unwrap_or(default.ema),
        promotion_bytes: check
            .bytes(
                raw.promotion_bytes.as_ref(),
                "policy.hm-keeper.promotion_bytes",
                Bytes(PAGE_BYTES),
            )
            .unwrap_or(default.promotion_bytes),
        buckets: buckets
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default.buckets),
        promotion_threshold: check
            .ratio(
                raw.promotion_threshold.as_ref(),
                "policy.hm-keeper.promotion_threshold",
                false,
                1.0,
            )
            .unwrap_or(default.promotion_threshold),
        prior_samples: prior
            .and_then(|n| u8::try_from(n).ok())
            .unwrap_or(default.prior_samples),
        eviction_margin: check
            .ratio(
                raw.eviction_margin.as_ref(),
                "policy.hm-keeper.eviction_margin",
                false,
                1.0,
            )
            .unwrap_or(default.eviction_margin),
        rest_epochs: rest
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(default.rest_epochs),
    }
}
