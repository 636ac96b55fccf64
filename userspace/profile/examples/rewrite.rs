//! Reads a pprof or folded file and writes it in the form the second file's name asks for.

use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

use strata_profile::{Format, WriteOptions, read, summary, write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(to)) = (paths.next(), paths.next()) else {
        return Err("usage: rewrite IN OUT".into());
    };
    let format = Format::from_path(&to).ok_or("no format has this ending")?;
    let before = Instant::now();
    let profile = read(&fs::read(&from)?)?;
    println!("read in {:?}: {} distinct samples", before.elapsed(), profile.sample_count());
    let before = Instant::now();
    write(&profile, format, &WriteOptions::for_path(&to), BufWriter::new(File::create(&to)?))?;
    println!("wrote {} in {:?}", to.display(), before.elapsed());
    let summary = summary::summarize(&profile, profile.shown_sample_type(), 5);
    println!("{}", serde_json::to_string_pretty(&summary)?);
    Ok(())
}
