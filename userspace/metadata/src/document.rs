//! The tables of the documentation, made from what the code does.

use std::fmt::Write;

use strata_kinds::{Kind, Kinds};

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
    let mut out = "## Order of precedence\n\nThe first row that gives a value gives it; an empty \
        value is none. Of several values in one row, the first as written counts. Of a variable \
        that is set twice, the first counts.\n\n\
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
    let mut out = "## Switches\n\n| type | Pyroscope's | Datadog's |\n|---|---|---|\n".to_owned();
    let _ = writeln!(out, "| all | `{PYROSCOPE_PROFILING_ENABLED}` | `{DD_PROFILING_ENABLED}` |");
    for kind in Kind::ALL {
        let info = kind.info();
        let (pyroscope, datadog) = (code(info.pyroscope_switches), code(info.datadog_switches));
        let _ = writeln!(out, "| {kind} | {pyroscope} | {datadog} |");
    }
    let sampled: Kinds = Kind::ALL.into_iter().filter(|kind| kind.is_sampled()).collect();
    let _ = write!(
        out,
        "\nSampled so far: {}. The other types can be switched, and give nothing yet.\n\n\
         Not set, or set to something that is no switch: strata's own default. `false`: off. \
         `true`: on for a type; for `all` it leaves the types as they are. `auto` for `all`: from \
         an age of {} seconds on. When both families say something of a type, the narrower \
         wins: off before later (`auto`) before on. A rule that chooses types or switches a \
         process off comes before all variables; one that only switches it on comes before the \
         row `all`.\n",
        sampled,
        AUTO_AGE.as_secs()
    );
    out
}

fn ignored() -> String {
    let mut out = "## Ignored\n\nVariables of a target that say where data goes, as whom or \
        when. `strata status --services` lists them where they are set; nothing obeys them unless a rule \
        says `own_destination = true` for that target.\n\n"
        .to_owned();
    for name in destinations::VARIABLES {
        let _ = writeln!(out, "- `{name}`");
    }
    out
}

fn bounds() -> String {
    let own: Vec<String> = RESERVED.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "## Bounds\n\nService, env and version: {} bytes. Labels: {} at most, besides strata's \
         own; names {} bytes of `A-Z a-z 0-9 _ . - /`, others become `_`; values {} bytes. {} \
         entries are read of one list. Control characters and characters that turn text around \
         become `_`; so do `{{` and `}}` in a service's name. What is cut or refused is \
         counted. A sink is sent the labels of its list (`[sink.NAME] labels`): for Pyroscope, unless \
         it is set, those that make few series and those that rules give. What a process says of \
         itself (`PYROSCOPE_LABELS`, `DD_TAGS`, `OTEL_RESOURCE_ATTRIBUTES`) is sent besides \
         (`target_labels = false` ends that). Each of these labels, and each label of samples, has \
         `label_values` values an hour (100 for Pyroscope, else 1,000); the others become `other` \
         and are counted (`strata_label_values_other_total`).\n\nShort commands: a process that is \
         known by nothing but its executable's name belongs to the service `short-lived` \
         (`services.pool`) until that name has had five samples in an hour (`services.pool_below`). \
         A host has 500 services an hour (`services.most`); those beyond belong to the pool too, \
         whatever their processes claim, except those that a rule names. The pool's samples keep \
         the names of their processes and threads (`comm`, `process`); \
         `strata_profiles_pooled_total` and `strata_services_over_limit_total` count.\n\nOnly strata and its rules set names that start with `__`, and: {}.\n",
        Limits::NAME,
        Limits::LABELS,
        Limits::LABEL_NAME,
        Limits::LABEL_VALUE,
        Limits::PAIRS,
        own.join(", ")
    )
}
