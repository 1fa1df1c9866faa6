//! Shell patterns over bytes: `*`, `?`, `[a-z]`, `[!a-z]`, `\` before any of
//! them. `*` matches `/` too: command lines and mapping names are no paths.

/// Whether `text` as a whole matches `pattern`. Linear in both for each `*`.
pub(super) fn matches(pattern: &str, text: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last `*` has to take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        let step = match text.get(t) {
            Some(&byte) => one(&pattern[p..], byte),
            None if p == pattern.len() => return true,
            None => return false,
        };
        match (step, retry) {
            (Some(width), _) => {
                p += width;
                t += 1;
            }
            (None, Some((after, from))) => {
                p = after;
                t = from + 1;
                retry = Some((after, t));
            }
            (None, None) => return false,
        }
    }
}

/// Whether the pattern has any special character.
pub(super) fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', '\\'])
}

/// The length of the pattern's first element if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => match class(pattern, byte) {
            Some((width, hit)) => hit.then_some(width),
            // Not closed: an ordinary bracket, as in the shell.
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The class that `pattern` begins with: its length, and whether `byte` is in it.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let mut at = first;
    let mut hit = false;
    loop {
        let low = *pattern.get(at)?;
        // A bracket that comes first is a member.
        if low == b']' && at > first {
            return Some((at + 1, hit != negated));
        }
        match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                hit |= (low..=high).contains(&byte);
                at += 3;
            }
            _ => {
                hit |= low == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_questions_and_classes() {
        for (pattern, text, expected) in [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("*py*train*", "python3 /opt/train.py", true),
            ("?at", "cat", true),
            ("?at", "at", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[anon]", "a", true),
            ("\\[anon\\]", "[anon]", true),
            ("[x", "[x", true),
            ("", "", true),
            ("*", "", true),
            ("a*a*b", "aaaaaaaac", false),
        ] {
            assert_eq!(
                matches(pattern, text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    proptest! {
        #[test]
        fn text_without_special_characters_matches_itself_only(a in "[a-z /.]{0,12}", b in "[a-z /.]{0,12}") {
            prop_assert_eq!(matches(&a, b.as_bytes()), a == b);
            let middle = format!("*{a}*");
            let text = format!("{b}{a}{b}");
            prop_assert!(matches(&middle, text.as_bytes()));
        }

        #[test]
        fn any_pattern_ends(pattern in "[ab*?\\[\\]!\\\\-]{0,16}", text in "[ab]{0,24}") {
            matches(&pattern, text.as_bytes());
        }
    }
}
