//! Who may use whom: the table of docs/architecture.md, held against the
//! sources. A name that a module may not use fails here, wherever it hides.

use std::fs;
use std::path::{Path, PathBuf};

/// A module, the modules of this crate that it may name, and other names that
/// it must not.
struct Rule {
    module: &'static str,
    may: &'static [&'static str],
    never: &'static [&'static str],
}

/// What decisions must not touch: the world.
const IMPURE: &[&str] = &[
    "tokio",
    "libc",
    "nix",
    "rustix",
    "procfs",
    "prometheus",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "Instant",
    "SystemTime",
];

const ALL: &[&str] = &["*"];

const RULES: &[Rule] = &[
    Rule {
        module: "units",
        may: &[],
        never: IMPURE,
    },
    Rule {
        module: "tiering",
        may: &["units", "tiering"],
        never: IMPURE,
    },
    Rule {
        module: "dnn",
        may: &["units", "tiering", "dnn"],
        never: IMPURE,
    },
    Rule {
        module: "ports",
        may: &["units", "tiering"],
        never: &["tokio"],
    },
    Rule {
        module: "epoch",
        may: &["units", "tiering", "ports", "epoch"],
        never: &["tokio"],
    },
    Rule {
        module: "sys",
        may: &["units", "tiering", "ports", "sys"],
        never: &["tiering::policy", "tiering::engine", "tokio"],
    },
    Rule {
        module: "sim",
        may: &["units", "tiering", "ports", "epoch", "sim"],
        never: &["tokio"],
    },
    Rule {
        module: "record",
        may: &["units", "tiering", "ports", "files", "record"],
        never: &["tokio", "procfs", "libc"],
    },
    // The specification of a target and of the loop are parameter structs too.
    Rule {
        module: "config",
        may: &["units", "tiering", "ports", "epoch", "files", "config"],
        never: &["tiering::engine", "tokio", "procfs", "libc"],
    },
    Rule {
        module: "telemetry",
        may: &["units", "tiering", "ports", "clients", "telemetry"],
        never: &["tiering::engine", "tiering::policy", "procfs", "libc"],
    },
    Rule {
        module: "files",
        may: &[],
        never: &["tokio", "procfs", "libc", "nix"],
    },
    Rule {
        module: "clients",
        may: &[],
        never: &["procfs", "nix"],
    },
    Rule {
        module: "control",
        may: &["units", "clients", "telemetry", "control"],
        never: &["procfs", "libc"],
    },
    Rule {
        module: "daemon",
        may: ALL,
        never: &[],
    },
    Rule {
        module: "cli",
        may: ALL,
        never: &[],
    },
    Rule {
        module: "demo",
        may: ALL,
        never: &[],
    },
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The names in a source that belongs to the module `of` (as `tiering::region`),
/// without comments and what only tests see, braced imports written out: `use
/// crate::{a, b::{c, d}}` names crate::a, crate::b::c and crate::b::d. `self::`
/// and `super::` are written out too, from the module that they stand in.
fn names(source: &str, of: &str) -> Vec<String> {
    let code = without_tests(&without_text(source));
    let mut found = Vec::new();
    let mut rest = code.as_str();
    let mut depth = 0_usize;
    // Modules within the file, with the depth of their braces.
    let mut inside: Vec<(String, usize)> = Vec::new();
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_alphabetic() || c == '_' {
            let mut here: Vec<String> = of.split("::").map(str::to_owned).collect();
            here.extend(inside.iter().map(|(name, _)| name.clone()));
            let mut paths = Vec::new();
            let taken = path(rest, "", &mut paths);
            rest = &rest[taken..];
            if let Some(module) = opened(&found, &paths, rest) {
                inside.push((module, depth));
            }
            found.extend(paths.iter().map(|name| resolved(name, &here)));
            continue;
        }
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                inside.retain(|(_, at)| *at < depth);
            }
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    found
}

/// The module that `mod name {` opens, `mod` found last and `name` just now.
fn opened(found: &[String], paths: &[String], rest: &str) -> Option<String> {
    let [name] = paths else { return None };
    let is_module = found.last().is_some_and(|last| last == "mod");
    (is_module && rest.trim_start().starts_with('{')).then(|| name.clone())
}

