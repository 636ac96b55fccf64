//! The configured container runtimes, and their timeouts.

use std::path::PathBuf;
use std::time::Duration;

/// The available sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Sockets of the Docker Engine API (Docker's, or Podman's imitation).
    pub docker: Vec<PathBuf>,
    /// Sockets of the CRI: containerd's or CRI-O's.
    pub cri: Vec<PathBuf>,
    pub kubelet: Option<Kubelet>,
    pub pace: Pace,
}

/// The kubelet of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// `https://NODE:10250`, or `http://127.0.0.1:10255` where the read-only port is open.
    pub url: String,
    /// Read before every use: Kubernetes renews it. Only ever sent over TLS.
    pub token_file: Option<PathBuf>,
    /// Certificates in PEM that the kubelet's has to be signed by.
    pub authorities_file: Option<PathBuf>,
    /// `false`: any server is trusted, and receives the token. Kubelets that sign their own
    /// certificate leave no other choice.
    pub verify: bool,
}

/// Intervals, time limits and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// For one request, its whole answer included.
    pub request: Duration,
    /// For all requests to one source in a round. Further requests wait for the next round.
    pub round: Duration,
    /// Between one round and the next: the shortest interval of requests.
    pub pause: Duration,
    /// Found metadata is refreshed after this: labels change.
    pub fresh: Duration,
    /// Delay before an unknown container or a failed source is queried again; doubled each time.
    pub retry: Duration,
    pub longest_retry: Duration,
    /// Containers of one round.
    pub batch: usize,
    /// The most containers cached, with or without metadata, and bytes of metadata.
    pub entries: usize,
    pub bytes: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(2),
            round: Duration::from_secs(5),
            pause: Duration::from_secs(1),
            fresh: Duration::from_secs(600),
            retry: Duration::from_secs(1),
            longest_retry: Duration::from_secs(60),
            batch: 256,
            entries: 4096,
            bytes: 8 << 20,
        }
    }
}

impl Pace {
    /// The delay after so many failed attempts, at least one.
    pub(crate) fn retry_after(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(16);
        self.retry.saturating_mul(1 << doublings).min(self.longest_retry)
    }
}
