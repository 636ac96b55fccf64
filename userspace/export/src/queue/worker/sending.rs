//! Requests and their outcomes.

use std::time::Duration;

use crate::Outcome;
use tokio::task::{Id, JoinError};

use super::Worker;
use super::warnings::QUIET;
use crate::queue::order::Pending;
use crate::queue::pace::Epoch;
use crate::spool::Key;

/// The longest that a batch is set aside which the server cannot take.
const LONGEST_ASIDE: Duration = Duration::from_secs(600);

/// A request under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) key: Key,
    pub(super) pending: Pending,
    body_bytes: usize,
    epoch: Epoch,
    /// Of the credential.
    generation: u64,
}

impl Worker {
    /// Begins as many requests as allowed, oldest batch first.
    pub(super) async fn send_due(&mut self) {
        if self.stopping.is_some_and(|stopping| !stopping.sends) {
            return;
        }
        loop {
            let now = self.clock.now();
            if self.flights.len() >= self.pace.at_once(now) {
                return;
            }
            // Time passes while the disk works.
            self.expire();
            let Some(key) = self.queue.next(now, self.pace.failures()) else { return };
            if self.login.next_look(&self.plan).is_some_and(|moment| moment <= now) {
                self.look(false).await;
            }
            let Some(endpoint) = self.login.endpoint().cloned() else { return };
            if !self.is_within_reach(key) || !self.has_memory_for(key) {
                return;
            }
            let Some(pending) = self.queue.remove(key) else { return };
            let Some(batch) = self.body(key, &pending).await else { continue };
            if !self.plan.backend.makes(&batch) {
                self.drop_foreign(key, &pending);
                continue;
            }
            if let Some(spool) = &mut self.spool {
                spool.pin(key, true);
            }
            self.pace.begun(now);
            let (epoch, generation) = (self.pace.epoch(), self.login.generation());
            let body_bytes = batch.body.len();
            let request = self.requests.spawn(async move { endpoint.send(&batch).await });
            let flight = Flight { key, pending, body_bytes, epoch, generation };
            self.flights.insert(request.id(), flight);
        }
    }

    /// A batch that is made for another kind of server than is configured now: none would take it, and
    /// it would be the first to be sent.
    fn drop_foreign(&mut self, key: Key, pending: &Pending) {
        self.health.drops.reconfigured.add_batch(pending.profiles);
        if pending.is_stored {
            self.finished.push(key);
        }
    }

    /// In memory, or in a spool that is open.
    pub(super) fn is_within_reach(&self, key: Key) -> bool {
        self.spool.is_some() || self.queue.body(key).is_some()
    }

    /// One request is always allowed.
    fn has_memory_for(&self, key: Key) -> bool {
        let flying = self.flights.values().map(|flight| flight.body_bytes);
        let flying = flying.fold(0, usize::saturating_add);
        let more = self.queue.bytes_of(key);
        self.flights.is_empty() || flying.saturating_add(more) <= self.plan.memory
    }

    pub(super) async fn judge(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = ended.unwrap_or_else(|error| {
            let reason = "the request failed inside strata".to_owned();
            (error.id(), Outcome::Retry { after: None, reason })
        });
        let Some(flight) = self.landed(id) else { return };
        match outcome {
            Outcome::Delivered { rejected, message } => self.delivered(flight, rejected, message),
            Outcome::Retry { after, reason } => self.failed(flight, after, reason),
            Outcome::Refused { reason, .. } => self.refused(flight, reason),
            Outcome::Denied { status, reason } => self.denied(flight, status, reason).await,
        }
    }

    pub(super) fn flight_of(&mut self, key: Key) -> Option<&mut Flight> {
        self.flights.values_mut().find(|flight| flight.key == key)
    }

