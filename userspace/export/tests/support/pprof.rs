//! A pprof profile as a server sees it, read by the wire format and the numbers of
//! `profile.proto`.

use std::collections::BTreeMap;

use super::wire::Message;

#[derive(Debug)]
pub struct Seen {
    /// (name, unit)
    pub types: Vec<(String, String)>,
    pub period: (String, String),
    pub period_value: i64,
    pub start: i64,
    pub duration: i64,
    pub samples: Vec<SeenSample>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenSample {
    /// Leaf first.
    pub functions: Vec<String>,
    pub values: Vec<i64>,
    pub texts: BTreeMap<String, String>,
    pub numbers: BTreeMap<String, i64>,
}

pub fn see(bytes: &[u8]) -> Seen {
    let profile = Message::read(bytes);
    let strings = profile.texts(6);
    let string = |position: i64| strings[position as usize].clone();
    let value_type = |message: &Message| (string(message.number(1)), string(message.number(2)));
    let functions: BTreeMap<i64, String> = profile
        .all(5)
        .iter()
        .map(|function| (function.number(1), string(function.number(2))))
        .collect();
    let locations: BTreeMap<i64, Vec<String>> = profile
        .all(4)
        .iter()
        .map(|location| {
            let lines = location.all(4);
            let names = lines.iter().map(|line| functions[&line.number(1)].clone());
            (location.number(1), names.collect())
        })
        .collect();
    let mut samples: Vec<SeenSample> = profile
        .all(2)
        .iter()
        .map(|sample| {
            let mut seen = SeenSample {
                functions: sample
                    .numbers(1)
                    .iter()
                    .flat_map(|location| locations[location].clone())
                    .collect(),
                values: sample.numbers(2),
                texts: BTreeMap::new(),
                numbers: BTreeMap::new(),
            };
            for label in sample.all(3) {
                let key = string(label.number(1));
                if label.number(2) == 0 {
                    seen.numbers.insert(key, label.number(3));
                } else {
                    seen.texts.insert(key, string(label.number(2)));
                }
            }
            seen
        })
        .collect();
    samples.sort();
    Seen {
        types: profile.all(1).iter().map(value_type).collect(),
        period: value_type(&profile.one(11)),
        period_value: profile.number(12),
        start: profile.number(9),
        duration: profile.number(10),
        samples,
    }
}

/// (name, unit) pairs of strings.
pub fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
