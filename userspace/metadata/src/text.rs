//! Bounds on text from a target: lengths, counts, characters; and the three ways of writing lists
//! of labels.

use std::borrow::Cow;

use crate::control_group::hex;

/// Bounds on an identity. The smallest limits that known servers have, with room for the labels
/// that strata and its exporters add (a Pyroscope server takes 30 names).
pub struct Limits;

impl Limits {
    /// Bytes of a service's name, environment or version.
    pub const NAME: usize = 200;
    pub const LABEL_NAME: usize = 128;
    pub const LABEL_VALUE: usize = 512;
    pub const LABELS: usize = 20;
    /// Pairs that are read of one list.
    pub const PAIRS: usize = 64;
}

/// A value as it may be shown and sent: trimmed, without control and direction characters,
/// truncated to `limit` bytes. `None` if nothing is left. The flag marks that it was truncated.
pub fn value(text: &str, limit: usize) -> Option<(String, bool)> {
    // No more is examined than the limit needs.
    let mut cleaned = String::with_capacity(text.len().min(limit));
    let mut cut = false;
    for character in text.trim().chars() {
        let shown = if is_hidden(character) { '_' } else { character };
        if cleaned.len() + shown.len_utf8() > limit {
            cut = true;
            break;
        }
        cleaned.push(shown);
    }
    let kept = cleaned.trim_end().len();
    cleaned.truncate(kept);
    (!cleaned.is_empty()).then_some((cleaned, cut))
}

/// A service's name: a value without the characters that end a name in `name{label=value}`.
pub fn name(text: &str) -> Option<(String, bool)> {
    value(text, Limits::NAME).map(|(text, cut)| (text.replace(['{', '}'], "_"), cut))
}

/// Characters that a terminal or a page would interpret instead of showing them.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A label's name: letters, digits, `_ . - /`, starting with a letter or `_`; others become `_`.
pub fn label_name(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() || text.len() > Limits::LABEL_NAME {
        return None;
    }
    let keep = |character: char| character.is_ascii_alphanumeric() || "_.-/".contains(character);
    let name: String =
        text.chars().map(|character| if keep(character) { character } else { '_' }).collect();
    let first = name.bytes().next()?;
    Some(if first.is_ascii_alphabetic() || first == b'_' { name } else { format!("_{name}") })
}

/// A URL without user and password, which are often a token; other text as it is.
pub fn without_userinfo(url: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = url.split_once("://") else { return Cow::Borrowed(url) };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rfind('@').and_then(|at| rest.get(at + 1..));
    host.map_or(Cow::Borrowed(url), |host| Cow::Owned(format!("{scheme}://{host}")))
}

/// How a list of labels is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `PYROSCOPE_LABELS`: `k:v,k=v`.
    Pyroscope,
    /// `DD_TAGS`: `k:v,k:v`, or with spaces between when there is no comma.
    Datadog,
    /// `OTEL_RESOURCE_ATTRIBUTES`: `k=v,k=v`, values percent-encoded.
    OpenTelemetry,
}

/// The pairs of a list, and how many entries were no pairs or over [`Limits::PAIRS`].
pub fn pairs(text: &str, list: List) -> (Vec<(String, String)>, u32) {
    let by_space = list == List::Datadog && !text.contains(',');
    let mut pairs = Vec::new();
    let mut refused = 0u32;
    for entry in text.split(|character: char| character == ',' || by_space && character == ' ') {
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        let separators: &[char] = match list {
            List::Pyroscope => &[':', '='],
            List::Datadog => &[':'],
            List::OpenTelemetry => &['='],
        };
        match entry.split_once(separators) {
            Some((name, value)) if !name.trim().is_empty() && pairs.len() < Limits::PAIRS => {
                let value = match list {
                    List::OpenTelemetry => percent_decode(value.trim()),
                    _ => value.trim().to_owned(),
                };
                pairs.push((name.trim().to_owned(), value));
            }
            _ => refused = refused.saturating_add(1),
        }
    }
    (pairs, refused)
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let decoded = match rest {
            [b'%', high, low, tail @ ..] => {
                hex(*high).zip(hex(*low)).map(|(high, low)| (high << 4 | low, tail))
            }
            _ => None,
        };
        let (byte, tail) = decoded.unwrap_or((first, tail));
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_loses_its_user_and_password_only() {
        for (url, expected) in [
            ("https://ci-token:gl@cbt-1@host/a/b.git", "https://host/a/b.git"),
            ("https://ghs_1@host:8443", "https://host:8443"),
            ("ssh://git@host/a@b", "ssh://host/a@b"),
            ("https://host/a@b?c=d@e", "https://host/a@b?c=d@e"),
            ("git@host:a/b.git", "git@host:a/b.git"),
            ("://@", "://"),
        ] {
            assert_eq!(without_userinfo(url), expected);
        }
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_a_terminal_would_obey_is_replaced() {
        assert_eq!(value(" a\x1b[31m\u{202e}b\n", 100), Some(("a_[31m_b".to_owned(), false)));
        assert_eq!(value(" \t\n", 100), None);
        assert_eq!(name("app{pod=other}"), Some(("app_pod=other_".to_owned(), false)));
    }

    #[test]
    fn values_are_cut_between_characters() {
        assert_eq!(value("ééé", 5), Some(("éé".to_owned(), true)));
        assert_eq!(value("a b", 2), Some(("a".to_owned(), true)));
    }

    #[test]
    fn names_of_labels_are_made_safe_or_refused() {
        assert_eq!(label_name(" k8s.io/app-name "), Some("k8s.io/app-name".to_owned()));
        assert_eq!(label_name("9 lives"), Some("_9_lives".to_owned()));
        assert_eq!(label_name(&"x".repeat(Limits::LABEL_NAME + 1)), None);
        assert_eq!(label_name("  "), None);
    }

    #[test]
    fn each_family_writes_lists_its_own_way() {
        let list = |text, list| pairs(text, list);
        assert_eq!(
            list("a:1,b=2, c:x=y", List::Pyroscope),
            (owned(&[("a", "1"), ("b", "2"), ("c", "x=y")]), 0)
        );
        assert_eq!(
            list("a:1,b:http://x", List::Datadog),
            (owned(&[("a", "1"), ("b", "http://x")]), 0)
        );
        assert_eq!(list("a:1  b:2", List::Datadog), (owned(&[("a", "1"), ("b", "2")]), 0));
        assert_eq!(list("a:1 2,b:3", List::Datadog), (owned(&[("a", "1 2"), ("b", "3")]), 0));
        assert_eq!(
            list("a=x%2Cy%,b=%zz", List::OpenTelemetry),
            (owned(&[("a", "x,y%"), ("b", "%zz")]), 0)
        );
    }

    #[test]
    fn entries_that_are_no_pairs_are_counted() {
        assert_eq!(pairs("a,:b,=,,c:d", List::Pyroscope), (owned(&[("c", "d")]), 3));
        let many = "k:v,".repeat(Limits::PAIRS + 5);
        let (kept, refused) = pairs(&many, List::Datadog);
        assert_eq!((kept.len(), refused), (Limits::PAIRS, 5));
    }
}
