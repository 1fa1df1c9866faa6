//! Each message that an operator can see is in docs/troubleshooting.md: what the log warns of,
//! what errors say, what `check` recommends, what `status` explains. A scan of the sources, so that
//! the page cannot rot.

use std::fs;
use std::path::{Path, PathBuf};

/// What operators see nothing of: the model, the demo's programs, and what only tests have.
const NOT_SHOWN: &[&str] = &["src/sim", "src/demo", "src/dnn"];

/// Messages that consist of what others say; these are found where they are said.
const ASSEMBLED: &[&str] = &[
    "{}",
    "{0}",
    "{0:#}",
    "{warning}",
    "{fault}",
    "{what}: {source}",
    "{what}: {detail}",
    "{}: {source}",
    "{note}",
    "pid {0}: {1}",
    "{} ({})",
    "{} ({why})",
    "{} (pid {}): {text}",
];

/// A part of a message is looked for from so many characters on.
const PART: usize = 6;

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            sources(&path, out);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "testing.rs" {
            out.push(path);
        }
    }
    out.sort();
}

/// The program's own part of a source: without tests and comments.
fn program(source: &str) -> String {
    let own = source.split("#[cfg(test)]\nmod tests").next();
    let lines = own.unwrap_or_default().lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The string literals in `code`, as the compiler takes them, until what opened before it is closed.
fn literals(code: &str, ends: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut depth = 1;
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth -= 1;
                if ends && depth == 0 {
                    break;
                }
            }
            // A character, not a lifetime: '"' would begin a text.
            '\'' if chars.peek() == Some(&'"') => {
                chars.next();
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next() {
                    match c {
                        '"' => break,
                        '\\' => match chars.next() {
                            Some('\n') => {
                                while chars.peek().is_some_and(|c| c.is_whitespace()) {
                                    chars.next();
                                }
                            }
                            Some('n') => text.push('\n'),
                            Some(c) => text.push(c),
                            None => break,
                        },
                        c => text.push(c),
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

/// The first text of each call of `opening`, such as `warn!(`.
fn said(code: &str, opening: &str) -> Vec<String> {
    let calls = code.match_indices(opening);
    let calls = calls.filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric()));
    calls
        .filter_map(|(at, _)| {
            literals(&code[at + opening.len()..], true)
                .into_iter()
                .next()
        })
        .collect()
}

/// What is fixed of a message: the parts between what is filled in.
fn fixed(message: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in message.chars() {
        match c {
            '{' => {
                depth += 1;
                parts.push(String::new());
            }
            '}' => depth -= 1,
            c if depth == 0 => parts.last_mut().expect("one").push(c),
            _ => {}
        }
    }
    let parts = parts.iter().map(|part| plain(part));
    parts.filter(|part| part.chars().count() >= PART).collect()
}

/// Without marks and line breaks, to be compared.
fn plain(text: &str) -> String {
    let text = text.replace(['`', '|'], "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All messages of one source.
fn messages(file: &str, source: &str) -> Vec<String> {
    let code = program(source);
    let mut all: Vec<String> = ["warn!(", "error!(", "#[error(", "anyhow!(", "bail!("]
        .iter()
        .flat_map(|opening| said(&code, opening))
        .collect();
    // What stands behind a remedy.
    for key in [
        "remedy: \"",
        "remedy = \"",
        "remedy:\n",
        "remedy =\n",
        "remedy: format!(",
    ] {
        for (at, _) in code.match_indices(key) {
            let rest = &code[at..];
            let text = rest.find('"').map(|quote| literals(&rest[quote..], true));
            all.extend(text.into_iter().flatten().next());
        }
    }
    // What a status or a line of the log explains, and what `check` recommends.
    let explains = ["status/explained.rs", "log/left_alone.rs"];
    if explains.iter().any(|name| file.ends_with(name)) {
        let texts = literals(&code, false).into_iter();
        all.extend(texts.filter(|text| text.contains(' ')));
    }
    all
}

#[test]
fn each_message_is_in_the_page_on_troubles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).expect("the page");
    let page = plain(&page);
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let (mut count, mut missing) = (0, Vec::new());
    for file in files {
        let name = file.strip_prefix(root).expect("below it");
        if NOT_SHOWN.iter().any(|part| name.starts_with(part)) {
            continue;
        }
        let name = name.display().to_string();
        let source = fs::read_to_string(&file).expect("a source");
        for message in messages(&name, &source) {
            count += 1;
            let parts = fixed(&message);
            let is_there = parts.iter().all(|part| page.contains(part.as_str()));
            let is_known = !parts.is_empty() || ASSEMBLED.contains(&message.as_str());
            if !is_there || !is_known && message.chars().count() >= PART {
                missing.push(format!("{name}: {message}"));
            }
        }
    }
    assert!(count > 100, "{count} messages found: is the scan blind?");
    assert!(
        missing.is_empty(),
        "not in docs/troubleshooting.md, with cause and remedy:\n{}",
        missing.join("\n")
    );
}

#[test]
fn messages_are_found_however_they_are_written() {
    let source = "fn f() {\n    // warn!(\"not this\")\n    tracing::warn!(%error, pid = %p(1), \
                  \"cannot see \\\n     where {it} is\");\n    error!(\"{what} failed: {e}\");\n}\n\
                  #[error(\"{0} is \\\"gone\\\"\")]\n\
                  #[cfg(test)]\nmod tests { fn g() { warn!(\"nor that\"); } }";
    assert_eq!(
        messages("src/x.rs", source),
        [
            "cannot see where {it} is",
            "{what} failed: {e}",
            "{0} is \"gone\"",
        ]
    );
    assert_eq!(
        fixed("cannot see where {it} is now, or {never:?}"),
        ["cannot see where", "is now, or"]
    );
    let remedy = "let remedy = \"use a kernel with X\"; Missing { remedy: \"write 0\".into() }";
    assert_eq!(messages("src/x.rs", remedy).len(), 2);
}
