//! Changes the configuration of a running daemon: applied as a whole, or not at all.

use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use anyhow::{Result, bail};
use strata_config::Loaded;
use strata_config::rules::BridgePolicy;
use strata_export::pipeline::PipelineSettings;

use super::{Daemon, destinations, kernel_frequencies, own_pid, period, warn_of_orphans};
use crate::daemon::memory::Budget;
use crate::daemon::settings::{kept_times, sampled_kinds};

/// The time given to the pipeline, at a time, to take another configuration.
const CONFIGURING: Duration = Duration::from_millis(5);

impl Daemon {
    /// Applies the present configuration; keeps the old one if it is invalid.
    pub(super) async fn reload(&mut self) {
        self.manager.reloading();
        match self.try_reload().await {
            Ok(()) => {
                self.reloading.count += 1;
                self.reloading.trouble = None;
                let status = self.summary();
                tracing::info!("the configuration was reloaded: {status}");
                self.manager.ready(&status);
            }
            Err(error) => {
                tracing::error!("the configuration was not reloaded: {error:#}");
                self.reloading.trouble = Some(format!("{error:#}"));
                let status = "The configuration was not reloaded; the one before is used";
                self.manager.ready(status);
            }
        }
    }

    async fn try_reload(&mut self) -> Result<()> {
        let Loaded { configuration, notices, .. } = match self.reloading.source.load() {
            Ok(loaded) => loaded,
            Err(error) => {
                // The log file may have been renamed all the same.
                let before = &self.configuration;
                self.log.change(&before.log_target.value, before.log_level.value)?;
                return Err(error);
            }
        };
        let budget = Budget::of(configuration.memory_limit.value.0, configuration.exporters.len());
        let destinations = destinations(&configuration, &budget)?;
        // Samples taken under the old rules are flushed under them.
        self.engine.count_elapsed();
        self.meet_newcomers();
        self.flush_all().await;
        self.log.change(&configuration.log_target.value, configuration.log_level.value)?;
        if let Err(error) = self.reconfigure_pipeline(destinations.clone()).await {
            let before = &self.configuration;
            // It was possible before.
            _ = self.log.change(&before.log_target.value, before.log_level.value);
            return Err(error);
        }
        warn_of_orphans(destinations);
        for notice in notices {
            tracing::warn!("{notice}");
        }
        let frequencies = kernel_frequencies(&configuration);
        if frequencies != kernel_frequencies(&self.configuration) {
            // Samples taken meanwhile are weighed by the rate at which they were sampled.
            self.engine.pause();
            self.meet_newcomers();
            self.flush_all().await;
            self.engine.resume(&frequencies);
        }
        self.engine.aggregate.keep_times(kept_times(&configuration));
        let old = &self.configuration;
        if (configuration.metrics.value, &configuration.status_socket.value)
            != (old.metrics.value, &old.status_socket.value)
        {
            tracing::warn!("metrics.address and metrics.socket take effect after a restart");
        }
        if budget.ring != self.memory.budget.ring {
            tracing::warn!(
                "the size of the record ring, a part of memory_limit, changes with a restart only"
            );
        }
        if sampled_kinds(&configuration) != sampled_kinds(old) {
            tracing::warn!("types other than cpu take effect after a restart of the daemon");
        }
        if configuration.exception_messages.value != old.exception_messages.value {
            tracing::warn!("dotnet.exception_messages changes with a restart only");
        }
        if budget.tables != self.memory.budget.tables {
            self.engine.store.segments.set_limit(budget.tables);
        }
        self.engine.set_own_pid(own_pid(&configuration));
        self.engine.take_all_in();
        self.flusher.processes.configure(&configuration, &self.engine.table);
        self.runtimes.configure(&configuration.containers, &self.network);
        self.flusher.symbolizer.set_most(budget.names);
        self.flusher.processes.set_most_known(budget.process_metadata);
        self.engine.managed.set_budget(budget.bridges);
        self.engine.set_waiting_memory(budget.stacks);
        self.memory.watch.limit = budget.limit;
        self.memory.budget = budget;
        self.period = period(&configuration);
        self.configuration = configuration;
        // Rules may use variables that were not read until now.
        self.flusher.processes.settle(&self.engine.table);
        self.ask_bridges_again();
        Ok(())
    }

    /// Waits until the pipeline has processed earlier messages, while the engine turns.
    async fn reconfigure_pipeline(&mut self, settings: PipelineSettings) -> Result<()> {
        let outcome = self.publisher.configure(settings);
        loop {
            match outcome.try_recv() {
                Ok(outcome) => return Ok(outcome?),
                Err(TryRecvError::Disconnected) => bail!("the pipeline has ended: see the log"),
                Err(TryRecvError::Empty) => tokio::time::sleep(CONFIGURING).await,
            }
            self.publisher.retry();
            self.engine.turn();
            self.manager.alive();
            self.status.turned();
        }
    }

    /// Rules may select other processes for bridges now.
    fn ask_bridges_again(&mut self) {
        let images: Vec<_> = self.engine.managed.images().collect();
        let mut unwanted = Vec::new();
        for image in images {
            let (processes, configuration) = (&mut self.flusher.processes, &self.configuration);
            let who = processes.who(&self.engine, configuration, &self.runtimes, image, 0);
            let Some(who) = who else { continue };
            let policy = who.decision.bridge.unwrap_or(configuration.bridge.value);
            if policy == BridgePolicy::Off || who.decision.choice.enabled == Some(false) {
                unwanted.push(image);
            }
            self.undecided_events.insert(image);
        }
        self.engine.take_bridges_back(|image| !unwanted.contains(&image));
    }
}
