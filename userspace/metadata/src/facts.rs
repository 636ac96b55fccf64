//! Input: the facts about a process from strata and its host, and the values set by a rule.

use strata_kinds::Kinds;

use crate::control_group::Group;
use crate::environment::Environment;

/// The facts about a process. Each may be missing; everything but the control group (which the
/// kernel and the host's service managers wrote) may be the process's own claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// The application's description of itself at run time.
    pub application: Application<'a>,
    pub environment: Environment<'a>,
    /// File name of the assembly that a .NET runtime (or one AppDomain of it) was started with.
    pub entry_assembly: Option<&'a str>,
    pub group: Option<&'a Group>,
    /// Metadata from the container's runtime.
    pub container: Option<&'a Container>,
    /// Metadata from Kubernetes.
    pub pod: Option<&'a Pod>,
    /// Target of `/proc/PID/exe`.
    pub exe: Option<&'a str>,
    /// The process is in the host's mount namespace, where only root decides which file has a path.
    pub is_exe_of_host: bool,
    /// The name of the link that it was started by, where that is another one.
    pub called: Option<&'a str>,
    pub comm: &'a str,
}

/// What an application has published about one of its AppDomains; empty: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Application<'a> {
    pub service: &'a str,
    pub env: &'a str,
    pub version: &'a str,
}

/// A container runtime's metadata of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub name: Option<String>,
    pub image: Option<String>,
    pub labels: Vec<(String, String)>,
}

impl Container {
    pub fn label(&self, name: &str) -> Option<&str> {
        find(&self.labels, name)
    }
}

/// Kubernetes' metadata of a container's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Name of the container in the pod.
    pub container: String,
    pub labels: Vec<(String, String)>,
    pub annotations: Vec<(String, String)>,
}

impl Pod {
    pub fn label(&self, name: &str) -> Option<&str> {
        find(&self.labels, name)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        find(&self.annotations, name)
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The values set by the host's rules. They take precedence over everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// `Some(false)`: not sampled at all.
    pub enabled: Option<bool>,
    pub service: Option<String>,
    pub env: Option<String>,
    pub version: Option<String>,
    pub labels: Vec<(String, String)>,
    /// Exactly these types.
    pub types: Option<Kinds>,
    /// The target may choose where its data goes.
    pub own_destination: bool,
}