/// `super::x` in `tiering::region` is `crate::tiering::x`.
fn resolved(name: &str, here: &[String]) -> String {
    let mut parts: Vec<&str> = name.split("::").collect();
    if !matches!(parts[0], "self" | "super") || parts.len() < 2 {
        return name.to_owned();
    }
    let mut here: Vec<&str> = here.iter().map(String::as_str).collect();
    while matches!(parts.first(), Some(&("self" | "super"))) {
        if parts.remove(0) == "super" {
            here.pop();
        }
    }
    let whole: Vec<&str> = ["crate"].into_iter().chain(here).chain(parts).collect();
    whole.join("::")
}

/// Without what `#[cfg(test)]` stands before, and nothing else: an item ends at
/// its semicolon or at its closing brace.
fn without_tests(code: &str) -> String {
    const TEST: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(TEST) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + TEST.len()..];
        let mut depth = 0_usize;
        let end = rest.char_indices().find(|(_, c)| match c {
            '{' => {
                depth += 1;
                false
            }
            '}' => {
                depth = depth.saturating_sub(1);
                depth == 0
            }
            ';' => depth == 0,
            _ => false,
        });
        rest = end.map_or("", |(at, _)| &rest[at + 1..]);
    }
    kept.push_str(rest);
    kept
}

/// Without comments and without what is in quotes, a character's too.
fn without_text(source: &str) -> String {
    let mut code = String::new();
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                chars.by_ref().find(|c| *c == '\n');
                code.push('\n');
            }
            'r' if matches!(chars.peek(), Some('"' | '#')) && !in_word(&code) => {
                raw_text(&mut chars);
                code.push(' ');
            }
            '"' => {
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => drop(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                code.push(' ');
            }
            '\'' => {
                let mut ahead = chars.clone();
                match (ahead.next(), ahead.next()) {
                    (Some('\\'), _) => {
                        // What is escaped may be a quote itself.
                        chars.nth(1);
                        chars.by_ref().find(|c| *c == '\'');
                        code.push(' ');
                    }
                    (Some(_), Some('\'')) => {
                        chars.nth(1);
                        code.push(' ');
                    }
                    // A lifetime.
                    _ => code.push('\''),
                }
            }
            c => code.push(c),
        }
    }
    code
}

fn in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads over `"..."` or `#"..."#`, whose `r` was read.
fn raw_text(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let mut hashes = 0;
    while chars.next_if_eq(&'#').is_some() {
        hashes += 1;
    }
    if chars.next_if_eq(&'"').is_none() {
        return;
    }
    while chars.by_ref().any(|c| c == '"') {
        if (0..hashes).all(|_| chars.next_if_eq(&'#').is_some()) {
            return;
        }
    }
}

/// Reads one path from the beginning of `text`, adding each name that it
/// stands for to `found`; returns how much was read.
fn path(text: &str, prefix: &str, found: &mut Vec<String>) -> usize {
    let mut name = prefix.to_owned();
    let mut at = 0;
    loop {
        let word = text[at..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(text.len(), |end| at + end);
        name.push_str(&text[at..word]);
        at = word;
        if !text[at..].starts_with("::") {
            break;
        }
        at += 2;
        name.push_str("::");
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += text[at..]
                    .find(|c: char| !c.is_whitespace() && c != ',')
                    .unwrap_or(text.len() - at);
                if at >= text.len() || text[at..].starts_with('}') {
                    return (at + 1).min(text.len());
                }
                let taken = path(&text[at..], &name, found);
                // Globs and the like: nothing to read, but nothing to wait for.
                at += taken.max(1);
            }
        }
    }
    found.push(name);
    at.max(1)
}

/// Whether `name` names `wanted`: as a whole path segment or several.
fn uses(name: &str, wanted: &str) -> bool {
    format!("::{name}::").contains(&format!("::{wanted}::"))
}

fn violations(rule: &Rule, source: &str, of: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in names(source, of) {
        for never in rule.never {
            // A crate is named at the beginning, or after `use ::`.
            if uses(&name, never) {
                wrong.push(format!("{name} (never {never})"));
            }
        }
        if let Some(inside) = name.strip_prefix("crate::")
            && rule.may != ALL
        {
            let module = inside.split("::").next().unwrap_or_default();
            let known = RULES.iter().any(|r| r.module == module);
            if known && module != rule.module && !rule.may.contains(&module) {
                wrong.push(format!("{name} (may use {:?})", rule.may));
            }
        }
    }
    wrong
}

