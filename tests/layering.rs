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

/// The names in a source, without comments and what only tests see, braced
/// imports written out: `use crate::{a, b::{c, d}}` names crate::a, crate::b::c
/// and crate::b::d.
fn names(source: &str) -> Vec<String> {
    let code = source
        .split("#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default();
    let code = without_text(code);
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
        rest = &rest[at..];
        let taken = path(rest, "", &mut found);
        rest = &rest[taken..];
    }
    found
}

/// Without comments and without what is in quotes.
fn without_text(source: &str) -> String {
    let mut code = String::new();
    // A quotation mark that is itself quoted opens nothing.
    let source = source.replace("'\"'", "' '");
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                chars.by_ref().find(|c| *c == '\n');
                code.push('\n');
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
            c => code.push(c),
        }
    }
    code
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

fn violations(rule: &Rule, source: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in names(source) {
        for never in rule.never {
            // A crate is named at the beginning, or after `use ::`.
            if uses(&name, never) && !name.starts_with("self::") {
                wrong.push(format!("{name} (never {never})"));
            }
        }
        if let Some(inside) = name.strip_prefix("crate::")
            && rule.may != ALL
        {
            let module = inside.split("::").next().unwrap_or_default();
            let known = RULES.iter().any(|r| r.module == module);
            if known && !rule.may.contains(&module) {
                wrong.push(format!("{name} (may use {:?})", rule.may));
            }
        }
    }
    wrong
}

/// The module that a source file belongs to.
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
        let found = violations(rule, &source);
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
            !names(&source).iter().any(|n| n == "unsafe"),
            "{}",
            file.display()
        );
        assert!(!source.contains("allow(unsafe_code)"), "{}", file.display());
    }
}

#[test]
fn forbidden_names_are_found_wherever_they_hide() {
    let rule = |module: &str| RULES.iter().find(|r| r.module == module).unwrap();
    let caught = |module: &str, source: &str| !violations(rule(module), source).is_empty();
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
}
