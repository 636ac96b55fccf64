//! Explains why a query found nothing, from the store's contents: the first condition without a
//! match, and values that would match.

use std::collections::BTreeSet;
use std::path::Path;

use strata_profile::text::sanitize_for_terminal;
use strata_store::{Holding, Pattern};

use super::{DEFAULT_TYPE, Whose, Window, when};

/// Names in one message.
const MOST: usize = 10;

pub fn nothing_yet(store: &Path) -> String {
    format!("the store in `{}` holds nothing yet: `strata daemon` fills it", store.display())
}

fn of_service<'h>(held: &'h [Holding], whose: &Whose) -> Vec<&'h Holding> {
    let pattern = Pattern::new(whose.service.as_deref().unwrap_or("*"));
    held.iter().filter(|holding| pattern.matches(&holding.service)).collect()
}

/// The kind that these services have, if they have one only.
pub fn only_kind(held: &[Holding], whose: &Whose) -> Option<String> {
    let kinds: BTreeSet<_> =
        of_service(held, whose).iter().map(|holding| holding.kind.as_str()).collect();
    if kinds.len() == 1 { kinds.first().map(|&kind| kind.to_owned()) } else { None }
}

pub fn why_nothing(held: &[Holding], whose: &Whose, window: Window, store: &Path) -> String {
    if held.is_empty() {
        return nothing_yet(store);
    }
    let mut left = of_service(held, whose);
    let service = sanitize_for_terminal(whose.service.as_deref().unwrap_or("*")).into_owned();
    if left.is_empty() {
        let names: BTreeSet<_> = held.iter().map(|holding| holding.service.as_str()).collect();
        let near = near(whose.service.as_deref().unwrap_or_default(), &names);
        return match near.is_empty() {
            false => format!("there is no service `{service}`; did you mean {}?", listed(near)),
            true => format!("there is no service `{service}`; there are: {}", listed(names)),
        };
    }
    let kind = whose.kind.as_deref().unwrap_or(DEFAULT_TYPE);
    let kinds: BTreeSet<_> = left.iter().map(|holding| holding.kind.as_str()).collect();
    let pattern = crate::kinds_of(kind);
    left.retain(|holding| pattern.matches(&holding.kind));
    if left.is_empty() {
        return format!(
            "`{service}` has no profiles of type `{}`; --type can be: {}",
            sanitize_for_terminal(kind),
            listed(kinds)
        );
    }
    for (name, value) in &whose.labels {
        let pattern = Pattern::new(value);
        let known: BTreeSet<String> = left
            .iter()
            .flat_map(|holding| &holding.labels)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        left.retain(|holding| {
            holding.labels.iter().any(|(key, value)| key == name && pattern.matches(value))
        });
        if left.is_empty() {
            let asked = format!("{name}={value}");
            let asked = sanitize_for_terminal(&asked);
            return match known.is_empty() {
                true => format!("no profile of `{service}` has the label {asked}, or any"),
                false => format!(
                    "no profile of `{service}` has the label {asked}; there are: {}",
                    listed(known.iter().map(String::as_str))
                ),
            };
        }
    }
    let first = left.iter().map(|holding| holding.first_nanos).min().unwrap_or_default();
    let last = left.iter().map(|holding| holding.last_nanos).max().unwrap_or_default();
    let held = format!(
        "the store holds its {} profiles from {} to {}",
        sanitize_for_terminal(kind),
        when::show(first),
        when::show(last)
    );
    let overlaps = first < window.to && last > window.from;
    match (whose.pid, &whose.runtime_id) {
        (Some(pid), _) if overlaps => {
            format!("no sample of `{service}` is of process {pid} from {}; {held}", window.text())
        }
        (_, Some(id)) if overlaps => format!(
            "no profile of `{service}` has the runtime id `{}` from {}; {held}",
            sanitize_for_terminal(id),
            window.text()
        ),
        _ => format!("there is nothing of `{service}` from {}; {held}", window.text()),
    }
}

fn listed<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let shown: Vec<_> =
        names.iter().take(MOST).map(|name| sanitize_for_terminal(name).into_owned()).collect();
    let more = names.len().saturating_sub(MOST);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &tail
}

/// Known names similar to `asked`, the nearest first.
fn near<'n>(asked: &str, names: &BTreeSet<&'n str>) -> Vec<&'n str> {
    let wanted = asked.to_lowercase();
    let most = asked.chars().count().div_ceil(3);
    let mut found: Vec<(usize, &str)> = names
        .iter()
        .filter_map(|&name| {
            let lower = name.to_lowercase();
            let distance = distance(&wanted, &lower);
            let plain = wanted.trim_matches('*');
            let is_part = plain.len() > 1 && (lower.contains(plain) || wanted.contains(&lower));
            (distance <= most || is_part).then_some((distance, name))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// How many letters must be changed, added or removed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(200).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().take(200).enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        for (place, known) in row.iter_mut().skip(1).zip(&other) {
            let changed = diagonal + usize::from(letter != *known);
            diagonal = *place;
            *place = changed.min(diagonal + 1).min(left + 1);
            left = *place;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{distance, near};

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        assert_eq!(distance("shop", "shop"), 0);
        assert_eq!(distance("shop", "sohp"), 2);
        assert_eq!(distance("", "mail"), 4);
        assert_eq!(distance("checkout", "chekout"), 1);
        let names = ["checkout", "mail", "shop-api", "shop-web"].into();
        assert_eq!(near("chekout", &names), ["checkout"]);
        assert_eq!(near("Shop", &names), ["shop-api", "shop-web"]);
        assert_eq!(near("database", &names), [""; 0]);
    }
}
