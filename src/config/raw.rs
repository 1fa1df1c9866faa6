//! The configuration as it is written: names and places, values unread.
//!
//! serde stops at the first fault, and an operator wants to see them all. So
//! each value is read as any TOML value with its place ([`Entry`]), and before
//! serde gets the document, keys that no struct here has are taken out and
//! reported. The structs are the only list of keys: [`schema`] asks serde for
//! their fields.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{FAULTS_MAX, Fault};

/// A value, not read yet, with its place.
pub type Entry = Spanned<toml::Value>;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawConfig {
    pub daemon: RawDaemon,
    pub profiling: RawProfiling,
    pub policy: RawPolicy,
    pub migration: RawMigration,
    pub pageout: RawPageOut,
    pub metrics: RawMetrics,
    pub control: RawControl,
    pub tiers: Vec<Spanned<RawTier>>,
    pub targets: Vec<Spanned<RawTarget>>,
}

/// `[daemon]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawDaemon {
    pub log: Option<Entry>,
    pub seed: Option<Entry>,
    pub state_dir: Option<Entry>,
}

/// `[profiling]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawProfiling {
    pub interval: Option<Entry>,
    pub scans: Option<Entry>,
    pub overhead_limit: Option<Entry>,
    pub sampler: Option<Entry>,
    pub initial_region: Option<Entry>,
    pub minimum_region: Option<Entry>,
    pub merge_threshold: Option<Entry>,
    pub split_threshold: Option<Entry>,
    pub split: Option<Entry>,
    pub samples: Option<Entry>,
    pub looks: Option<Entry>,
    pub windows: Option<Entry>,
    pub writes: Option<Entry>,
    pub latency: Option<Entry>,
    pub overhead_control: Option<Entry>,
}

/// `[policy]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawPolicy {
    pub name: Option<Entry>,
    pub adaptive: RawAdaptive,
    #[serde(rename = "hm-keeper")]
    pub hm_keeper: RawHmKeeper,
    #[serde(rename = "memory-tiering")]
    pub memory_tiering: RawMemoryTiering,
}

/// `[policy.adaptive]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawAdaptive {
    pub ema: Option<Entry>,
    pub memory_bound: Option<Entry>,
    pub payback: Option<Entry>,
    pub certainty: Option<Entry>,
    pub promotion_threshold: Option<Entry>,
    pub horizon: Option<Entry>,
    pub rest_epochs: Option<Entry>,
    pub first_bytes: Option<Entry>,
    pub moving_limit: Option<Entry>,
    pub pace: Option<Entry>,
}

/// `[policy.hm-keeper]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawHmKeeper {
    pub ema: Option<Entry>,
    pub promotion_bytes: Option<Entry>,
    pub buckets: Option<Entry>,
    pub promotion_threshold: Option<Entry>,
    pub prior_samples: Option<Entry>,
    pub eviction_margin: Option<Entry>,
    pub rest_epochs: Option<Entry>,
}

/// `[policy.memory-tiering]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawMemoryTiering {
    pub time_bits: Option<Entry>,
    pub by_worker: Option<Entry>,
}

/// `[migration]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawMigration {
    pub enabled: Option<Entry>,
    pub bytes_per_second: Option<Entry>,
    pub threads: Option<Entry>,
    pub call_time: Option<Entry>,
    pub headroom: Option<Entry>,
    pub page_cache: Option<Entry>,
    pub share: Option<Entry>,
}

/// `[pageout]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawPageOut {
    pub enabled: Option<Entry>,
    pub idle: Option<Entry>,
    pub bytes_per_second: Option<Entry>,
    pub swap: Option<Entry>,
}

/// `[metrics]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawMetrics {
    pub listen: Option<Entry>,
}

/// `[control]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawControl {
    pub socket: Option<Entry>,
}

/// One of `[[tiers]]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawTier {
    pub name: Option<Entry>,
    pub nodes: Option<Entry>,
    pub capacity: Option<Entry>,
    pub latency: Option<Entry>,
}

/// One of `[[targets]]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the keys are documented in config/hmkeeper.toml"
)]
pub struct RawTarget {
    pub name: Option<Entry>,
    pub pid: Option<Entry>,
    pub comm: Option<Entry>,
    pub cmdline: Option<Entry>,
    pub cgroup: Option<Entry>,
    pub unit: Option<Entry>,
    pub kind: Option<Entry>,
    pub follow_children: Option<Entry>,
    pub include: Option<Entry>,
    pub exclude: Option<Entry>,
    pub move_bound: Option<Entry>,
    pub move_locked: Option<Entry>,
    pub move_shared: Option<Entry>,
    pub weight: Option<Entry>,
    pub floor: Option<Entry>,
}

