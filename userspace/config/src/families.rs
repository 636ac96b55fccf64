//! Variables of profiling agents in the daemon's own environment: destination, credential,
//! tenant and timing of the exporters `pyroscope`, `datadog` and `otlp`.
//!
//! A variable with an address creates its exporter; the others change an existing exporter.

use std::collections::BTreeMap;

use strata_metadata::destinations::Wish;
use strata_metadata::text::{List, pairs};

use crate::layers::Entry;
use crate::origin::{Origin, Sourced};
use crate::value::Raw;

/// A variable, the exporter and the key it sets, and how its value reads.
struct Row(&'static str, &'static str, &'static str, Form);

#[derive(Clone, Copy, PartialEq)]
enum Form {
    AsIs,
    Seconds,
    Milliseconds,
    /// An object of texts.
    Json,
    /// `k=v,k=v`, percent-encoded.
    Pairs,
    Protocol,
    Socket,
}

/// Of two rows that set the same key the first that is set wins.
const ROWS: &[Row] = &[
    Row("PYROSCOPE_SERVER_ADDRESS", "pyroscope", "url", Form::AsIs),
    Row("PYROSCOPE_AUTH_TOKEN", "pyroscope", "token", Form::AsIs),
    Row("PYROSCOPE_BASIC_AUTH_USER", "pyroscope", "user", Form::AsIs),
    Row("PYROSCOPE_BASIC_AUTH_PASSWORD", "pyroscope", "password", Form::AsIs),
    Row("PYROSCOPE_TENANT_ID", "pyroscope", "tenant", Form::AsIs),
    Row("PYROSCOPE_HTTP_HEADERS", "pyroscope", "headers", Form::Json),
    Row("PYROSCOPE_PROFILING_UPLOAD_PERIOD", "pyroscope", "period", Form::Seconds),
    Row("DD_TRACE_AGENT_URL", "datadog", "url", Form::AsIs),
    // Then DD_AGENT_HOST and DD_TRACE_AGENT_PORT, which make one URL together.
    Row("DD_APM_RECEIVER_SOCKET", "datadog", "url", Form::Socket),
    Row("DD_PROFILING_UPLOAD_PERIOD", "datadog", "period", Form::Seconds),
    Row("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "otlp", "url", Form::AsIs),
    Row("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp", "url", Form::AsIs),
    Row("OTEL_EXPORTER_OTLP_PROFILES_HEADERS", "otlp", "headers", Form::Pairs),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "otlp", "headers", Form::Pairs),
    Row("OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT", "otlp", "timeout", Form::Milliseconds),
    Row("OTEL_EXPORTER_OTLP_TIMEOUT", "otlp", "timeout", Form::Milliseconds),
    Row("OTEL_EXPORTER_OTLP_PROFILES_CERTIFICATE", "otlp", "ca_file", Form::AsIs),
    Row("OTEL_EXPORTER_OTLP_CERTIFICATE", "otlp", "ca_file", Form::AsIs),
    Row("OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL", "otlp", "protocol", Form::Protocol),
    Row("OTEL_EXPORTER_OTLP_PROTOCOL", "otlp", "protocol", Form::Protocol),
];

/// Variables that mean nothing to the daemon, and why.
const IGNORED: [(&str, &str); 4] = [
    ("DD_API_KEY", "strata sends to an agent, which has the key"),
    ("DD_SITE", "strata sends to an agent, which knows the site"),
    ("DD_PROFILING_AGENTLESS", "strata sends to an agent"),
    ("DD_PROFILING_OUTPUT_DIR", "use an exporter of kind \"file\""),
];

/// The values from variables, and the messages for the user.
pub(crate) fn entries(environment: &[(String, String)]) -> (Vec<Entry>, Vec<String>) {
    let set = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let mut entries: Vec<Entry> = Vec::new();
    let mut add = |path: &[&str], variable: &str, value: &str| {
        let path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        if entries.iter().all(|entry| entry.path != path) {
            let origin = Origin::Variable(variable.to_owned());
            let raw = Raw::Words(value.to_owned());
            entries.push(Entry { path, raw, origin, offset: 0, used: false });
        }
    };
    let mut notices = Vec::new();
    for Row(variable, exporter, key, form) in ROWS {
        if *form == Form::Socket {
            host_and_port(set, &mut add);
        }
        let Some(value) = set(variable) else { continue };
        let path = ["exporter", exporter, key];
        match form {
            Form::AsIs => add(&path, variable, value),
            Form::Seconds => add(&path, variable, &format!("{value}s")),
            Form::Milliseconds => add(&path, variable, &format!("{value}ms")),
            Form::Socket => add(&path, variable, &format!("unix://{value}")),
            Form::Protocol => {
                let name = if value.starts_with("http/") { "http" } else { value };
                add(&path, variable, name);
            }
            Form::Json => match serde_json::from_str::<BTreeMap<String, String>>(value) {
                Ok(headers) => {
                    for (name, value) in headers {
                        add(&["exporter", exporter, key, &name], variable, &value);
                    }
                }
                // Not serde's message: it may repeat a secret.
                Err(_) => {
                    notices.push(format!("{variable} is ignored: it is no JSON object of texts"))
                }
            },
            Form::Pairs => {
                for (name, value) in pairs(value, List::OpenTelemetry).0 {
                    add(&["exporter", exporter, key, &name], variable, &value);
                }
            }
        }
    }
    for (name, why) in IGNORED {
        if set(name).is_some() {
            notices.push(format!("{name} is ignored: {why}"));
        }
    }
    (entries, notices)
}

fn host_and_port<'e>(
    set: impl Fn(&str) -> Option<&'e str>,
    add: &mut impl FnMut(&[&str], &str, &str),
) {
    let (host, port) = (set("DD_AGENT_HOST"), set("DD_TRACE_AGENT_PORT"));
    let variable = if host.is_some() { "DD_AGENT_HOST" } else { "DD_TRACE_AGENT_PORT" };
    if host.is_none() && port.is_none() {
        return;
    }
    let host = host.unwrap_or("localhost");
    // An IPv6 address needs its brackets in a URL.
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    add(
        &["exporter", "datadog", "url"],
        variable,
        &format!("http://{host}:{}", port.unwrap_or("8126")),
    );
}

