//! Profiles as files: one pprof file for each profile, in a folder for each service.
//!
//! A file appears under its name when it is complete. Nothing is ever removed here: the consumer
//! removes the files. Until then the folder takes [`MOST_BYTES`] at most.
//!
//! Invariant: everything is done below the descriptor of the configured folder, and no link in it
//! is followed: targets choose the names of services, and other users may be allowed to write
//! there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Outgoing;
use crate::causes::with_causes;
use crate::pipeline::LASTING;
use crate::queue::QUIET;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use strata_profile::pprof;

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    pub written: u64,
    /// Profiles that could not be written.
    pub failed: u64,
    /// While it does not write every profile.
    pub failure: Option<Failure>,
    /// When a failure may be logged again.
    next_warning: Option<Instant>,
    /// Bytes in it, and when they were counted.
    taken: Option<(u64, Instant)>,
    most_bytes: u64,
}

/// A folder that does not take every profile.
#[derive(Clone, Debug)]
pub struct Failure {
    pub since: Instant,
    /// When a profile was not written for the last time, and why.
    last: Instant,
    pub reason: String,
    /// Profiles that were not written.
    lost: u64,
    is_logged: bool,
}

/// Profiles tell what runs on the host, and messages of exceptions: they are for strata's own user and group.
const FOLDER: u32 = 0o750;
const FILE: u32 = 0o640;
/// Bytes of a service's name in a path.
const LONGEST_NAME: usize = 100;
/// Bytes of all files of a folder.
const MOST_BYTES: u64 = 4 << 30;
/// Interval of checks of a full folder: files may have been removed.
const COUNT_AGAIN: Duration = Duration::from_secs(60);

impl Folder {
    pub fn new(path: PathBuf) -> Self {
        let (failure, next_warning) = (None, None);
        let (written, failed, taken) = (0, 0, None);
        Self { path, written, failed, failure, next_warning, taken, most_bytes: MOST_BYTES }
    }

    pub fn write(&mut self, profiles: &[Outgoing]) {
        self.write_at(profiles, Instant::now());
    }

    fn write_at(&mut self, profiles: &[Outgoing], now: Instant) {
        for outgoing in profiles {
            match self.write_one(outgoing) {
                Ok(()) => {
                    self.written += 1;
                    self.note_success(now);
                }
                Err(error) => {
                    self.failed += 1;
                    self.note_failure(
                        format!("{}: {}", self.path.display(), with_causes(&error)),
                        now,
                    );
                }
            }
        }
    }

    fn note_failure(&mut self, reason: String, now: Instant) {
        let failure = self.failure.get_or_insert_with(|| Failure {
            since: now,
            last: now,
            reason: String::new(),
            lost: 0,
            is_logged: false,
        });
        failure.last = now;
        failure.lost += 1;
        failure.reason = reason;
        if self.next_warning.is_none_or(|next| next <= now) {
            self.next_warning = Some(now + QUIET);
            failure.is_logged = true;
            tracing::warn!(
                profiles_lost = failure.lost,
                "profiles cannot be written: {}",
                failure.reason
            );
        }
    }

    /// On a disk that is nearly full a small profile has room and the next has not: a folder takes
    /// profiles again when none has failed for a while.
    fn note_success(&mut self, now: Instant) {
        let is_over = |failure: &mut Failure| now.duration_since(failure.last) >= LASTING;
        let Some(failure) = self.failure.take_if(is_over) else { return };
        if failure.is_logged {
            tracing::warn!(
                profiles_lost = failure.lost,
                "{}: profiles are written again, after {} s",
                self.path.display(),
                now.duration_since(failure.since).as_secs()
            );
        }
    }

    fn write_one(&mut self, outgoing: &Outgoing) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(FOLDER).create(&self.path)?;
        let folder = open_folder(rustix::fs::CWD, &self.path)?;
        // What was written since is added: only taking away shows in a count alone.
        let (taken, counted) = match self.taken {
            Some((bytes, at)) if bytes < self.most_bytes || at.elapsed() < COUNT_AGAIN => {
                (bytes, at)
            }
            _ => (bytes_of(&folder)?, Instant::now()),
        };
        self.taken = Some((taken, counted));
        if taken >= self.most_bytes {
            return Err(io::Error::other(format!(
                "its files take {taken} bytes, and more than {} are not written: take some away",
                self.most_bytes
            )));
        }
        let written = write(&folder, outgoing)?;
        self.taken = Some((taken.saturating_add(written), counted));
        Ok(())
    }
}

/// A folder below another; a link in its place is refused.
fn open_folder(below: impl std::os::fd::AsFd, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(below, name, flags, Mode::empty())?)
}

/// Bytes of the files in the folders of a folder.
fn bytes_of(folder: &OwnedFd) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes().iter().all(|byte| *byte == b'.') {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(service) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { continue };
        for file in Dir::read_from(&service)? {
            let found = rustix::fs::statat(&service, file?.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let Ok(found) = found else { continue };
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                bytes = bytes.saturating_add(u64::try_from(found.st_size).unwrap_or(0));
            }
        }
    }
    Ok(bytes)
}

