//! Which source is queried for what, and when not.
//!
//! In the order CRI, Docker, kubelet: each is queried only for containers that are still
//! incomplete. A source that fails is skipped for the rest of the round, and then retried after
//! growing delays; one without a socket costs nothing.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

use crate::health::SourceHealth;
use crate::metadata::Found;
use crate::settings::{Kubelet, Pace, Settings};
use crate::transport::{Failure, Transport};
use crate::{containerd, cri, docker, kubelet};

enum Kind {
    Cri(PathBuf),
    Docker(PathBuf),
    Kubelet(Kubelet),
}

pub(crate) struct Source {
    kind: Kind,
    /// Made at the first use, and again after a failure: files of credentials change.
    transport: Option<Transport>,
    failures: u32,
    not_before: Option<Instant>,
    pub health: SourceHealth,
}

/// The sources of these settings, in the order of queries.
pub(crate) fn of(settings: &Settings) -> Vec<Source> {
    let cri = settings.cri.iter().cloned().map(Kind::Cri);
    let docker = settings.docker.iter().cloned().map(Kind::Docker);
    let kubelet = settings.kubelet.iter().cloned().map(Kind::Kubelet);
    cri.chain(docker).chain(kubelet).map(Source::new).collect()
}

impl Source {
    fn new(kind: Kind) -> Self {
        let name = match &kind {
            Kind::Cri(path) => format!("cri {}", path.display()),
            Kind::Docker(path) => format!("docker {}", path.display()),
            Kind::Kubelet(kubelet) => format!("kubelet {}", kubelet.url),
        };
        let health = SourceHealth { name, ..SourceHealth::default() };
        Self { kind, transport: None, failures: 0, not_before: None, health }
    }

    /// Adds this source's metadata of the containers that are not complete yet.
    /// False: it has not answered for all.
    pub async fn ask(
        &mut self,
        ids: &[String],
        found: &mut HashMap<String, Found>,
        pace: &Pace,
    ) -> bool {
        let is_complete = |id: &&String| found.get(*id).is_some_and(Found::is_complete);
        let open: Vec<String> = ids.iter().filter(|id| !is_complete(id)).cloned().collect();
        if open.is_empty() {
            return true;
        }
        self.health.is_there = match &self.kind {
            Kind::Cri(path) | Kind::Docker(path) => path.exists(),
            Kind::Kubelet(_) => true,
        };
        if !self.health.is_there {
            self.transport = None;
            return true;
        }
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            self.skip(open.len());
            return false;
        }
        let deadline = Instant::now() + pace.round;
        match self.round(&open, found, pace, deadline).await {
            Ok(is_whole) => {
                (self.failures, self.not_before) = (0, None);
                is_whole
            }
            Err(failure) => {
                self.transport = None;
                self.failures = self.failures.saturating_add(1);
                self.not_before = Some(Instant::now() + pace.retry_after(self.failures));
                self.health.failed += 1;
                self.health.last_error = Some(failure.to_string());
                false
            }
        }
    }

    /// False: some of the answers are missing.
    async fn round(
        &mut self,
        open: &[String],
        found: &mut HashMap<String, Found>,
        pace: &Pace,
        deadline: Instant,
    ) -> Result<bool, Failure> {
        let transport = match self.transport.take() {
            Some(transport) => transport,
            None => match &self.kind {
                Kind::Cri(path) => Transport::on_socket(path, true, pace.request)?,
                Kind::Docker(path) => Transport::on_socket(path, false, pace.request)?,
                Kind::Kubelet(settings) => kubelet::connect(settings, pace.request).await?,
            },
        };
        let owner = self.owner();
        let transport = self.transport.insert(transport);
        if let Kind::Kubelet(settings) = &self.kind {
            self.health.asked += open.len() as u64;
            let answers = kubelet::ask(transport, settings, open).await?;
            self.health.found += answers.len() as u64;
            for (id, answer) in answers {
                found.entry(id).or_default().absorb(answer);
            }
            return Ok(true);
        }
        let mut namespaces = None;
        // Either this one container is the problem or the server: the next query shows which.
        let (mut spoiled, mut late) = (None, None);
        let (mut has_answered, mut is_whole) = (false, true);
        for (number, id) in open.iter().enumerate() {
            if Instant::now() >= deadline {
                self.skip(open.len() - number);
                is_whole = false;
                break;
            }
            self.health.asked += 1;
            let answer = match &self.kind {
                Kind::Docker(_) => docker::ask(transport, id).await,
                _ => ask_containerd(transport, &mut namespaces, id).await,
            };
            match answer {
                Ok(Some(answer)) => {
                    (has_answered, late) = (true, None);
                    // Labels that make a container one of a pod are its user's to choose.
                    let pod = answer.pod.filter(|_| owner == Some(0));
                    let answer = Found { owner, pod, ..answer };
                    self.health.found += 1;
                    found.entry(id.clone()).or_default().absorb(answer);
                }
                Ok(None) => (has_answered, late) = (true, None),
                Err(failure @ (Failure::TooLarge(_) | Failure::Malformed(_))) => {
                    spoiled = Some(failure);
                    self.health.failed += 1;
                }
                Err(failure @ (Failure::Late(_) | Failure::Status(_) | Failure::Grpc { .. }))
                    if late.is_none() =>
                {
                    late = Some(failure);
                }
                Err(failure) => {
                    self.skip(open.len() - number - 1);
                    return Err(failure);
                }
            }
        }
        match late {
            Some(failure) if !has_answered => return Err(failure),
            Some(failure) => {
                spoiled = Some(failure);
                self.health.failed += 1;
            }
            None => {}
        }
        if let Some(failure) = spoiled {
            self.health.last_error = Some(failure.to_string());
            is_whole = false;
        }
        Ok(is_whole)
    }

    /// Whether it is a user's own runtime.
    pub fn is_users(&self) -> bool {
        self.owner().is_some_and(|owner| owner != 0)
    }

    /// The user whose containers it runs: a rootless runtime's socket belongs to its user.
    fn owner(&self) -> Option<u32> {
        match &self.kind {
            Kind::Cri(path) | Kind::Docker(path) => Some(std::fs::metadata(path).ok()?.uid()),
            Kind::Kubelet(_) => None,
        }
    }

    fn skip(&mut self, count: usize) {
        self.health.skipped += count as u64;
    }
}

/// The CRI, then containerd's own service for what is not Kubernetes'.
async fn ask_containerd(
    transport: &Transport,
    namespaces: &mut Option<Vec<String>>,
    id: &str,
) -> Result<Option<Found>, Failure> {
    match cri::ask(transport, id).await {
        Ok(None) => {}
        // Docker's containerd has its CRI switched off.
        Err(failure) if failure.is_unimplemented() => {}
        answer => return answer,
    }
    let known = match namespaces {
        Some(known) => known,
        None => namespaces.insert(containerd::namespaces(transport).await?),
    };
    containerd::ask(transport, known, id).await
}