/// The exporters configured by a target's own variables, for a target that a rule allows its own
/// destination. Only what goes over the network: a path in its variables is a path in its own file
/// system, and would be read or written with the daemon's rights. None if any value is refused.
pub fn own_exporters(
    wishes: &[Wish],
) -> (Vec<crate::exporters::ExporterConfig>, Vec<crate::Problem>) {
    let environment: Vec<(String, String)> =
        wishes.iter().map(|wish| (wish.variable.to_owned(), wish.value.clone())).collect();
    let (mut entries, _) = entries(&environment);
    entries.retain(|entry| {
        let local = matches!(&entry.raw, Raw::Words(text) if text.starts_with("unix:"));
        !local && entry.path.last().is_none_or(|key| !key.ends_with("_file"))
    });
    let mut layers = crate::layers::Layers::new(&crate::Inputs::default(), entries);
    let mut exporters = crate::exporters::read(&mut layers);
    // Default paths stay the host's own; the target cannot set a path.
    exporters.retain(|exporter| {
        matches!(&exporter.url, Some(Sourced { origin: Origin::Variable(_), .. }))
    });
    if !layers.problems.is_empty() {
        exporters.clear();
    }
    (exporters, layers.problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_variables_are_those_that_are_read() {
        let form = |form| match form {
            Form::AsIs => "as it is",
            Form::Seconds => "seconds",
            Form::Milliseconds => "milliseconds",
            Form::Json => "a JSON object of texts",
            Form::Pairs => "`name=value,name=value`, percent-encoded",
            Form::Protocol => "`http/protobuf` or `grpc`",
            Form::Socket => "the path of a socket",
        };
        let mut expected = Vec::new();
        for Row(variable, exporter, key, form_of) in ROWS {
            if *form_of == Form::Socket {
                let both = "`DD_AGENT_HOST`, `DD_TRACE_AGENT_PORT`";
                let value = "a host (`localhost`) and a port (8126)";
                expected.push(format!("| {both} | `exporter.datadog.url` | {value} |"));
            }
            let value = form(*form_of);
            expected.push(format!("| `{variable}` | `exporter.{exporter}.{key}` | {value} |"));
        }
        let ignored = IGNORED.map(|(variable, why)| format!("| `{variable}` | none | {why} |"));
        expected.extend(ignored);
        let text = include_str!("../../../docs/exporters.md");
        let (_, table) = text.split_once("| variable | key | value |\n|---|---|---|\n").unwrap();
        let documented: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(documented, expected);
    }
}
