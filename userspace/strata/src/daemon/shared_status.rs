//! The daemon's status, shared between threads: updated by the loop, and completed from the
//! pipeline and the exporters' queues when it is requested.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strata_export::Queues;
use strata_export::pipeline::Figures;

use crate::status::{SilentDisk, Status};

/// When the daemon was started, by both clocks: one may be set.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub wall: SystemTime,
    pub at: Instant,
}

impl Started {
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), at: Instant::now() }
    }
}

pub struct SharedStatus {
    pub started: Started,
    /// The loop's part; the rest is filled in when it is requested.
    of_loop: Mutex<Status>,
    pipeline: Arc<Mutex<Figures>>,
    queues: Arc<Queues>,
    /// When the loop turned last: milliseconds since the start. Read without a lock, so that no
    /// probe waits for a thread that has no CPU.
    beat: AtomicU64,
    /// Why metrics are not served at their address.
    metrics_trouble: Mutex<Option<String>>,
    /// What a health probe gets to know of disks that do not answer.
    of_disks: Mutex<String>,
}

/// Disks that a health probe names.
const MOST_NAMED: usize = 8;
/// Bytes of it.
pub const DISKS_BYTES: usize = 1024;

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

fn read<T: Clone>(mutex: &Mutex<T>) -> T {
    mutex.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn write<T>(mutex: &Mutex<T>, value: T) {
    *mutex.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

impl SharedStatus {
    pub fn new(pipeline: Arc<Mutex<Figures>>, queues: Arc<Queues>) -> Self {
        Self {
            started: Started::now(),
            of_loop: Mutex::default(),
            pipeline,
            queues,
            beat: AtomicU64::new(0),
            metrics_trouble: Mutex::default(),
            of_disks: Mutex::default(),
        }
    }

    /// How long the loop has not turned, when that is too long. Neither waits nor allocates.
    pub fn stuck_for(&self) -> Option<Duration> {
        let beat = Duration::from_millis(self.beat.load(Ordering::Relaxed));
        let since = self.started.at.elapsed().saturating_sub(beat);
        (since > STUCK).then_some(since)
    }

    /// Whether the daemon does its work; else why not.
    pub fn health(&self) -> Result<(), String> {
        match self.stuck_for() {
            None => Ok(()),
            Some(since) => {
                Err(format!("the sampling loop has not turned for {} s", since.as_secs()))
            }
        }
    }

    pub fn metrics_trouble(&self) -> Option<String> {
        read(&self.metrics_trouble)
    }

    pub fn set_metrics_trouble(&self, trouble: Option<String>) {
        write(&self.metrics_trouble, trouble);
    }

    /// The disks that do not answer, of the store and of exporters.
    pub fn silent_disks(&self) -> Vec<SilentDisk> {
        self.queues.disks().silent().iter().map(Into::into).collect()
    }

    /// What health probes get to know of these.
    pub fn name_disks(&self, silent: &[SilentDisk]) {
        let lines = silent.iter().take(MOST_NAMED).map(|disk| format!("{}\n", disk.text()));
        let mut text: String = lines.collect();
        text.truncate(text.floor_char_boundary(DISKS_BYTES));
        write(&self.of_disks, text);
    }

    /// A line for each of some disks that do not answer. Neither waits nor allocates: while the text
    /// is changed, there is none.
    pub fn with_disks<Out>(&self, use_text: impl FnOnce(&str) -> Out) -> Out {
        match self.of_disks.try_lock() {
            Ok(text) => use_text(&text),
            Err(TryLockError::Poisoned(text)) => use_text(&text.into_inner()),
            Err(TryLockError::WouldBlock) => use_text(""),
        }
    }

    /// The loop is alive.
    pub fn turned(&self) {
        let now = u64::try_from(self.started.at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(now, Ordering::Relaxed);
    }

    pub fn set(&self, of_loop: Status) {
        write(&self.of_loop, of_loop);
    }

    /// Of all parts.
    pub fn status(&self) -> Status {
        let mut status = read(&self.of_loop);
        status.version = env!("CARGO_PKG_VERSION").to_owned();
        status.pid = std::process::id();
        status.uptime_seconds = self.started.at.elapsed().as_secs();
        status.start_time_seconds =
            self.started.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        status.metrics_trouble = self.metrics_trouble();
        let exporters = self.queues.health();
        status.failing_exporters = exporters
            .iter()
            .filter(|exporter| exporter.failing_since.is_some())
            .map(|exporter| exporter.name.clone())
            .collect();
        status.exporters = exporters.iter().map(Into::into).collect();
        add_pipeline(&mut status, &read(&self.pipeline));
        let files = status.file_exporters.iter();
        let failing_files = files.filter(|file| file.failing_seconds.is_some());
        status.failing_exporters.extend(failing_files.map(|file| file.name.clone()));
        status.silent_disks = self.silent_disks();
        let is_well = status.failing_exporters.is_empty()
            && !status.store.fails
            && status.sampling.trouble.is_none()
            && status.silent_disks.is_empty();
        status.healthy = self.health().is_ok() && is_well;
        status
    }
}

fn add_pipeline(status: &mut Status, pipeline: &Figures) {
    let profiles = &mut status.profiles;
    profiles.undelivered_batches = pipeline.undelivered;
    profiles.refused_own_destination = pipeline.refused_own;
    profiles.trimmed_stacks = pipeline.cuts.trimmed_stacks;
    profiles.unwritable = pipeline.cuts.failed_profiles;
    profiles.other_label_values = pipeline.cuts.other_values;
    profiles.waiting = profiles.waiting.saturating_add(pipeline.pending);
    profiles.early_sends = pipeline.early;
    profiles.pooled_short = pipeline.pooled.short;
    profiles.pooled_over_limit = pipeline.pooled.over;
    let store = &mut status.store;
    store.profiles = pipeline.kept.written;
    store.late_named = pipeline.kept.late_named;
    store.folded = pipeline.kept.folded;
    profiles.late_unnamed = profiles.late_unnamed.saturating_add(pipeline.kept.late_refused);
    store.dropped = pipeline.kept.dropped;
    store.bytes = pipeline.store_bytes;
    store.dictionaries = pipeline.store_dictionaries;
    store.not_stored = pipeline.not_stored;
    store.fails = pipeline.store_fails;
    store.trouble = pipeline.store_trouble.clone();
    status.file_exporters = pipeline.files.iter().map(Into::into).collect();
}

#[cfg(test)]
mod tests {
    use strata_export::Clock;
    use strata_export::pipeline::FileFigures;

    use super::*;

    fn without_exporters(pipeline: Arc<Mutex<Figures>>) -> SharedStatus {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let queues = Queues::start(Vec::new(), Clock::real());
        let queues = runtime.expect("a runtime").block_on(queues).expect("no exporters");
        SharedStatus::new(pipeline, Arc::new(queues))
    }

    #[test]
    fn a_folder_that_cannot_be_written_makes_the_daemon_unhealthy_until_it_can() {
        let pipeline: Arc<Mutex<Figures>> = Arc::default();
        let shared = without_exporters(pipeline.clone());
        let file = |failing_since, trouble: Option<&str>| {
            let trouble = trouble.map(str::to_owned);
            let name = "files".to_owned();
            vec![FileFigures { name, failed: 3, failing_since, trouble, ..FileFigures::default() }]
        };
        write(
            &pipeline,
            Figures { files: file(Some(Instant::now()), Some("no room")), ..Figures::default() },
        );
        let status = shared.status();
        assert_eq!((status.healthy, status.failing_exporters), (false, vec!["files".to_owned()]));
        assert_eq!(status.file_exporters[0].trouble.as_deref(), Some("no room"));
        write(&pipeline, Figures { files: file(None, None), ..Figures::default() });
        let status = shared.status();
        assert_eq!((status.healthy, status.failing_exporters), (true, Vec::new()));
    }

    #[test]
    fn the_state_of_disks_reaches_a_probe_in_few_bytes() {
        let status = without_exporters(Arc::default());
        let disk = |path: String| SilentDisk { path, seconds: 12 };
        status.name_disks(&[disk("/a".to_owned()), disk("/\u{e4}".repeat(DISKS_BYTES))]);
        let text = status.with_disks(str::to_owned);
        assert!(text.starts_with("/a: its disk has not answered for 12 s\n/\u{e4}/"), "{text}");
        assert!(text.len() <= DISKS_BYTES && text.len() + 2 > DISKS_BYTES);
        status.name_disks(&[]);
        assert_eq!(status.with_disks(str::to_owned), "");
    }
}
