//! The output formats, and their selection by file name or by name.

use std::fmt;
use std::io::Write;
use std::path::Path;

use crate::error::{ReadError, WriteError};
use crate::idle::Idle;
use crate::kind::FrameKind;
use crate::model::Profile;
use crate::pprof::{self, Limits};
use crate::{firefox, flamegraph, folded, perf_script};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    #[default]
    /// `.pb.gz`, `.pprof`; `.pb` is not compressed.
    Pprof,
    Svg,
    Folded,
    PerfScript,
    /// `.json.gz`; `.json` is not compressed.
    Firefox,
}

impl Format {
    pub const ALL: [Self; 5] =
        [Self::Pprof, Self::Svg, Self::Folded, Self::PerfScript, Self::Firefox];

    /// Whether one file has every kind of samples; else it shows one sample type. Those with times
    /// have the kinds whose times were kept.
    #[must_use]
    pub fn takes_all_kinds(self) -> bool {
        matches!(self, Self::Pprof | Self::Firefox | Self::PerfScript)
    }

    /// The format a file's name asks for.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let endings = [
            (".pb.gz", Self::Pprof),
            (".pprof.gz", Self::Pprof),
            (".pprof", Self::Pprof),
            (".pb", Self::Pprof),
            (".svg", Self::Svg),
            (".folded", Self::Folded),
            (".txt", Self::Folded),
            (".perf", Self::PerfScript),
            (".json.gz", Self::Firefox),
            (".json", Self::Firefox),
        ];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    /// The format of this name, as [`Self::name`] returns it, or a common alias.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "pprof" | "pb" | "pb.gz" => Self::Pprof,
            "svg" | "flamegraph" | "flame" => Self::Svg,
            "folded" | "collapsed" | "txt" => Self::Folded,
            "perf" | "perf-script" => Self::PerfScript,
            "firefox" | "json" | "json.gz" => Self::Firefox,
            _ => return None,
        })
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pprof => "pprof",
            Self::Svg => "svg",
            Self::Folded => "folded",
            Self::PerfScript => "perf",
            Self::Firefox => "firefox",
        }
    }

    /// The usual ending of its files.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Pprof => "pb.gz",
            Self::Svg => "svg",
            Self::Folded => "folded",
            Self::PerfScript => "perf",
            Self::Firefox => "json.gz",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How a profile is written.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The title of a flame graph, and the name of a Firefox profile.
    pub title: String,
    /// The sample type that formats with one value show, instead of the profile's own choice.
    pub sample_type: Option<String>,
    /// Whether pprof and Firefox files are gzipped.
    pub compressed: bool,
    /// What a flame graph shows.
    pub view: View,
    /// Processes of one name stand apart in a flame graph, each with its pid.
    pub split_processes: bool,
}

/// What of a profile is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Frames that are left out; their callees are attached to their callers.
    pub hidden: fn(&FrameView<'_>) -> bool,
    pub idle: Idle,
}

impl View {
    /// All that there is.
    pub const WHOLE: Self = Self { hidden: show_all, idle: Idle::Whole };
}

impl Default for View {
    fn default() -> Self {
        Self { hidden: show_all, idle: Idle::Folded }
    }
}

/// A frame, for the decision whether it is shown.
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    pub kind: FrameKind,
    pub name: &'a str,
    /// The path of its mapping; empty when it has none.
    pub mapping: &'a str,
}

/// Hides nothing.
#[must_use]
fn show_all(_frame: &FrameView<'_>) -> bool {
    false
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            title: "Flame graph".to_owned(),
            sample_type: None,
            compressed: true,
            view: View::default(),
            split_processes: false,
        }
    }
}

impl WriteOptions {
    /// The usual options for a file of this name: not compressed if it ends in `.pb` or `.json`.
    #[must_use]
    pub fn for_path(path: &Path) -> Self {
        let plain = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("pb") || end.eq_ignore_ascii_case("json"));
        Self { compressed: !plain, ..Self::default() }
    }
}

/// Writes the profile in a format.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &WriteOptions,
    out: impl Write,
) -> Result<(), WriteError> {
    let sample_type = shown_sample_type(profile, options)?;
    match format {
        Format::Pprof if options.compressed => pprof::encode(profile, out),
        Format::Pprof => pprof::encode_plain(profile, out),
        Format::Svg => flamegraph::write(profile, sample_type, options, out),
        Format::Folded => folded::write(profile, sample_type, out),
        Format::PerfScript => perf_script::write(profile, sample_type, out),
        Format::Firefox if options.compressed => {
            firefox::write_gzip(profile, sample_type, &options.title, out)
        }
        Format::Firefox => firefox::write(profile, sample_type, &options.title, out),
    }
}

/// Formats with one value show the number of samples when the profile's own choice is CPU time, and
/// each sample stands for one period of it: the shares are the same and the numbers are what was
/// counted. Of samples of several rates they are not.
fn shown_sample_type(profile: &Profile, options: &WriteOptions) -> Result<usize, WriteError> {
    if let Some(wanted) = &options.sample_type {
        return profile.sample_type(wanted).ok_or_else(|| {
            let names = profile.sample_types.iter().map(|kind| profile.string(kind.name));
            let known = names.collect::<Vec<_>>().join(", ");
            WriteError::NoSampleType { wanted: wanted.clone(), known }
        });
    }
    let shown = profile.shown_sample_type();
    let name = profile.sample_types.get(shown).map(|kind| profile.string(kind.name));
    Ok(match (name, profile.counting_sample_type()) {
        (Some("cpu"), Some(counting)) if profile.counts_periods(counting, shown) => counting,
        _ => shown,
    })
}

/// Reads a profile that strata or another tool wrote: pprof (gzipped or not) or folded stacks.
pub fn read(bytes: &[u8]) -> Result<Profile, ReadError> {
    let plain = pprof::decompress(bytes, &Limits::default())?;
    if plain.is_empty() {
        return Err(ReadError::Empty);
    }
    let text = String::from_utf8_lossy(&plain);
    if !looks_like_text(&plain) {
        // Another tool's folded stacks may have control bytes in names.
        return pprof::decode(&plain).or_else(|error| folded::read(&text).map_err(|_| error));
    }
    folded::read(&text).map_err(|error| match text.trim_start() {
        start if start.starts_with('{') => ReadError::WriteOnly("JSON"),
        start if start.starts_with("<?xml") || start.starts_with("<svg") => {
            ReadError::WriteOnly("SVG")
        }
        _ => error,
    })
}

/// pprof begins with a newline (field 1) or another tag, and has control bytes at once.
fn looks_like_text(bytes: &[u8]) -> bool {
    let start = bytes.get(..4096).unwrap_or(bytes);
    !start.iter().any(|&byte| byte < 0x20 && !matches!(byte, b'\n' | b'\r' | b'\t'))
}
