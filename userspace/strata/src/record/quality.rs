//! The completeness of a profile's stacks, and the programs and files with incomplete ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use strata_profile::{FrameKind, Profile};

/// Programs or files that are named.
const MOST: usize = 3;

/// Shares of samples and frames that miss something, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    pub samples: u64,
    /// Samples whose stack does not reach its start, and of which programs.
    pub incomplete: u64,
    pub programs: Vec<(String, u64)>,
    /// Frames of all samples.
    pub frames: u64,
    /// Frames that have no symbol, and of which files.
    pub unnamed: u64,
    pub files: Vec<(String, u64)>,
}

impl Quality {
    pub fn of(profile: &Profile) -> Self {
        let mut quality = Self::default();
        let (mut programs, mut files) = (BTreeMap::new(), BTreeMap::new());
        let counting = profile.counting_sample_type();
        for sample in profile.samples() {
            let count = counting.and_then(|at| sample.values.get(at)).copied().unwrap_or(1);
            let count = u64::try_from(count).unwrap_or(0);
            quality.samples += count;
            let mut is_incomplete = false;
            for at in profile.stack(sample.stack) {
                let location = profile.location(at);
                for frame in profile.frames(location) {
                    let name = profile.string(frame.name);
                    if frame.kind == FrameKind::Marker && name != "[unknown]" {
                        is_incomplete = true;
                        continue;
                    }
                    quality.frames += count;
                    if name == "[unknown]" || name.contains("!0x") {
                        quality.unnamed += count;
                        let path = profile.path_of(location);
                        let file = path.rsplit('/').next().unwrap_or_default();
                        let file = if file.is_empty() { "generated code" } else { file };
                        *files.entry(file.to_owned()).or_default() += count;
                    }
                }
            }
            if is_incomplete {
                quality.incomplete += count;
                let process = profile.string(profile.identity(sample.labels).process);
                *programs.entry(process.to_owned()).or_default() += count;
            }
        }
        quality.programs = most(programs);
        quality.files = most(files);
        quality
    }

    /// `5.3 % of stacks do not reach their start: node 96 %, orders 4 %`
    pub fn incomplete_text(&self) -> Option<String> {
        text("stacks do not reach their start", self.incomplete, self.samples, &self.programs)
    }

    /// `0.4 % of frames have no symbol: libfoo.so 60 %, generated code 40 %`
    pub fn unnamed_text(&self) -> Option<String> {
        text("frames have no symbol", self.unnamed, self.frames, &self.files)
    }
}

fn most(counts: BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut list: Vec<_> = counts.into_iter().collect();
    list.sort_by_key(|(_, count)| Reverse(*count));
    list.truncate(MOST);
    list
}

fn text(what: &str, part: u64, all: u64, of: &[(String, u64)]) -> Option<String> {
    if part == 0 {
        return None;
    }
    let percent = |part: u64, all: u64| match 100.0 * part as f64 / all.max(1) as f64 {
        small if small < 0.1 => "<0.1 %".to_owned(),
        share => format!("{share:.1} %"),
    };
    let of = of.iter().map(|(name, count)| format!("{name} {}", percent(*count, part)));
    let of = of.collect::<Vec<_>>().join(", ");
    Some(format!("{} of {what}: {of}", percent(part, all)))
}

#[cfg(test)]
mod tests {
    use super::Quality;

    #[test]
    fn the_worst_programs_and_files_are_named_with_their_shares() {
        let profile = strata_profile::read(
            b"node;[incomplete];run 9\nshop;main;serve 90\nshop;[incomplete];libx.so!0x12 1\n",
        )
        .expect("it is folded stacks");
        let quality = Quality::of(&profile);
        assert_eq!(
            quality.incomplete_text().as_deref(),
            Some("10.0 % of stacks do not reach their start: node 90.0 %, shop 10.0 %")
        );
        assert_eq!(
            quality.unnamed_text().as_deref(),
            Some("0.5 % of frames have no symbol: generated code 100.0 %")
        );
        let whole = strata_profile::read(b"shop;main;serve 90\n").expect("it is folded stacks");
        assert_eq!(Quality::of(&whole).incomplete_text(), None);
    }
}
