//! Variables of profiling agents for the endpoint, the credentials and the schedule.
//!
//! In a target's environment they are recognised, listed and ignored: only the host's own
//! configuration decides where its data goes, and with which credential. A rule may allow one
//! target its own destination; only then are the values handed out.

use std::fmt;

use crate::known_variables::Known;

/// Recognised names. The values of most are secrets, so none is ever shown.
pub const VARIABLES: &[&str] = &[
    "PYROSCOPE_SERVER_ADDRESS",
    "PYROSCOPE_AUTH_TOKEN",
    "PYROSCOPE_BASIC_AUTH_USER",
    "PYROSCOPE_BASIC_AUTH_PASSWORD",
    "PYROSCOPE_TENANT_ID",
    "PYROSCOPE_HTTP_HEADERS",
    "PYROSCOPE_PROFILING_UPLOAD_PERIOD",
    "PYROSCOPE_PROFILING_LOG_DIR",
    "DD_TRACE_AGENT_URL",
    "DD_AGENT_HOST",
    "DD_TRACE_AGENT_PORT",
    "DD_APM_RECEIVER_SOCKET",
    "DD_API_KEY",
    "DD_SITE",
    "DD_PROFILING_AGENTLESS",
    "DD_PROFILING_UPLOAD_PERIOD",
    "DD_PROFILING_OUTPUT_DIR",
    "DD_PROFILING_LOG_DIR",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROFILES_HEADERS",
    "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_PROFILES_CERTIFICATE",
];

/// A destination that a target asked for and a rule allowed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Wish {
    pub variable: &'static str,
    /// May be a credential.
    pub value: String,
}

impl fmt::Debug for Wish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}=***", self.variable)
    }
}

/// Names that a target has set.
pub(crate) fn named<'a>(known: &'a Known<'_>) -> impl Iterator<Item = &'static str> + 'a {
    known.names().filter(|name| VARIABLES.contains(name))
}

pub(crate) fn wishes(known: &Known<'_>) -> Vec<Wish> {
    named(known)
        .filter_map(|variable| Some(Wish { variable, value: known.text(variable)?.into_owned() }))
        .collect()
}
