//! Metadata of containers from container runtimes and Kubernetes, for the identities of processes.
//!
//! Invariant: the loop never waits for them. Missing metadata is requested on the sockets' thread,
//! and used from the next flush on.

use strata_config::settings;
use strata_containers::{Health, Kubelet, Pace, Settings};
use tokio::runtime::Handle;

use super::process_metadata::{Containers, Known};

pub struct Runtimes {
    settings: Settings,
    directory: strata_containers::Containers,
}

impl Runtimes {
    pub fn start(configuration: &settings::Containers, network: &Handle) -> Self {
        let settings = settings_of(configuration);
        let (directory, refresher) = strata_containers::containers(&settings);
        network.spawn(refresher.run());
        Self { settings, directory }
    }

    /// After a reload. Other sources know other things: all is asked for again.
    pub fn configure(&mut self, configuration: &settings::Containers, network: &Handle) {
        if settings_of(configuration) != self.settings {
            *self = Self::start(configuration, network);
        }
    }

    /// Has it asked for, if it is not known.
    pub fn prepare(&self, id: &str) {
        let _ = self.directory.lookup(id);
    }

    pub fn health(&self) -> Health {
        self.directory.health()
    }
}

impl Containers for Runtimes {
    fn of(&self, id: &str) -> Option<Known> {
        let found = self.directory.lookup(id)?;
        Some(Known {
            container: Some(found.container.clone()),
            pod: found.pod.clone(),
            owner: found.owner,
            version: found.revision,
        })
    }

    fn is_unknown(&self, id: &str) -> bool {
        self.directory.is_unknown(id)
    }
}

fn settings_of(configuration: &settings::Containers) -> Settings {
    let kubelet = configuration.kubelet.value.as_ref().map(|url| Kubelet {
        url: url.clone(),
        token_file: configuration.kubelet_token_file.value.clone(),
        authorities_file: configuration.kubelet_ca_file.value.clone(),
        verify: configuration.kubelet_verify.value,
    });
    Settings {
        docker: configuration.docker.value.clone(),
        cri: configuration.cri.value.clone(),
        kubelet,
        pace: Pace::default(),
    }
}