/// The path of the module that a source file is: `tiering::region`.
fn path_of(path: &Path, src: &Path) -> String {
    let relative = path.strip_prefix(src).unwrap().with_extension("");
    let parts = relative.iter().map(|part| part.to_string_lossy());
    let parts: Vec<_> = parts.filter(|part| part != "mod").collect();
    parts.join("::")
}

/// The module at the top that a source file belongs to.
fn module_of(path: &Path, src: &Path) -> String {
    let relative = path.strip_prefix(src).unwrap();
    let first = relative.components().next().unwrap().as_os_str();
    first.to_string_lossy().trim_end_matches(".rs").to_owned()
}

#[test]
fn modules_keep_to_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 20, "{files:?}");
    let mut wrong = Vec::new();
    for file in &files {
        let module = module_of(file, &src);
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let Some(rule) = RULES.iter().find(|r| r.module == module) else {
            wrong.push(format!("{}: module without a rule", file.display()));
            continue;
        };
        let source = fs::read_to_string(file).unwrap();
        let found = violations(rule, &source, &path_of(file, &src));
        wrong.extend(found.iter().map(|w| format!("{}: {w}", file.display())));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_stays_in_sys() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        if module_of(&file, &src) == "sys" {
            continue;
        }
        let source = fs::read_to_string(&file).unwrap();
        assert!(
            !names(&source, &path_of(&file, &src))
                .iter()
                .any(|n| n == "unsafe"),
            "{}",
            file.display()
        );
        assert!(!source.contains("allow(unsafe_code)"), "{}", file.display());
    }
}

#[test]
fn forbidden_names_are_found_wherever_they_hide() {
    let rule = |module: &str| RULES.iter().find(|r| r.module == module).unwrap();
    let caught_in = |of: &str, source: &str| {
        let module = of.split("::").next().unwrap_or_default();
        !violations(rule(module), source, of).is_empty()
    };
    let caught = |module: &str, source: &str| caught_in(module, source);
    assert!(caught("tiering", "use std::time::{Duration, Instant};"));
    assert!(caught("tiering", "let t = std::time::Instant::now();"));
    assert!(caught("tiering", "use std::{fmt, fs};"));
    assert!(caught("tiering", "use crate::ports::Clock;"));
    assert!(caught("sys", "use crate::tiering::{engine::Engine, plan};"));
    assert!(caught(
        "telemetry",
        "fn f() { crate::sys::root::Root::host(); }"
    ));
    assert!(caught(
        "epoch",
        "use crate::{units::Bytes, sys::{clock, root}};"
    ));
    assert!(!caught(
        "tiering",
        "use std::time::Duration; // not Instant"
    ));
    assert!(!caught("tiering", "use crate::units::{Bytes, Nanos};"));
    assert!(!caught("tiering", "struct InstantNoodles;"));
    assert!(!caught("tiering", r#"let s = "a \" libc"; // libc"#));
    assert!(caught("tiering", r#"let s = "a"; libc::getpid();"#));
    assert!(!caught(
        "tiering",
        "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }"
    ));
    // Only what tests see is left out, wherever it stands.
    let tests = "#[cfg(test)]\nmod tests { use std::fs; fn f() { '}'; } }\n";
    assert!(!caught("tiering", &format!("{tests}fn f() {{}}")));
    assert!(caught("tiering", &format!("{tests}use std::fs;")));
    let outside = "#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod tests;\n";
    assert!(caught("tiering", &format!("{outside}use libc::c_int;")));
    assert!(!caught("tiering", "#[cfg(test)]\nuse std::fs;\nstruct A;"));
    assert!(!caught("tiering", r##"let s = r#"a " libc"#;"##));
    assert!(!caught("tiering", "let c = '\\''; let d = '\"'; // libc"));
    assert!(caught(
        "tiering",
        "let c = '\\''; let d: &'a str = libc::f();"
    ));
    // From where it stands, `super` leads out of the module.
    assert!(caught_in("tiering::region", "use super::super::sys::root;"));
    assert!(caught_in("tiering", "use super::{units, sys::root};"));
    assert!(!caught_in("tiering::region", "use super::units_of;"));
    assert!(caught_in(
        "sys::targets",
        "use super::super::tiering::engine::Engine;"
    ));
    assert!(caught_in(
        "telemetry",
        "mod a { mod b { use super::super::super::sys::root; } }"
    ));
    assert!(!caught_in(
        "telemetry",
        "mod a { mod b {} use super::super::units::Bytes; }"
    ));
    assert!(caught_in(
        "telemetry",
        "mod a { mod b {} } use super::sys::root;"
    ));
}
