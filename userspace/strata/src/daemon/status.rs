//! `strata status`: asks the daemon of this host how it is doing.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use serde_json::Value;
use strata_profile::text::sanitize_for_terminal;

use crate::printing;
use crate::record::report;

const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const MOST: u64 = 8 << 20;

pub fn run(socket: &Path, json: bool, services: bool) -> Result<i32> {
    let body = ask(socket)?;
    let status = understood(&body, socket)?;
    let shown = match (json, services) {
        (true, _) => format!("{}\n", body.trim_end()),
        (false, true) => sanitize_lines(&services_text(&status)),
        (false, false) => sanitize_lines(&text(&status)),
    };
    printing::print(&shown)?;
    Ok(i32::from(status["healthy"] != Value::Bool(true)))
}

/// The answer, if it is one of strata's daemon.
fn understood(body: &str, socket: &Path) -> Result<Value> {
    match serde_json::from_str::<Value>(body) {
        Ok(status) if status["healthy"].is_boolean() && status["version"].is_string() => Ok(status),
        _ => Err(stranger(socket)),
    }
}

fn stranger(socket: &Path) -> Error {
    anyhow!(
        "what answers at {} is not strata's daemon: --socket names where that has its \
         metrics.socket",
        socket.display()
    )
}

fn ask(socket: &Path) -> Result<String> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "{shown} is root's, because the status names every process: use sudo strata status"
        ),
        _ => anyhow!(
            "no daemon answers at {shown}: is `strata daemon` running, and is that its \
             metrics.socket? (--socket names another): {error}"
        ),
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /status HTTP/1.1\r\nHost: strata\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MOST).read_to_string(&mut answer).context("the daemon's answer was cut off")?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("what answers at {shown} does not speak HTTP");
    };
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(stranger(socket).context(format!("the answer was {status}")));
    }
    Ok(body.to_owned())
}

fn sanitize_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", sanitize_for_terminal(line))).collect()
}

fn bytes(value: &Value) -> String {
    let bytes = value.as_f64().unwrap_or(0.0);
    match bytes {
        _ if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        _ if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.0} kB", bytes / 1e3),
    }
}