/// What may stand at a key.
enum Shape {
    /// A value; which one is checked later.
    Value,
    /// `[section]`
    Table(Vec<(&'static str, Shape)>),
    /// `[[section]]`
    Tables(Vec<(&'static str, Shape)>),
}

fn schema() -> Vec<(&'static str, Shape)> {
    fields::<RawConfig>(vec![
        ("daemon", Shape::Table(fields::<RawDaemon>(vec![]))),
        ("profiling", Shape::Table(fields::<RawProfiling>(vec![]))),
        (
            "policy",
            Shape::Table(fields::<RawPolicy>(vec![
                ("adaptive", Shape::Table(fields::<RawAdaptive>(vec![]))),
                ("hm-keeper", Shape::Table(fields::<RawHmKeeper>(vec![]))),
                (
                    "memory-tiering",
                    Shape::Table(fields::<RawMemoryTiering>(vec![])),
                ),
            ])),
        ),
        ("migration", Shape::Table(fields::<RawMigration>(vec![]))),
        ("pageout", Shape::Table(fields::<RawPageOut>(vec![]))),
        ("metrics", Shape::Table(fields::<RawMetrics>(vec![]))),
        ("control", Shape::Table(fields::<RawControl>(vec![]))),
        ("tiers", Shape::Tables(fields::<RawTier>(vec![]))),
        ("targets", Shape::Tables(fields::<RawTarget>(vec![]))),
    ])
}

/// Every key's path, sections of a list written `targets[]`: for checking
/// that each is documented.
pub fn keys() -> Vec<String> {
    fn walk(path: &str, shape: &[(&str, Shape)], out: &mut Vec<String>) {
        for (name, shape) in shape {
            let path = join(path, name);
            match shape {
                Shape::Value => out.push(path),
                Shape::Table(inner) => walk(&path, inner, out),
                Shape::Tables(inner) => walk(&format!("{path}[]"), inner, out),
            }
        }
    }
    let mut out = Vec::new();
    walk("", &schema(), &mut out);
    out
}

/// The document as far as it can be read, and every fault of its form.
pub fn read(source: &str) -> (RawConfig, Vec<Fault>) {
    let lines = Lines::of(source);
    let (mut document, errors) = DeTable::parse_recoverable(source);
    let mut faults: Vec<Fault> = errors
        .iter()
        .enumerate()
        .map(|(at, error)| {
            let span = error.span().unwrap_or(0..0);
            // Nobody is told the others.
            let remedy = if at < FAULTS_MAX {
                syntax_remedy(source, &lines, span.start)
            } else {
                String::new()
            };
            Fault::new(span, "", error.message().to_owned(), remedy)
        })
        .collect();
    let mut found = Vec::new();
    prune("", document.get_mut(), &schema(), &mut found);
    let raw = RawConfig::deserialize(toml::Deserializer::from(document)).unwrap_or_else(|error| {
        let span = error.span().unwrap_or(0..0);
        found.push(Fault::new(span, "", error.message().to_owned(), ""));
        RawConfig::default()
    });
    // What follows from a line that cannot be read is not worth reporting.
    let unreadable: HashSet<usize> = faults.iter().map(|f| lines.at(f.span.start)).collect();
    found.retain(|f| !unreadable.contains(&lines.at(f.span.start)));
    faults.extend(found);
    (raw, faults)
}

/// Where lines end.
struct Lines(Vec<usize>);

impl Lines {
    fn of(source: &str) -> Self {
        Self(source.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The number of the line, from 0, that this byte is of.
    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|end| *end < byte)
    }
}

/// `interval = 10s` is the commonest slip: say so rather than what the
/// grammar expected.
fn syntax_remedy(source: &str, lines: &Lines, at: usize) -> String {
    let line = source.lines().nth(lines.at(at)).unwrap_or("");
    if let Some((_, value)) = line.split_once('=') {
        let value = value.split('#').next().unwrap_or("").trim();
        let number = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if number.len() < value.len() && number.parse::<f64>().is_ok() {
            return format!("sizes and times are strings: write \"{value}\"");
        }
    }
    "see config/hmkeeper.toml for an example of every key".into()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Takes out, and reports, what the schema does not have.
fn prune(path: &str, table: &mut DeTable<'_>, shape: &[(&str, Shape)], faults: &mut Vec<Fault>) {
    let mut wrong = Vec::new();
    let mut unknown = Vec::new();
    for (key, value) in table.iter_mut() {
        let name: &str = key.get_ref();
        let path = join(path, name);
        let Some((_, shape)) = shape.iter().find(|(known, _)| *known == name) else {
            unknown.push((key.span(), name.to_owned()));
            wrong.push(name.to_owned());
            continue;
        };
        let span = value.span();
        match (shape, value.get_mut()) {
            (Shape::Value, _) => {}
            (Shape::Table(inner), DeValue::Table(table)) => prune(&path, table, inner, faults),
            (Shape::Tables(inner), DeValue::Array(items)) => {
                for (i, item) in items.iter_mut().enumerate() {
                    let path = format!("{path}[{i}]");
                    let span = item.span();
                    if let DeValue::Table(table) = item.get_mut() {
                        prune(&path, table, inner, faults);
                    } else {
                        faults.push(Fault::new(span, &path, "is not a section", ""));
                        wrong.push(name.to_owned());
                    }
                }
            }
            (Shape::Table(_), _) => {
                let remedy = format!("write [{path}] on a line of its own, its keys below");
                faults.push(Fault::new(span, &path, "is a section, not a value", remedy));
                wrong.push(name.to_owned());
            }
            (Shape::Tables(_), _) => {
                let remedy = format!("write [[{path}]] with two brackets, once for each");
                faults.push(Fault::new(span, &path, "is a list of sections", remedy));
                wrong.push(name.to_owned());
            }
        }
    }
    unknown.sort_unstable_by_key(|(span, _)| span.start);
    for (at, (span, name)) in unknown.into_iter().enumerate() {
        // Nobody is told the others.
        let remedy = if at < FAULTS_MAX {
            known_key(&name, shape)
        } else {
            String::new()
        };
        faults.push(Fault::new(span, join(path, &name), "unknown key", remedy));
    }
    for name in wrong {
        table.remove(name.as_str());
    }
}

/// What was meant by an unknown key.
fn known_key(name: &str, shape: &[(&str, Shape)]) -> String {
    // No key is as long; comparing takes time by the square of it.
    const LONGEST: usize = 64;
    // Below this similarity (Jaro-Winkler) a guess confuses more than it helps.
    const LIKELY: f64 = 0.8;
    let nearest = shape
        .iter()
        .filter(|_| name.len() <= LONGEST)
        .map(|(known, _)| (strsim::jaro_winkler(name, known), *known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness >= LIKELY);
    if let Some((_, known)) = nearest {
        format!("did you mean \"{known}\"?")
    } else {
        let known: Vec<&str> = shape.iter().map(|(known, _)| *known).collect();
        format!("known here: {}", known.join(", "))
    }
}

/// The fields of `T` in its order, values unless `nested` says otherwise.
fn fields<T: DeserializeOwned>(
    mut nested: Vec<(&'static str, Shape)>,
) -> Vec<(&'static str, Shape)> {
    let mut names: &'static [&'static str] = &[];
    // Always an error: all that is wanted is what it was asked for.
    let _ = T::deserialize(FieldNames(&mut names));
    let fields = names
        .iter()
        .map(|name| {
            let at = nested.iter().position(|(n, _)| n == name);
            at.map_or((*name, Shape::Value), |at| nested.swap_remove(at))
        })
        .collect();
    debug_assert!(nested.is_empty(), "no such section");
    fields
}

/// Notes which fields a struct asks for, and gives it nothing.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("only the names were wanted"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_the_structs() {
        let keys = keys();
        for key in [
            "profiling.interval",
            "policy.name",
            "policy.hm-keeper.ema",
            "targets[].follow_children",
            "tiers[].nodes",
        ] {
            assert!(keys.iter().any(|k| k == key), "{key} in {keys:?}");
        }
        assert!(!keys.iter().any(|k| k == "profiling"));
    }

    #[test]
    fn an_unreadable_line_does_not_hide_the_others() {
        let (raw, faults) = read("[profiling]\ninterval = 10s\nscan = 3\nscans = 4\n");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].remedy.contains("write \"10s\""), "{faults:?}");
        assert_eq!(faults[1].key, "profiling.scan");
        assert_eq!(faults[1].remedy, "did you mean \"scans\"?");
        let scans = raw.profiling.scans.unwrap();
        assert_eq!(scans.get_ref().as_integer(), Some(4));
    }

    #[test]
    fn sections_of_the_wrong_kind_are_named() {
        let (_, faults) = read("profiling = 3\n[targets]\npid = 1\n");
        let text: Vec<String> = faults.iter().map(|f| f.remedy.clone()).collect();
        assert!(text[0].contains("[profiling]"), "{text:?}");
        assert!(text[1].contains("[[targets]]"), "{text:?}");
    }
}
