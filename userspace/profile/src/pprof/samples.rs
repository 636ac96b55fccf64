//! Writes the samples, the bulk of a profile: what they share is encoded once.

use std::io::{self, Write};

use super::encode::string;
use super::messages::field;
use super::writer::{Body, LONGEST_VARINT, Writer, varint_in};
use crate::model::{LabelValue, LabelsId, Profile, StackId};

pub(super) fn write<W: Write>(profile: &Profile, out: &mut Writer<W>) -> io::Result<()> {
    let mut ids = LocationIds::default();
    let labels = Labels::new(profile);
    let types = profile.sample_types.len();
    for sample in profile.samples() {
        let ids = ids.of(profile, sample.stack);
        let values = sample.values.get(..types).unwrap_or(sample.values);
        out.write(|fields| {
            fields.message(field::SAMPLE, |message| {
                message.bytes(field::sample::LOCATION_ID, ids);
                let values = values.iter().map(|value| value.cast_unsigned());
                message.packed(field::sample::VALUE, values);
                message.fields(labels.of(sample.labels));
            });
        })?;
    }
    Ok(())
}

/// The ids of a stack's locations, leaf first.
///
/// Callers come before what they call, so ids of stacks fall along a stack, and where it meets
/// the one before it is found in one walk along both. From there on both have the same bytes:
/// they stay at the end of the buffer, and what differs is put before them.
#[derive(Default)]
struct LocationIds {
    buffer: Vec<u8>,
    /// Each place of the last stack, root first, and how many bytes it and its callers have.
    places: Vec<(StackId, usize)>,
    /// The places that the last stack does not have, leaf first.
    new: Vec<(StackId, u64)>,
}

impl LocationIds {
    fn of(&mut self, profile: &Profile, stack: StackId) -> &[u8] {
        self.new.clear();
        let mut at = stack;
        loop {
            let Some((location, caller)) = profile.leaf(at) else {
                self.places.clear();
                break;
            };
            while self.places.pop_if(|(place, _)| *place > at).is_some() {}
            if self.places.last().is_some_and(|&(place, _)| place == at) {
                break;
            }
            self.new.push((at, u64::from(location.0).saturating_add(1)));
            at = caller;
        }
        let mut length = self.places.last().map_or(0, |&(_, length)| length);
        self.make_room(length, self.new.len().saturating_mul(LONGEST_VARINT));
        for &(at, id) in self.new.iter().rev() {
            let mut bytes = [0; LONGEST_VARINT];
            let taken = varint_in(&mut bytes, id);
            length = length.saturating_add(taken);
            let start = self.buffer.len().saturating_sub(length);
            let room = self.buffer.iter_mut().skip(start);
            room.zip(bytes.iter().take(taken)).for_each(|(room, &byte)| *room = byte);
            self.places.push((at, length));
        }
        self.buffer.get(self.buffer.len().saturating_sub(length)..).unwrap_or_default()
    }

    /// Room for `more` bytes before the last `length`.
    fn make_room(&mut self, length: usize, more: usize) {
        let old = self.buffer.len();
        let needed = length.saturating_add(more);
        if old >= needed {
            return;
        }
        self.buffer.resize(needed.saturating_mul(2), 0);
        let new = self.buffer.len();
        self.buffer.copy_within(old.saturating_sub(length)..old, new.saturating_sub(length));
    }
}

/// Each set of labels as the fields of a sample.
struct Labels {
    fields: Body,
    /// Where each set ends, by position.
    ends: Vec<usize>,
}

impl Labels {
    fn new(profile: &Profile) -> Self {
        let mut fields = Body::default();
        let mut ends = Vec::new();
        for labels in profile.labels.iter() {
            for label in labels {
                fields.message(field::sample::LABEL, |message| {
                    message.number(field::label::KEY, string(label.key));
                    match label.value {
                        LabelValue::Text(text) => message.number(field::label::STR, string(text)),
                        LabelValue::Number { value, unit } => {
                            message.number(field::label::NUM, value.cast_unsigned());
                            message.number(field::label::NUM_UNIT, string(unit));
                        }
                    }
                });
            }
            ends.push(fields.as_bytes().len());
        }
        Self { fields, ends }
    }

    fn of(&self, id: LabelsId) -> &[u8] {
        let position = id.position();
        let start = position.checked_sub(1).and_then(|before| self.ends.get(before));
        let start = start.copied().unwrap_or(0);
        let end = self.ends.get(position).copied().unwrap_or(start);
        self.fields.as_bytes().get(start..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builder::ProfileBuilder;
    use crate::kind::FrameKind;
    use crate::pprof;

    fn stacks_of(profile: &Profile) -> Vec<(Vec<u64>, Vec<i64>)> {
        let address = |at| profile.location(at).address;
        let samples = profile.samples();
        samples
            .map(|s| (profile.stack(s.stack).map(address).collect(), s.values.to_vec()))
            .collect()
    }

    proptest! {
        /// Stacks of which some share callers, of more locations than one byte counts.
        #[test]
        fn stacks_are_read_as_they_were_written(
            drawn in prop::collection::vec((0_usize..40, prop::collection::vec(0_u64..300, 0..30), any::<i64>()), 0..40),
        ) {
            let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
            let mut made = vec![StackId::default()];
            for (below, callees, value) in drawn {
                let mut stack = made[below % made.len()];
                for address in callees {
                    let frame = builder.frame(FrameKind::Native, "f", "", "", 0);
                    let location = builder.location(address + 1, None, &[frame]);
                    stack = builder.called_from(stack, location);
                }
                made.push(stack);
                // Every sample is another one, however often its stack comes.
                let label = crate::model::Label {
                    key: builder.string("n"),
                    value: LabelValue::Number { value: made.len() as i64, unit: Default::default() },
                };
                let labels = builder.labels(&[label]);
                builder.add(stack, labels, &[value, -1]);
            }
            let profile = builder.finish();
            let mut bytes = Vec::new();
            pprof::encode_plain(&profile, &mut bytes).unwrap();
            prop_assert_eq!(stacks_of(&pprof::decode(&bytes).unwrap()), stacks_of(&profile));
        }
    }

    #[test]
    fn a_stack_of_another_profile_is_an_empty_one() {
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        let frame = builder.frame(FrameKind::Native, "f", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let known = builder.stack(&[location]);
        let profile = builder.finish();
        let mut ids = LocationIds::default();
        assert_eq!(ids.of(&profile, known), [1]);
        assert!(ids.of(&profile, StackId(77)).is_empty());
        assert_eq!(ids.of(&profile, known), [1]);
    }
}
