//! The generated tables of `docs/services.md`.

use std::fmt::Write;

use strata_kinds::Kind;

use crate::destinations;
use crate::identity::RESERVED;
use crate::source::Source;
use crate::text::Limits;
use crate::types::{AUTO_AGE, DD_PROFILING_ENABLED, PYROSCOPE_PROFILING_ENABLED};

/// The generated part of `docs/services.md`.
pub fn tables() -> String {
    [precedence(), switches(), ignored(), bounds()].join("\n")
}

fn precedence() -> String {
    let mut out = "## Order of precedence\n\nThe first row with a non-empty value wins. Of several values in \
        one row the first one listed wins; of a variable that is set twice, the first \
        occurrence.\n\n\
        | step | from | service | env | version | labels |\n|---|---|---|---|---|---|\n"
        .to_owned();
    let mut last = "";
    for source in Source::ALL {
        let step = source.step().name();
        let [service, env, version, labels] = source.gives();
        let shown = if step == last { "" } else { step };
        let _ = writeln!(
            out,
            "| {shown} | {} | {service} | {env} | {version} | {labels} |",
            source.name()
        );
        last = step;
    }
    out
}

fn switches() -> String {
    let code = |names: &[&str]| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", else ")
    };
    let mut out = "## Variables that enable or disable sample types\n\n| type | Pyroscope's | Datadog's |\n|---|---|---|\n".to_owned();
    let _ = writeln!(out, "| all | `{PYROSCOPE_PROFILING_ENABLED}` | `{DD_PROFILING_ENABLED}` |");
    for kind in Kind::ALL {
        let info = kind.info();
        let (pyroscope, datadog) = (code(info.pyroscope_switches), code(info.datadog_switches));
        let _ = writeln!(out, "| {kind} | {pyroscope} | {datadog} |");
    }
    let _ = write!(
        out,
        "\nWithout a valid value strata's own default applies. `false` switches a type off, `true` \
         on; `all = true` leaves each type as it is. `auto` for `all` switches profiling on once \
         the process is {} seconds old. If both families set a type, the narrower value wins: \
         off before `auto` before on. A rule that selects types or switches a process off \
         precedes all variables; a rule that only switches it on precedes the row `all`.\n\nA host \
         samples `cpu`, and the other types where `types` names them in `[sampling]` or in a rule, by \
         the configuration that strata was started with: elsewhere `true` has no effect on them.\n",
        AUTO_AGE.as_secs()
    );
    out
}

fn ignored() -> String {
    let mut out =
        "## Ignored variables\n\nVariables with which a target configures where, as which tenant \
        or how often profiles are sent. `strata status --services` lists those that a process has \
        set; they have no effect unless a rule sets `own_destination = true` for that target.\n\n"
            .to_owned();
    for name in destinations::VARIABLES {
        let _ = writeln!(out, "- `{name}`");
    }
    out
}

fn bounds() -> String {
    let own: Vec<String> = RESERVED.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "## Limits\n\nService, env and version: {} bytes. At most {} labels besides strata's \
         own; names have {} bytes of `A-Z a-z 0-9 _ . - /` (other characters become `_`), values {} \
         bytes. At most {} entries of one list are read. Control characters and bidirectional \
         overrides become `_`, as do `{{` and `}}` in a service name. Truncated and rejected values are \
         counted.\n\nAn exporter receives the labels that its `labels` setting lists (the default \
         for Pyroscope: those with few distinct values, and those set by rules), and, unless \
         `target_labels = false`, the labels that a process sets itself (`PYROSCOPE_LABELS`, \
         `DD_TAGS`, `OTEL_RESOURCE_ATTRIBUTES`). Each such label, and each label of samples, has at \
         most `label_values` distinct values an hour (100 for Pyroscope, else 1,000); further values \
         become `other` and are counted (`strata_label_values_other_total`). The same limit holds \
         for each of env, version, repository and commit where the process sets it by a variable or \
         `SetApplicationInfo`; values from rules, container labels and Kubernetes are sent \
         unchanged.\n\nThe repository and commit of a build are the labels `git.repository_url` \
         (or `service_repository`) and `git.commit.sha` (or `service_git_ref`), else the variables \
         `DD_GIT_REPOSITORY_URL` and `DD_GIT_COMMIT_SHA`. User and password are removed from the \
         URL of a repository, also from the label `vcs.repository.url.full`.\n\nShort-lived \
         commands: a process identified only by its executable's name belongs to the service \
         `short-lived` (`services.pool`) until that name has five samples in an hour \
         (`services.pool_below`); where waits are sampled, five seconds that its threads have waited \
         are enough, too. A host has at most 500 services an hour (`services.most`), of them at most \
         400 known by their executable's name only; further ones are pooled too, including those \
         named by their environment, but not those named by a rule. In the first \
         five minutes of an hour the services of the hour before keep their places. Pooled samples keep the labels `comm` and `process`; \
         `strata_profiles_pooled_total` and `strata_services_over_limit_total` count \
         them.\n\nProcesses that start and end between two flushes and have the same identity, \
         executable and labels share one profile, without a pid and with a runtime id of their own in \
         common; the samples in the local store keep their pids.\n\nReserved label names, set only by strata and its rules: those that start with \
         `__`, and {} (compared without case; `.`, `-` and `/` equal `_`).\n",
        Limits::NAME,
        Limits::LABELS,
        Limits::LABEL_NAME,
        Limits::LABEL_VALUE,
        Limits::PAIRS,
        own.join(", ")
    )
}
