//! The end of a recording: everything is symbolized once, and the aggregate becomes one profile.

use std::io;

use strata_agent::aggregate::Aggregate;
use strata_agent::engine::Engine;
use strata_kinds::Kinds;
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
    let aggregate = std::mem::replace(&mut engine.aggregate, Aggregate::new(Kinds::NONE));
    symbolizer.begin(engine, &aggregate);
    symbolizer.wait(progress);
    engine.managed.release();
    let mut build = Build::new(
        (&engine.table, &engine.groups),
        &aggregate,
        symbolizer.symbols(),
        circumstances,
    );
    for row in aggregate.rows() {
        build.add(&row);
    }
    if !aggregate.times_kept().is_empty() {
        build.add_ticks(aggregate.ticks(), engine.started());
    }
    let profile = build.finish();
    let shortfalls = symbolizer.end(&aggregate);
    engine.loading.add_helpers(symbolizer.helpers());
    // The summary speaks of it.
    engine.aggregate = aggregate;
    Ok((profile, shortfalls))
}
