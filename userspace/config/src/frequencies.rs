//! How often kinds are sampled, as settings and rules state it.

use strata_kinds::{Kind, Kinds, Rate};

use crate::layers::Layers;
use crate::origin::Sourced;

/// The kinds that a clock samples, and that this version has a sampler for.
pub(crate) fn sampled_by_clocks() -> impl Iterator<Item = (Kind, Rate)> {
    Kinds::all().iter().filter_map(|kind| Some((kind, kind.info().rate?)))
}

/// Whether a frequency is possible.
pub(crate) fn check_frequency(layers: &mut Layers<'_>, path: &[&str], frequency: &Sourced<u32>) {
    if !(1..=1000).contains(&frequency.value) {
        layers.refuse(path, frequency, "from 1 to 1000 samples a second", None);
    }
}
