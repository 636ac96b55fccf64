//! The end of a recording: everything is symbolized once, and the aggregate becomes one profile.

use std::io;

use strata_agent::aggregate::Aggregate;
use strata_agent::engine::Engine;
use strata_profile::Profile;

use crate::Shortfalls;
use crate::build::{Build, Circumstances};
use crate::symbolizer::{Options, Symbolizer};

/// Symbolizes everything and builds the profile. `progress` gets how far it is: done, of all.
pub fn profile(
    engine: &mut Engine,
    circumstances: &Circumstances,
    signatures: bool,
    progress: impl FnMut(usize, usize),
) -> io::Result<(Profile, Shortfalls)> {
    let mut symbolizer = Symbolizer::start(Options::once(signatures), || {})?;
    let aggregate = std::mem::replace(&mut engine.aggregate, Aggregate::new(false));
    symbolizer.begin(engine, &aggregate);
    symbolizer.wait(progress);
    engine.managed.release();
    let mut build = Build::new(engine, &aggregate, symbolizer.symbols(), circumstances);
    for (thread, stack, count) in aggregate.counts() {
        build.add(thread, stack, count);
    }
    if let Some(ticks) = aggregate.timeline() {
        build.add_ticks(ticks, engine.started);
    }
    let profile = build.finish();
    let shortfalls = symbolizer.end(&aggregate);
    engine.loading.add_helpers(symbolizer.helpers());
    // The summary speaks of it.
    engine.aggregate = aggregate;
    Ok((profile, shortfalls))
}
