//! A sink of files: one pprof file for each profile, in a folder for each service.
//!
//! A file appears under its name when it is whole. Nothing is ever removed: whoever asked for
//! files takes them away.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Outgoing;
use strata_profile::pprof;

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    pub written: u64,
    /// Profiles that could not be written.
    pub failed: u64,
    /// Why the last file was not written.
    pub trouble: Option<String>,
}

/// Bytes of a service's name in a path.
const LONGEST_NAME: usize = 100;

impl Folder {
    pub fn new(path: PathBuf) -> Self {
        Self { path, written: 0, failed: 0, trouble: None }
    }

    pub fn write(&mut self, profiles: &[Outgoing]) {
        for outgoing in profiles {
            match write(&self.path, outgoing) {
                Ok(()) => {
                    self.written += 1;
                    self.trouble = None;
                }
                Err(error) => {
                    self.failed += 1;
                    let text = format!("{}: {error}", self.path.display());
                    if self.trouble.as_ref() != Some(&text) {
                        tracing::warn!("a profile was not written: {text}");
                    }
                    self.trouble = Some(text);
                }
            }
        }
    }
}

fn write(folder: &Path, outgoing: &Outgoing) -> io::Result<()> {
    let origin = &outgoing.origin;
    let folder = folder.join(plain(&origin.service));
    fs::create_dir_all(&folder)?;
    let time = outgoing.profile.start_nanos / 1_000_000;
    let name = format!("{time}-{}-{}", plain(&origin.runtime_id), origin.sequence);
    let (part, whole) =
        (folder.join(format!(".{name}.part")), folder.join(format!("{name}.pb.gz")));
    let mut file = File::create(&part)?;
    let written = pprof::encode(&outgoing.profile, &mut file)
        .map_err(io::Error::other)
        .and_then(|()| file.flush())
        .and_then(|()| fs::rename(&part, &whole));
    if written.is_err() {
        // Half a profile is of no use.
        let _ = fs::remove_file(&part);
    }
    written
}

/// A name that is one part of a path, whatever it was.
fn plain(name: &str) -> String {
    let keep = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
        '.' => '.',
        _ => '_',
    };
    let plain: String = name.chars().take(LONGEST_NAME).map(keep).collect();
    let only_dots = plain.bytes().all(|byte| byte == b'.');
    if only_dots { format!("_{plain}") } else { plain }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::origin::Origin;
    use strata_profile::ProfileBuilder;

    use super::*;

    #[test]
    fn what_could_not_be_written_is_counted_for_good() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("profiles");
        let profile = Arc::new(ProfileBuilder::new(&[("samples", "count")]).finish());
        let origin = Arc::new(Origin { service: "shop".to_owned(), ..Origin::default() });
        let profiles = [Outgoing { profile, origin }];
        let mut folder = Folder::new(path.clone());
        fs::write(&path, "in the way").unwrap();
        folder.write(&profiles);
        assert_eq!((folder.written, folder.failed, folder.trouble.is_some()), (0, 1, true));
        fs::remove_file(&path).unwrap();
        folder.write(&profiles);
        assert_eq!((folder.written, folder.failed, folder.trouble.is_some()), (1, 1, false));
    }

    #[test]
    fn a_services_name_cannot_lead_elsewhere() {
        for (name, expected) in
            [("../../etc", ".._.._etc"), ("..", "_.."), ("", "_"), ("shop/web", "shop_web")]
        {
            assert_eq!(plain(name), expected);
        }
        assert_eq!(plain(&"x".repeat(1000)).len(), LONGEST_NAME);
    }
}