/// Writes one profile; its bytes.
fn write(folder: &OwnedFd, outgoing: &Outgoing) -> io::Result<u64> {
    let origin = &outgoing.origin;
    let service = plain(&origin.service);
    match rustix::fs::mkdirat(folder, service.as_str(), Mode::from_raw_mode(FOLDER)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = open_folder(folder, Path::new(&service))?;
    let time = outgoing.profile.start_nanos / 1_000_000;
    let name = format!("{time}-{}-{}", plain(&origin.runtime_id), origin.sequence);
    let (part, whole) = (format!(".{name}.part"), format!("{name}.pb.gz"));
    let remove = || rustix::fs::unlinkat(&folder, part.as_str(), AtFlags::empty());
    // Left by a daemon that was killed, or created by another user.
    let _ = remove();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(FILE);
    let file = File::from(rustix::fs::openat(&folder, part.as_str(), flags, mode)?);
    let mut buffered = BufWriter::new(&file);
    let written = pprof::encode(&outgoing.profile, &mut buffered)
        .map_err(io::Error::other)
        .and_then(|()| buffered.flush())
        .and_then(|()| Ok(rustix::fs::renameat(&folder, part.as_str(), &folder, whole.as_str())?))
        .and_then(|()| Ok(file.metadata()?.len()));
    if written.is_err() {
        // Half a profile is of no use.
        let _ = remove();
    }
    written
}

/// Turns any name into a single path component.
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
        let now = Instant::now();
        fs::write(&path, "in the way").unwrap();
        folder.write_at(&profiles, now);
        assert_eq!((folder.written, folder.failed, folder.failure.is_some()), (0, 1, true));
        fs::remove_file(&path).unwrap();
        folder.write_at(&profiles, now + LASTING);
        assert_eq!((folder.written, folder.failed, folder.failure.is_some()), (1, 1, false));
    }

    #[test]
    fn a_folder_that_takes_some_profiles_only_is_failing() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", place.path().join("shop")).unwrap();
        let mut folder = Folder::new(place.path().to_owned());
        let now = Instant::now();
        for second in 0..10 {
            let now = now + Duration::from_secs(second);
            folder.write_at(&profiles_of("shop"), now);
            folder.write_at(&profiles_of("web"), now);
        }
        let failure = folder.failure.as_ref().unwrap();
        assert_eq!((folder.written, folder.failed), (10, 10));
        assert_eq!((failure.since, failure.lost), (now, 10));
    }

    #[test]
    fn the_reason_of_a_failure_is_that_of_the_kernel() {
        // Every write to it fails with ENOSPC.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let [Outgoing { profile, .. }] = profiles_of("shop");
        let error = io::Error::other(pprof::encode(&profile, full).unwrap_err());
        let mut folder = Folder::new("/profiles".into());
        folder.note_failure(with_causes(&error), Instant::now());
        let reason = folder.failure.unwrap().reason;
        assert!(reason.ends_with("No space left on device (os error 28)"), "{reason}");
    }

    #[test]
    fn a_failure_that_lasts_is_logged_now_and_then() {
        let mut folder = Folder::new("/profiles".into());
        let start = Instant::now();
        let mut logged = 0;
        for second in (0..1800).step_by(15) {
            let before = folder.next_warning;
            folder.note_failure("no room".to_owned(), start + Duration::from_secs(second));
            logged += u32::from(folder.next_warning != before);
        }
        assert_eq!(logged, 3);
    }

    fn profiles_of(service: &str) -> [Outgoing; 1] {
        let profile = Arc::new(ProfileBuilder::new(&[("samples", "count")]).finish());
        let origin = Arc::new(Origin { service: service.to_owned(), ..Origin::default() });
        [Outgoing { profile, origin }]
    }

    #[test]
    fn no_link_leads_out_of_the_folder() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), place.path().join("shop")).unwrap();
        let mut folder = Folder::new(place.path().to_owned());
        folder.write(&profiles_of("shop"));
        assert_eq!((folder.written, folder.failed), (0, 1));
        // A link in the place of the file itself.
        folder.write(&profiles_of("web"));
        let web = place.path().join("web");
        let name = fs::read_dir(&web).unwrap().flatten().next().unwrap().file_name();
        let target = outside.path().join("target");
        fs::write(&target, "kept").unwrap();
        fs::remove_file(web.join(&name)).unwrap();
        let part = format!(".{}.part", name.to_string_lossy().trim_end_matches(".pb.gz"));
        for link in [web.join(&name), web.join(part)] {
            std::os::unix::fs::symlink(&target, link).unwrap();
        }
        folder.write(&profiles_of("web"));
        assert_eq!((folder.written, folder.failed), (2, 1));
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        assert!(fs::symlink_metadata(web.join(&name)).unwrap().is_file());
    }

    #[test]
    fn a_full_folder_takes_no_more_until_files_were_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder { most_bytes: 1, ..Folder::new(place.path().to_owned()) };
        folder.write(&profiles_of("a"));
        folder.write(&profiles_of("b"));
        assert_eq!((folder.written, folder.failed), (1, 1));
        let reason = folder.failure.as_ref().map(|failure| failure.reason.as_str());
        assert!(reason.is_some_and(|reason| reason.contains("take some away")));
        fs::remove_dir_all(place.path().join("a")).unwrap();
        // The folder's size is measured again after a while.
        folder.taken = None;
        folder.write(&profiles_of("b"));
        assert_eq!((folder.written, folder.failed), (2, 1));
    }

    #[test]
    fn a_folder_that_is_emptied_is_counted_before_it_is_called_full() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(place.path().to_owned());
        let long_ago = Instant::now().checked_sub(COUNT_AGAIN).unwrap();
        folder.taken = Some((0, long_ago));
        folder.write(&profiles_of("a"));
        // What was written since does not make the count a younger one.
        assert_eq!(folder.taken.map(|(_, counted)| counted), Some(long_ago));
        folder.taken = Some((folder.most_bytes, long_ago));
        folder.write(&profiles_of("b"));
        assert_eq!(folder.failed, 0);
        assert!(folder.taken.is_some_and(|(bytes, _)| bytes < folder.most_bytes));
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
