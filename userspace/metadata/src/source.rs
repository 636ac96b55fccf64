//! The sources of a value, in order of precedence: the earlier variant wins.

/// A source of a value. Declared in order of precedence, and compared by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Rule,
    Application,
    PyroscopeApplicationName,
    PyroscopeLabels,
    DdService,
    DdEnv,
    DdVersion,
    DdTags,
    OtelServiceName,
    OtelResourceAttributes,
    EntryAssembly,
    SystemdUnit,
    ContainerDatadogLabel,
    ContainerName,
    ContainerImage,
    ContainerId,
    PodPyroscopeAnnotation,
    PodDatadogLabel,
    PodOtelAnnotation,
    PodNameLabel,
    PodContainer,
    Executable,
    Comm,
    /// No source: the service is called `unknown`.
    Nothing,
}

/// The steps of the order of precedence; sources within one are its ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    Rule,
    Application,
    Environment,
    EntryAssembly,
    SystemdUnit,
    Container,
    Kubernetes,
    ProcessName,
}

impl Source {
    pub const ALL: [Self; 24] = [
        Self::Rule,
        Self::Application,
        Self::PyroscopeApplicationName,
        Self::PyroscopeLabels,
        Self::DdService,
        Self::DdEnv,
        Self::DdVersion,
        Self::DdTags,
        Self::OtelServiceName,
        Self::OtelResourceAttributes,
        Self::EntryAssembly,
        Self::SystemdUnit,
        Self::ContainerDatadogLabel,
        Self::ContainerName,
        Self::ContainerImage,
        Self::ContainerId,
        Self::PodPyroscopeAnnotation,
        Self::PodDatadogLabel,
        Self::PodOtelAnnotation,
        Self::PodNameLabel,
        Self::PodContainer,
        Self::Executable,
        Self::Comm,
        Self::Nothing,
    ];

    pub fn step(self) -> Step {
        match self {
            Self::Rule => Step::Rule,
            Self::Application => Step::Application,
            Self::PyroscopeApplicationName
            | Self::PyroscopeLabels
            | Self::DdService
            | Self::DdEnv
            | Self::DdVersion
            | Self::DdTags
            | Self::OtelServiceName
            | Self::OtelResourceAttributes => Step::Environment,
            Self::EntryAssembly => Step::EntryAssembly,
            Self::SystemdUnit => Step::SystemdUnit,
            Self::ContainerDatadogLabel
            | Self::ContainerName
            | Self::ContainerImage
            | Self::ContainerId => Step::Container,
            Self::PodPyroscopeAnnotation
            | Self::PodDatadogLabel
            | Self::PodOtelAnnotation
            | Self::PodNameLabel
            | Self::PodContainer => Step::Kubernetes,
            Self::Executable | Self::Comm | Self::Nothing => Step::ProcessName,
        }
    }

    /// Whether the process itself sets it, by a variable or `SetApplicationInfo`.
    pub fn is_claim(self) -> bool {
        matches!(self.step(), Step::Application | Step::Environment)
    }

    /// As `strata status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Application => "`SetApplicationInfo`",
            Self::PyroscopeApplicationName => "PYROSCOPE_APPLICATION_NAME",
            Self::PyroscopeLabels => "PYROSCOPE_LABELS",
            Self::DdService => "DD_SERVICE",
            Self::DdEnv => "DD_ENV",
            Self::DdVersion => "DD_VERSION",
            Self::DdTags => "DD_TAGS",
            Self::OtelServiceName => "OTEL_SERVICE_NAME",
            Self::OtelResourceAttributes => "OTEL_RESOURCE_ATTRIBUTES",
            Self::EntryAssembly => "entry assembly",
            Self::SystemdUnit => "systemd unit",
            Self::ContainerDatadogLabel => "labels com.datadoghq.tags.…",
            Self::ContainerName => "container's name",
            Self::ContainerImage => "container's image",
            Self::ContainerId => "container's id",
            Self::PodPyroscopeAnnotation => "annotation pyroscope.io/service_name",
            Self::PodDatadogLabel => "labels tags.datadoghq.com/…",
            Self::PodOtelAnnotation => "annotations resource.opentelemetry.io/…",
            Self::PodNameLabel => "labels app.kubernetes.io/…",
            Self::PodContainer => "pod's namespace and container",
            Self::Executable => "name of the executable",
            Self::Comm => "comm",
            Self::Nothing => "nothing known",
        }
    }

    /// What it provides, and from which input: `(service, env, version, labels)`.
    pub(crate) fn gives(self) -> [&'static str; 4] {
        const LIST: [&str; 4] = [
            "`service_name`, `service`, `service.name` in it",
            ENV_KEYS,
            VERSION_KEYS,
            "the others",
        ];
        const ENV_KEYS: &str =
            "`env`, `deployment.environment.name`, `deployment.environment` in it";
        const VERSION_KEYS: &str = "`version`, `service.version` in it";
        match self {
            Self::Rule => ["yes", "yes", "yes", "any"],
            Self::Application => ["yes", "yes", "yes", ""],
            Self::PyroscopeApplicationName | Self::DdService | Self::OtelServiceName => {
                ["yes", "", "", ""]
            }
            Self::PyroscopeLabels | Self::DdTags | Self::OtelResourceAttributes => LIST,
            Self::DdEnv => ["", "yes", "", ""],
            Self::DdVersion => ["", "", "yes", ""],
            Self::EntryAssembly => ["its name without `.dll` or `.exe`", "", "", ""],
            Self::SystemdUnit => ["its name without instance", "", "", "`systemd_unit`"],
            Self::ContainerDatadogLabel => ["`service`", "`env`", "`version`", ""],
            Self::ContainerName => ["yes", "", "", "`container_name`"],
            Self::ContainerImage => ["", "", "", "`container_image`"],
            Self::ContainerId => ["", "", "", "`container_id`"],
            Self::PodPyroscopeAnnotation => ["yes", "", "", ""],
            Self::PodDatadogLabel => [
                "`CONTAINER.service`, else `service`",
                "`CONTAINER.env`, else `env`",
                "`CONTAINER.version`, else `version`",
                "",
            ],
            Self::PodOtelAnnotation => {
                ["`service.name`", "`deployment.environment.name`", "`service.version`", ""]
            }
            Self::PodNameLabel => ["`name`", "", "`version`", ""],
            Self::PodContainer => {
                ["`NAMESPACE/CONTAINER`", "", "", "`namespace`, `pod`, `container`"]
            }
            Self::Executable => [
                "that of the link it was started by (`redis-server`, `ls` of busybox), else its file name",
                "",
                "",
                "",
            ],
            Self::Comm => ["yes", "", "", ""],
            Self::Nothing => ["`unknown`", "", "", ""],
        }
    }
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Application => "the application itself",
            Self::Environment => "environment",
            Self::EntryAssembly => "entry assembly",
            Self::SystemdUnit => "systemd unit",
            Self::Container => "container",
            Self::Kubernetes => "Kubernetes",
            Self::ProcessName => "process name",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_of_precedence_and_so_are_the_steps() {
        assert!(Source::ALL.is_sorted_by(|a, b| a < b));
        assert!(Source::ALL.is_sorted_by_key(|source| source.step()));
    }
}
