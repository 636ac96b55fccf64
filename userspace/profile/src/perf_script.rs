//! The text `perf script` prints, which many tools read.
//!
//! With a timeline, every sample is an event of its kind at its time. Without one, times are made
//! up: each sample is repeated as often as it was counted (readers count events), evenly over the
//! recording; if that were more than [`MOST_EVENTS`], each is one event with its value as period.
//!
//! Invariant: an event's header is one line, a frame is one line, an empty line ends an event,
//! whatever the names hold.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write;

use strata_kinds::{Kind, Shape, find_column};

use crate::error::WriteError;
use crate::identity::Identity;
use crate::model::{LocationId, Profile, StackId};
use crate::text::{shortened, visible};

/// Events that are made of a profile without a timeline, and the frames in all of them.
const MOST_EVENTS: i64 = 2_000_000;
const MOST_FRAMES: i64 = 100_000_000;
/// Characters of a name.
const LONGEST_NAME: usize = 4_096;

/// Writes the profile's events, with the values of one sample type where there are no times.
pub fn write(profile: &Profile, sample_type: usize, out: impl Write) -> Result<(), WriteError> {
    let mut writer =
        Writer { profile, event: event_name(profile, sample_type), line: String::new(), out };
    if profile.timeline.is_some() {
        writer.timeline()?;
    } else {
        writer.aggregated(sample_type)?;
    }
    Ok(writer.out.flush()?)
}

fn event_name(profile: &Profile, sample_type: usize) -> String {
    let shown = profile.sample_types.get(sample_type).copied().unwrap_or_default();
    let (name, unit) = (profile.string(shown.name), profile.string(shown.unit));
    match (find_column(name, unit), name) {
        (_, "samples" | "") => CPU_EVENT.to_owned(),
        (Some((kind, _)), _) => event_of(kind),
        (None, other) => one_word(other),
    }
}

/// perf's name for samples of the CPU clock.
const CPU_EVENT: &str = "cpu-clock";

fn event_of(kind: Kind) -> String {
    match kind.info().shape {
        Shape::CpuSlice => CPU_EVENT.to_owned(),
        _ => kind.name().to_owned(),
    }
}

struct Writer<'p, W> {
    profile: &'p Profile,
    event: String,
    line: String,
    out: W,
}

impl<W: Write> Writer<'_, W> {
    fn timeline(&mut self) -> Result<(), WriteError> {
        let profile = self.profile;
        let mut ticks: Vec<_> = profile.timeline().into_iter().flatten().collect();
        ticks.sort_by_key(|tick| tick.time);
        for tick in ticks {
            let identity = profile.identity(tick.labels);
            self.event = event_of(tick.kind);
            // Samples without a length or size count as one.
            let value = if tick.value > 0 { tick.value } else { tick.weight.into() };
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            self.event(&identity, tick.time, value, tick.stack)?;
        }
        Ok(())
    }

    fn aggregated(&mut self, sample_type: usize) -> Result<(), WriteError> {
        let profile = self.profile;
        let repeated = profile.count_of(sample_type).filter(|&at| is_small(profile, at));
        let events = repeated.map_or(0, |counting| profile.total(counting));
        let count = match repeated {
            Some(_) => events,
            None => i64::try_from(profile.sample_count()).unwrap_or(i64::MAX),
        };
        let step = u64::try_from(profile.duration_nanos).unwrap_or(0).max(1_000_000_000)
            / u64::try_from(count).unwrap_or(1).max(1);
        let counts = repeated == Some(sample_type);
        let kind = profile.kind_of(sample_type);
        let period = kind.map_or(profile.period, |kind| profile.period_of(kind));
        let period = (counts && period > 0).then_some(period);
        let mut time = 0_u64;
        for sample in profile.samples() {
            let value = sample.values.get(sample_type).copied().unwrap_or(0);
            let times = repeated.map_or(1, |at| sample.values.get(at).copied().unwrap_or(0));
            if value <= 0 || times <= 0 {
                continue;
            }
            let identity = profile.identity(sample.labels);
            for _ in 0..times {
                self.event(&identity, time, period.unwrap_or(value / times), sample.stack)?;
                time = time.saturating_add(step);
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        identity: &Identity,
        time: u64,
        period: i64,
        stack: StackId,
    ) -> Result<(), WriteError> {
        let pid = identity.pid.unwrap_or(0);
        let tid = identity.tid.unwrap_or(pid);
        let comm = visible(self.profile.string(identity.comm));
        let comm = comm.trim();
        self.line.clear();
        if comm.is_empty() {
            let _ = write!(self.line, ":{tid}");
        } else {
            push_comm(&mut self.line, &shortened(comm, 64));
        }
        let (seconds, micros) = (time / 1_000_000_000, time / 1_000 % 1_000_000);
        let event = &self.event;
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.line,
            " {pid}/{tid} [000] {seconds}.{micros:06}: {} {event}: ",
            period.max(1)
        );
        for location in self.profile.stack(stack) {
            self.location(location);
        }
        self.line.push('\n');
        Ok(self.out.write_all(self.line.as_bytes())?)
    }

    fn location(&mut self, id: LocationId) {
        let location = self.profile.location(id);
        let path = self.profile.path_of(location);
        let file = if path.is_empty() { "[unknown]".to_owned() } else { one_word(path) };
        for frame in self.profile.frames(location) {
            let name = visible(self.profile.string(frame.name));
            let name = clipped(name.trim());
            let _ = writeln!(self.line, "\t{:16x} {name} ({file})", location.address);
        }
    }
}

/// Readers take the first number after a space for the pid.
fn push_comm(line: &mut String, comm: &str) {
    let mut characters = comm.chars().peekable();
    while let Some(character) = characters.next() {
        let misleads = character == ' ' && characters.peek().is_some_and(char::is_ascii_digit);
        line.push(if misleads { '_' } else { character });
    }
}

/// Whether the profile may be written with an event for each of the samples it counts.
fn is_small(profile: &Profile, counting: usize) -> bool {
    let (mut events, mut frames) = (0_i64, 0_i64);
    for sample in profile.samples() {
        let count = sample.values.get(counting).copied().unwrap_or(0).max(0);
        let depth = i64::try_from(profile.stack(sample.stack).count()).unwrap_or(i64::MAX);
        events = events.saturating_add(count);
        frames = frames.saturating_add(count.saturating_mul(depth));
    }
    events <= MOST_EVENTS && frames <= MOST_FRAMES
}

fn clipped(name: &str) -> Cow<'_, str> {
    if name.is_empty() { Cow::Borrowed("[unknown]") } else { shortened(name, LONGEST_NAME) }
}

/// The text with nothing in it that would end a word or a parenthesis.
fn one_word(text: &str) -> String {
    let text = visible(text);
    let word = shortened(&text, LONGEST_NAME);
    word.chars()
        .map(
            |character| {
                if character.is_whitespace() || "():".contains(character) { '_' } else { character }
            },
        )
        .collect()
}
