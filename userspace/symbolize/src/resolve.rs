//! The end of a recording: every place is named once, and the aggregate becomes one profile.

use strata_profile::Profile;

use super::build::{Build, Circumstances};
use super::naming::Naming;
use crate::Shortfalls;
use strata_agent::aggregate::Aggregate;
use strata_agent::engine::Engine;

/// Names everything and builds the profile. `progress` is told how far it is: done, of all.
pub fn profile(
    engine: &mut Engine,
    circumstances: &Circumstances,
    signatures: bool,
    mut progress: impl FnMut(usize, usize),
) -> (Profile, Shortfalls) {
    let mut shortfalls = Shortfalls::default();
    let mut naming = Naming::new(usize::MAX, signatures);
    let aggregate = std::mem::replace(&mut engine.aggregate, Aggregate::new(false));
    naming.name_all(engine, &aggregate, &mut shortfalls, None, |_, done, of| progress(done, of));
    engine.managed.release();
    let mut build = Build::new(engine, &aggregate, &naming, circumstances);
    for (thread, stack, count) in aggregate.counts() {
        build.add(thread, stack, count);
    }
    if let Some(ticks) = aggregate.timeline() {
        build.add_ticks(ticks, engine.started);
    }
    let profile = build.finish();
    // The summary speaks of it.
    engine.aggregate = aggregate;
    (profile, shortfalls)
}