fn span(seconds: &Value) -> String {
    let seconds = seconds.as_f64().unwrap_or(0.0) as u64;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn number(value: &Value) -> String {
    crate::record::live::grouped(value.as_u64().unwrap_or(0))
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// A line of its own, if there is any loss.
fn lost(count: &Value, what: &str) -> Option<String> {
    let is_any = count.as_u64().unwrap_or(0) > 0;
    is_any.then(|| format!("               {} {what}", number(count)))
}

fn text(status: &Value) -> String {
    let mut lines = Vec::new();
    let uptime = status["uptime_seconds"].as_f64().unwrap_or(0.0).max(1.0);
    let health = if status["healthy"] == Value::Bool(true) { "healthy" } else { "NOT HEALTHY" };
    lines.push(format!(
        "strata {} (pid {}), {health}, up {}",
        word(&status["version"]),
        status["pid"],
        span(&status["uptime_seconds"])
    ));
    let configuration = &status["configuration"];
    let file = match word(&configuration["file"]) {
        "" => "defaults, environment and flags",
        file => file,
    };
    lines.push(format!("configuration  {file}, reloaded {} times", configuration["reloads"]));
    if let Some(trouble) = configuration["trouble"].as_str() {
        lines.push("               what is there now was refused, the one before is used:".into());
        lines.extend(trouble.lines().map(|line| format!("               {line}")));
    }
    if let Some(trouble) = status["metrics_trouble"].as_str() {
        lines.push(format!("metrics        are not served: {trouble}"));
    }
    let sampling = &status["sampling"];
    lines.push(format!(
        "sampling       {} Hz, {} processes; {} samples in profiles, {} left out",
        sampling["frequency"],
        number(&sampling["processes"]),
        number(&sampling["samples"]),
        number(&sampling["left_out"])
    ));
    let losses = sampling["losses"].as_object().into_iter().flatten();
    for (cause, count) in losses {
        let text = report::explained(cause).unwrap_or_else(|| cause.clone());
        lines.push(format!("               missing: {} {text}", number(count)));
    }
    let profiles = &status["profiles"];
    lines.push(format!(
        "profiles       {} in {} periods, {} dropped",
        number(&profiles["made"]),
        number(&profiles["flushes"]),
        number(&profiles["dropped"])
    ));
    lines.extend(lost(&profiles["undelivered_batches"], "batches found no exporter"));
    let dotnet = &status["dotnet"];
    lines.push(format!(
        ".NET           {} attached, {} waiting, {} methods",
        dotnet["attached"],
        dotnet["waiting"],
        number(&dotnet["methods"])
    ));
    for refused in dotnet["refused"].as_array().into_iter().flatten().take(10) {
        lines.push(format!("               {}: {}", refused["pid"], word(&refused["why"])));
    }
    let reading = &status["reading"];
    let are_missing = |key| reading[key].as_u64().unwrap_or(0) > 0;
    if are_missing("given_up") || are_missing("refused") {
        lines.push(format!(
            "environments   {} could not be read in time, {} were not tried; {} threads hang",
            number(&reading["given_up"]),
            number(&reading["refused"]),
            reading["stuck"]
        ));
    }
    let containers = &status["containers"];
    lines.push(format!(
        "containers     {} known, {} unknown",
        number(&containers["known"]),
        number(&containers["unknown"])
    ));
    for source in containers["sources"].as_array().into_iter().flatten() {
        if let Some(error) = source["last_error"].as_str() {
            let (name, failed) = (word(&source["name"]), number(&source["failed"]));
            lines.push(format!("               {name}: failed {failed} times, last: {error}"));
        }
    }
    let store = &status["store"];
    lines.push(format!(
        "store          {} profiles written, {}; dictionaries in memory {}",
        number(&store["profiles"]),
        bytes(&store["bytes"]),
        bytes(&store["dictionaries"])
    ));
    lines.extend(lost(&store["not_stored"], "profiles were not stored"));
    if let Some(trouble) = store["trouble"].as_str() {
        lines.push(format!("               {trouble}"));
    }
    for exporter in status["exporters"].as_array().into_iter().flatten() {
        lines.extend(exporter_lines(exporter));
    }
    for exporter in status["file_exporters"].as_array().into_iter().flatten() {
        lines.push(format!(
            "exporter {:<10}{} files",
            word(&exporter["name"]),
            exporter["files_written"]
        ));
        lines.extend(lost(&exporter["failed"], "profiles could not be written"));
        if let Some(trouble) = exporter["trouble"].as_str() {
            lines.push(format!("               {trouble}"));
        }
    }
    let memory = &status["memory"];
    lines.push(format!(
        "memory         {} of {} (own {}, helpers {}, kernel {}), peak {}",
        bytes(&memory["bytes"]),
        bytes(&memory["limit"]),
        bytes(&memory["own"]),
        bytes(&memory["workers"]),
        bytes(&memory["bpf_maps"]),
        bytes(&memory["peak"])
    ));
    let cpu = &status["cpu_seconds"];
    let share = |value: &Value| value.as_f64().unwrap_or(0.0) / uptime * 100.0;
    lines.push(format!(
        "processor      {:.2} % of one CPU (helpers {:.2} %, in the kernel {:.2} %)",
        share(&cpu["own"]),
        share(&cpu["helpers"]),
        share(&cpu["bpf"])
    ));
    lines.join("\n") + "\n"
}

/// Who is sampled: each value, and where it comes from.
fn services_text(status: &Value) -> String {
    let mut lines = Vec::new();
    for one in status["services"].as_array().into_iter().flatten() {
        let sourced =
            |value: &Value| format!("{} ({})", word(&value["value"]), word(&value["from"]));
        let mut line = format!("{:>7}  {}", one["pid"], sourced(&one["service"]));
        for (name, key) in [("env", "env"), ("version", "version")] {
            if one[key].is_object() {
                line.push_str(&format!("  {name}={}", sourced(&one[key])));
            }
        }
        for (name, value) in one["labels"].as_object().into_iter().flatten() {
            line.push_str(&format!("  {name}={}", sourced(value)));
        }
        if one["enabled"] == Value::Bool(false) {
            line.push_str("  left out by a rule");
        }
        let ignored: Vec<&str> =
            one["ignored"].as_array().into_iter().flatten().map(word).collect();
        if !ignored.is_empty() {
            line.push_str(&format!("  ignored: {}", ignored.join(", ")));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        lines.push("nothing was sampled yet".to_owned());
    }
    lines.join("\n") + "\n"
}

fn exporter_lines(exporter: &Value) -> Vec<String> {
    let mut lines = vec![format!(
        "exporter {:<10}{}; {} profiles ({}) delivered, {} batches wait, lag {}",
        word(&exporter["name"]),
        word(&exporter["state"]),
        number(&exporter["delivered_profiles"]),
        bytes(&exporter["delivered_bytes"]),
        number(&exporter["waiting_batches"]),
        span(&exporter["lag_seconds"])
    )];
    for (cause, count) in exporter["dropped"].as_object().into_iter().flatten() {
        lines.push(format!("               dropped: {cause} {}", number(count)));
    }
    for (what, key) in
        [("last error", "last_error"), ("last refusal", "last_refusal"), ("spool", "spool_error")]
    {
        let trouble = &exporter[key];
        if let Some(reason) = trouble["reason"].as_str() {
            let ago = span(&trouble["seconds_ago"]);
            lines.push(format!("               {what} {ago} ago: {reason}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_with_nothing_in_it_is_shown_all_the_same() {
        let shown = text(&Value::Null);
        assert!(shown.contains("NOT HEALTHY"), "{shown}");
    }

    #[test]
    fn an_answer_that_is_not_a_status_says_where_to_look() {
        let socket = Path::new("/run/strata/status.sock");
        for body in ["", "fine", "[]", "3", "{}", r#"{"version":"1.0","status":"up"}"#] {
            let error = understood(body, socket).expect_err(body).to_string();
            assert!(error.contains("status.sock") && error.contains("--socket"), "{error}");
        }
        let status = understood(r#"{"version":"1.0","healthy":false}"#, socket);
        assert!(status.is_ok_and(|status| status["healthy"] == Value::Bool(false)));
    }

    #[test]
    fn a_store_shows_what_it_takes_on_disk_and_in_memory() {
        let store = serde_json::json!({
            "profiles": 12_000, "bytes": 120_000_000, "dictionaries": 4_200_000,
        });
        let shown = text(&serde_json::json!({ "store": store }));
        let expected = "12,000 profiles written, 120.0 MB; dictionaries in memory 4.2 MB\n";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn what_is_missing_is_said_in_words() {
        let losses = serde_json::json!({ "stack_capture_limit": 1200, "new_one": 3 });
        let shown = text(&serde_json::json!({ "sampling": { "losses": losses } }));
        let expected = "missing: 1,200 stacks cut: a raw stack larger than is copied\n";
        assert!(shown.contains(expected), "{shown}");
        // Of another version of strata.
        assert!(shown.contains("missing: 3 new_one\n"), "{shown}");
    }

    #[test]
    fn what_was_not_kept_or_sent_is_said_when_there_is_any() {
        let status = |count: u64| {
            text(&serde_json::json!({
                "profiles": { "undelivered_batches": count },
                "store": { "not_stored": count },
                "file_exporters": [{ "name": "files", "files_written": 7, "failed": count }],
            }))
        };
        let losses = [
            "batches found no exporter",
            "profiles were not stored",
            "profiles could not be written",
        ];
        let (none, some) = (status(0), status(1200));
        for loss in losses {
            assert!(!none.contains(loss), "{none}");
            assert!(some.contains(&format!(" 1,200 {loss}\n")), "{some}");
        }
    }

    #[test]
    fn a_exporter_shows_what_it_lost_and_why() {
        let exporter = serde_json::json!({
            "name": "pyroscope", "state": "waiting 7 s", "delivered_profiles": 12,
            "lag_seconds": 130.0, "dropped": { "too_old": 3 },
            "last_error": { "reason": "the server answered 500", "seconds_ago": 4 },
        });
        let lines = exporter_lines(&exporter).join("\n");
        for expected in
            ["waiting 7 s", "dropped: too_old 3", "4 s ago: the server answered 500", "2 min"]
        {
            assert!(lines.contains(expected), "{lines}");
        }
    }
}