    fn landed(&mut self, id: Id) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        if let Some(spool) = &mut self.spool {
            spool.pin(flight.key, false);
        }
        Some(flight)
    }

    /// The request was given up before its end.
    pub(super) fn put_back(&mut self, id: Id) {
        if let Some(flight) = self.landed(id) {
            self.queue.insert(flight.key, flight.pending);
        }
    }

    fn delivered(&mut self, flight: Flight, rejected: u64, message: Option<String>) {
        let profiles = u64::from(flight.pending.profiles);
        self.health.delivered.add(1, profiles.saturating_sub(rejected));
        self.health.rejected_profiles = self.health.rejected_profiles.saturating_add(rejected);
        let bytes = &mut self.health.delivered_bytes;
        *bytes = bytes.saturating_add(flight.body_bytes as u64);
        self.recovered();
        self.health.last_success = Some(self.clock.time());
        let now = self.clock.now();
        if rejected > 0 && self.next_rejection_warning <= now {
            self.next_rejection_warning = now.saturating_add(QUIET);
            tracing::warn!(
                exporter = self.plan.name,
                "the server took a request and rejected {rejected} of its profiles: {}",
                message.as_deref().unwrap_or("without a reason")
            );
        }
        if let Some(message) = message {
            self.health.last_error = self.trouble(message);
        }
        self.queue.suspect_older(flight.key);
        self.pace.succeeded(flight.epoch);
        self.finish(&flight);
    }

    fn failed(&mut self, flight: Flight, after: Option<Duration>, reason: String) {
        let now = self.clock.now();
        let Flight { key, mut pending, epoch, .. } = flight;
        pending.attempts = pending.attempts.saturating_add(1);
        let is_its_own_fault = pending.is_suspect && self.pace.failures() == 0 && after.is_none();
        if pending.is_suspect {
            let wait = self.pace.waits.after(pending.attempts, fastrand::f64());
            let wait = wait.max(self.pace.waits.longest).min(LONGEST_ASIDE);
            pending.not_before = Some(now.saturating_add(wait));
        }
        if !is_its_own_fault {
            self.pace.failed(epoch, now, after, fastrand::f64());
        }
        self.health.retries = self.health.retries.saturating_add(1);
        self.is_failing(&reason);
        self.health.last_error = self.trouble(reason);
        self.queue.insert(key, pending);
    }

    /// The endpoint takes nothing as it is configured.
    async fn denied(&mut self, flight: Flight, status: Option<u16>, reason: String) {
        if !self.plan.keeps_denied {
            return self.refused(flight, reason);
        }
        if matches!(status, Some(401 | 403)) && self.plan.credential.path().is_some() {
            self.look(true).await;
            if self.login.generation() != flight.generation {
                self.health.retries = self.health.retries.saturating_add(1);
                self.health.last_error = self.trouble(reason);
                self.queue.insert(flight.key, flight.pending);
                return;
            }
        }
        // No batch is at fault: none is set aside for it.
        self.pace.failed(flight.epoch, self.clock.now(), None, fastrand::f64());
        self.health.retries = self.health.retries.saturating_add(1);
        self.is_failing(&reason);
        self.health.last_error = self.trouble(reason);
        self.queue.insert(flight.key, flight.pending);
    }

    /// The server will never take this batch.
    fn refused(&mut self, flight: Flight, reason: String) {
        let now = self.clock.now();
        if self.next_refusal_warning <= now {
            self.next_refusal_warning = now.saturating_add(QUIET);
            let dropped = if self.plan.reports_losses { ", which are dropped" } else { "" };
            let others = match flight.pending.profiles {
                0 | 1 => "",
                _ => " (of others in their request it may have stored some)",
            };
            tracing::warn!(
                exporter = self.plan.name,
                "the server refuses profiles{dropped}{others}: {reason}"
            );
        }
        self.health.last_error = self.trouble(reason.clone());
        self.health.drops.refused.add_batch(flight.pending.profiles);
        self.health.last_refusal = self.trouble(reason);
        // It answered, so it is reachable.
        self.pace.succeeded(flight.epoch);
        self.finish(&flight);
    }

    fn is_failing(&mut self, reason: &str) {
        self.health.failing_since.get_or_insert(self.clock.time());
        if self.warnings.failed(self.clock.now()) {
            let minutes = self.plan.spool_age.as_secs() / 60;
            let waiting = match &self.plan.spool_dir {
                Some(_) => format!("profiles wait in the spool for up to {minutes} minutes"),
                None => "profiles wait in memory, and it is tried again".to_owned(),
            };
            tracing::warn!(exporter = self.plan.name, "a delivery failed; {waiting}: {reason}");
        }
    }

    fn recovered(&mut self) {
        let failing_since = self.health.failing_since.take();
        if self.warnings.recovered()
            && let Some(since) = self.health.last_success.or(failing_since)
        {
            let lasted = self.clock.time().duration_since(since).unwrap_or_default();
            tracing::warn!(
                exporter = self.plan.name,
                waiting_bytes = self.health.spooled_bytes,
                "delivers again, for the first time in {} s",
                lasted.as_secs()
            );
        }
    }

    fn finish(&mut self, flight: &Flight) {
        if flight.pending.is_stored {
            self.finished.push(flight.key);
        }
    }

    /// Checks the file of the credential.
    async fn look(&mut self, is_doubted: bool) {
        let (mut login, plan) = (self.login.clone(), self.plan.clone());
        let now = self.clock.now();
        let busy = plan.credential.path().map(|path| self.disks.begin(path));
        let looked = tokio::task::spawn_blocking(move || {
            let looked = login.look(&plan, now, is_doubted);
            drop(busy);
            (login, looked)
        });
        if let Ok((login, looked)) = looked.await {
            self.login = login;
            if let Err(error) = looked {
                self.is_failing(&error.to_string());
                self.health.last_error = self.trouble(error.to_string());
            }
        }
    }
}
