//! Configurations as users write them, and the resulting settings.

use std::time::Duration;

use strata_config::exporters::Kind;
use strata_config::families::own_exporters;
use strata_config::rules::BridgePolicy;
use strata_config::rules::{decide, matches};
use strata_config::secret::Credential;
use strata_config::value::Bytes;
use strata_config::{Flag, Inputs, Loaded, Origin, Problem, check, load};
use strata_kinds::Kind as SampleKind;
use strata_metadata::control_group;
use strata_metadata::destinations::Wish;
use strata_metadata::{Environment, Facts, Pod};

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&str, &str, &str)],
) -> Result<Loaded, Vec<Problem>> {
    let flag = |(name, key, value): &(&str, &str, &str)| Flag {
        name: (*name).to_owned(),
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let flags: Vec<Flag> = flags.iter().map(flag).collect();
    load(&Inputs {
        file: Some(("strata.toml", file)),
        environment: &variables(environment),
        flags: &flags,
        ..Inputs::default()
    })
}

fn file(text: &str) -> Loaded {
    with(text, &[], &[]).expect("the file is right")
}

fn environment(pairs: &[(&str, &str)]) -> Loaded {
    with("", pairs, &[]).expect("the environment is right")
}

fn only_problem(text: &str) -> String {
    let problems = with(text, &[], &[]).expect_err("the file is wrong");
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.first().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn defaults_are_those_of_a_host_without_a_configuration() {
    let configuration = environment(&[]).configuration;
    assert_eq!(configuration.memory_limit.value, Bytes(256_000_000));
    assert_eq!(configuration.bridge.value, BridgePolicy::Attach);
    assert_eq!(configuration.bridge_age.value, Duration::from_secs(10));
    assert!(configuration.types.value.iter().eq([SampleKind::Cpu]));
    assert!(configuration.store.enabled.value);
    assert!(configuration.exporters.is_empty());
}

#[test]
fn a_flag_has_a_list_with_commas_or_as_in_the_file() {
    for text in ["cpu,wall", "[\"cpu\", \"wall\"]", "['cpu','wall']", "[cpu, wall]"] {
        let flags = [("--set", "sampling.types", text)];
        let configuration = with("", &[], &flags).expect("right").configuration;
        let types: Vec<_> = configuration.types.value.iter().collect();
        assert_eq!(types, [SampleKind::Cpu, SampleKind::Wall], "{text}");
    }
    assert!(with("", &[], &[("--set", "sampling.types", "[\"cpu\", \"walls\"]")]).is_err());
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let text = "[sampling]\nfrequency = 1\n";
    let variable = [("STRATA_SAMPLING_FREQUENCY", "2")];
    let flag = [("--frequency", "sampling.frequency", "3")];
    let read = |environment: &[(&str, &str)], flags: &[(&str, &str, &str)]| {
        let configuration = with(text, environment, flags).expect("right").configuration;
        let (kind, frequency) = &configuration.frequencies[0];
        assert_eq!(configuration.frequencies().of(*kind), frequency.value);
        (frequency.value, frequency.origin.to_string())
    };
    assert_eq!(read(&[], &[]), (1, "strata.toml:2".to_owned()));
    assert_eq!(read(&variable, &[]), (2, "variable STRATA_SAMPLING_FREQUENCY".to_owned()));
    assert_eq!(read(&variable, &flag), (3, "flag --frequency".to_owned()));
}

#[test]
fn of_a_flag_that_is_given_twice_the_last_counts() {
    let flag = |value| ("--set", "sampling.frequency", value);
    let configuration = with("", &[], &[flag("19"), flag("99")]).expect("right").configuration;
    assert_eq!(configuration.frequencies[0].1.value, 99);
}

#[test]
fn a_flag_for_a_rule_leaves_it_in_its_place() {
    let rule = |service| format!("[[rule]]\nmatch = {{ exe = \"*\" }}\nservice = \"{service}\"\n");
    let text = (0..11).map(|number| rule(format!("s{number}"))).collect::<String>();
    let flags = [("--set", "rule.11.frequency", "99"), ("--set", "rule.2.frequency", "99")];
    let rules = with(&text, &[], &flags).expect("right").configuration.rules;
    let services: Vec<_> = rules.iter().filter_map(|rule| rule.service.value.clone()).collect();
    assert_eq!(services, (0..11).map(|number| format!("s{number}")).collect::<Vec<_>>());
}

#[test]
fn a_host_is_called_what_the_configuration_says() {
    assert_eq!(environment(&[]).configuration.host.value, None);
    let host = environment(&[("STRATA_HOST", "node-1")]).configuration.host;
    assert_eq!(host.value.as_deref(), Some("node-1"));
    assert_eq!(host.origin.to_string(), "variable STRATA_HOST");
    assert_eq!(file("host = \"\"\n").configuration.host.value, None);
    assert!(only_problem("host = \"a\\nb\"\n").contains("host: expected a name, on one line"));
}

#[test]
fn stratas_own_variable_wins_over_an_agents() {
    let loaded = environment(&[
        ("PYROSCOPE_SERVER_ADDRESS", "http://agent"),
        ("STRATA_EXPORTER_PYROSCOPE_URL", "http://strata"),
    ]);
    let url = loaded
        .configuration
        .exporters
        .first()
        .and_then(|exporter| exporter.url.clone())
        .expect("an exporter");
    assert_eq!(url.value, "http://strata");
}

#[test]
fn an_exporter_with_defaults_alone_is_one() {
    for (name, kind) in [("datadog", Kind::Datadog), ("otlp", Kind::Otlp)] {
        let configuration = file(&format!("[exporter.{name}]\n[sampling]\n")).configuration;
        let [exporter] = configuration.exporters.as_slice() else { panic!("one exporter") };
        assert_eq!((exporter.name.as_str(), exporter.kind), (name, kind));
        assert!(exporter.url.is_some());
    }
    assert!(only_problem("[exporter.mine]\n").contains("an exporter needs a kind"));
}

#[test]
fn times_in_which_nothing_can_be_sent_are_refused() {
    let text = |line: &str| format!("[exporter.otlp]\n{line}\n");
    assert!(only_problem(&text("spool_age = \"30s\"")).contains("spool_age: at least 1m"));
    assert!(only_problem(&text("timeout = \"0s\"")).contains("timeout: no request ends"));
}

#[test]
fn pyroscopes_variables_make_a_exporter() {
    let loaded = environment(&[
        ("PYROSCOPE_SERVER_ADDRESS", "https://p.example:4040"),
        ("PYROSCOPE_AUTH_TOKEN", "hunter2"),
        ("PYROSCOPE_TENANT_ID", "team"),
        ("PYROSCOPE_HTTP_HEADERS", r#"{"X-Key":"hunter2"}"#),
        ("PYROSCOPE_PROFILING_UPLOAD_PERIOD", "20"),
    ]);
    let [exporter] = loaded.configuration.exporters.as_slice() else { panic!("one exporter") };
    assert_eq!((exporter.name.as_str(), exporter.kind), ("pyroscope", Kind::Pyroscope));
    assert_eq!(exporter.period.value, Duration::from_secs(20));
    assert_eq!(exporter.tenant.value.as_deref(), Some("team"));
    let token = exporter.token.as_ref().map(|token| &token.value);
    assert!(matches!(token, Some(Credential::Value(secret)) if secret.reveal() == "hunter2"));
    assert!(
        exporter.headers.iter().any(|(name, value)| name == "X-Key" && value.reveal() == "hunter2")
    );
    let shown = format!("{}{loaded:?}", loaded.show());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("exporter.pyroscope.token = ***  # variable PYROSCOPE_AUTH_TOKEN"));
}

#[test]
fn datadogs_variables_make_a_exporter_and_the_url_comes_first() {
    let url = |pairs: &[(&str, &str)]| {
        let exporters = environment(pairs).configuration.exporters;
        exporters.first().and_then(|exporter| exporter.url.clone()).map(|url| url.value)
    };
    let all = [
        ("DD_TRACE_AGENT_URL", "http://a:1"),
        ("DD_AGENT_HOST", "b"),
        ("DD_TRACE_AGENT_PORT", "2"),
        ("DD_APM_RECEIVER_SOCKET", "/run/c.sock"),
    ];
    assert_eq!(url(&all).as_deref(), Some("http://a:1"));
    assert_eq!(url(all.get(1..).expect("three")).as_deref(), Some("http://b:2"));
    assert_eq!(url(all.get(2..).expect("two")).as_deref(), Some("http://localhost:2"));
    assert_eq!(url(all.get(3..).expect("one")).as_deref(), Some("unix:///run/c.sock"));
    assert_eq!(url(&[("DD_AGENT_HOST", "fd00::1")]).as_deref(), Some("http://[fd00::1]:8126"));
}

#[test]
fn a_datadog_exporter_without_an_address_takes_the_agents_socket_if_it_is_there() {
    let shown = |agent_socket: Option<&str>, environment: &[(&str, &str)]| {
        let environment = variables(environment);
        let file = Some(("strata.toml", "[exporter.datadog]\nperiod = \"60s\"\n"));
        let inputs = Inputs { file, environment: &environment, agent_socket, ..Inputs::default() };
        let loaded = load(&inputs).expect("right");
        let lines = loaded.show();
        lines
            .lines()
            .find(|line| line.starts_with("exporter.datadog.url"))
            .expect("it is shown")
            .to_owned()
    };
    let socket = Some("/var/run/datadog/apm.socket");
    assert_eq!(shown(None, &[]), "exporter.datadog.url = \"http://localhost:8126\"  # default");
    assert_eq!(
        shown(socket, &[]),
        "exporter.datadog.url = \"unix:///var/run/datadog/apm.socket\"  \
         # default, as it is there on this host"
    );
    assert_eq!(
        shown(socket, &[("DD_AGENT_HOST", "a")]),
        "exporter.datadog.url = \"http://a:8126\"  # variable DD_AGENT_HOST"
    );
    assert_eq!(
        shown(socket, &[("DD_TRACE_AGENT_URL", "http://b:1"), ("DD_AGENT_HOST", "a")]),
        "exporter.datadog.url = \"http://b:1\"  # variable DD_TRACE_AGENT_URL"
    );
}

#[test]
fn otlps_default_port_is_that_of_its_protocol() {
    for (text, environment, url) in [
        ("[exporter.otlp]\nkind = \"otlp\"\n", &[][..], "http://localhost:4318"),
        ("[exporter.otlp]\nprotocol = \"grpc\"\n", &[], "http://localhost:4317"),
        (
            "[exporter.otlp]\nkind = \"otlp\"\n",
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "http://localhost:4317",
        ),
        ("[exporter.otlp]\nprotocol = \"grpc\"\nurl = \"http://c:4318\"\n", &[], "http://c:4318"),
    ] {
        let loaded = with(text, environment, &[]).expect("right");
        let exporter = loaded.configuration.exporters.first().expect("an exporter");
        assert_eq!(exporter.url.as_ref().map(|found| found.value.as_str()), Some(url), "{text}");
    }
}

#[test]
fn what_rules_tell_apart_makes_series_unless_a_exporter_says_otherwise() {
    let rule =
        "[[rule]]\n[rule.labels]\nteam = \"shop\"\nenv = \"x\"\n[rule.match]\ncomm = \"a\"\n";
    let labels = |text: &str| {
        let loaded = file(&format!("{rule}{text}"));
        loaded
            .configuration
            .exporters
            .first()
            .map(|exporter| exporter.labels.value.clone())
            .expect("an exporter")
    };
    let usual = labels("[exporter.pyroscope]\nurl = \"http://p:4040\"\n");
    assert_eq!(usual.iter().filter(|name| *name == "env").count(), 1);
    assert_eq!(usual.last().map(String::as_str), Some("team"));
    let own = labels("[exporter.pyroscope]\nurl = \"http://p:4040\"\nlabels = [\"env\"]\n");
    assert_eq!(own, ["env"]);
}

#[test]
fn what_is_ignored_is_said() {
    let notices = environment(&[
        ("DD_API_KEY", "hunter2"),
        ("PYROSCOPE_AUTH_TOKEN", "hunter2"),
        ("STRATA_SAMPLING_FREQUENZY", "9"),
    ])
    .notices;
    let text = notices.join("\n");
    assert!(text.contains("DD_API_KEY is ignored: strata sends to an agent"), "{text}");
    assert!(
        text.contains("PYROSCOPE_AUTH_TOKEN is ignored: there is no exporter `pyroscope`"),
        "{text}"
    );
    assert!(text.contains("did you mean `STRATA_SAMPLING_FREQUENCY`?"), "{text}");
    assert!(!text.contains("hunter2"));
}

#[test]
fn a_secret_may_lie_in_a_file_that_is_read_later() {
    let exporters = file("[exporter.prod]\nkind = \"pyroscope\"\ntoken_file = \"/run/token\"\n")
        .configuration
        .exporters;
    let token =
        exporters.first().and_then(|exporter| exporter.token.clone()).map(|token| token.value);
    assert_eq!(token, Some(Credential::File("/run/token".into())));
}

#[test]
fn an_unknown_key_is_shown_where_it_is_with_the_one_that_was_meant() {
    let text = only_problem("memory_limit = \"1GB\"\n[sampling]\n  frequenzy = 99\n");
    assert_eq!(
        text,
        "strata.toml:3:3: unknown key `sampling.frequenzy`\n3 |   frequenzy = …\n  |   ^\n-> did you mean `frequency`?"
    );
    assert!(only_problem("[smapling]\nfrequency = 1\n").ends_with("-> did you mean `sampling`?"));
    assert!(only_problem("frequency = 1\n").ends_with("-> there is `sampling.frequency`"));
    assert!(only_problem("[exporter.datadog]\nurll = 1\n").ends_with("-> did you mean `url`?"));
}

#[test]
fn a_wrong_value_is_shown_with_what_was_expected() {
    let text = only_problem("[dotnet]\nage = 10\n");
    assert!(
        text.starts_with("strata.toml:2:1: dotnet.age: expected a time with its unit"),
        "{text}"
    );
    assert!(text.contains("2 | age = 10"), "{text}");
    assert!(only_problem("[sampling]\ntypes = [\"cpus\"]\n").ends_with("-> did you mean `cpu`?"));
    assert!(only_problem("memory_limit = \"1MB\"\n").contains("at least 64MB"));
    assert!(only_problem("[sampling]\nfrequency = 0\n").contains("from 1 to 1000"));
    assert!(
        only_problem("[exporter.x]\nurl = \"http://h\"\n").contains("an exporter needs a kind")
    );
}

#[test]
fn no_type_at_all_leaves_it_to_rules_and_variables() {
    assert!(file("[sampling]\ntypes = []\n").configuration.types.value.is_empty());
}

#[test]
fn an_age_at_which_nothing_is_stored_is_refused() {
    let text = only_problem("[store]\nage = \"0s\"\n");
    assert!(text.starts_with("strata.toml:2:1: store.age: at least 1m"), "{text}");
    assert!(text.ends_with("-> for no store: store.enabled = false"), "{text}");
    assert!(file("[store]\nage = \"1m\"\n").configuration.store.enabled.value);
}

#[test]
fn a_rule_that_is_no_list_is_refused_with_what_to_write() {
    for rule in [
        "[rule]\nname = \"a\"\nmatch = { exe = \"*\" }\nenable = false\n",
        "[rule]\n[rule.match]\nexe = \"*\"\n",
        "[rule.web]\nmatch = { exe = \"*\" }\n",
    ] {
        let text = only_problem(rule);
        assert!(text.contains(": rule: rules are a list: write `[[rule]]`"), "{text}");
        assert!(text.starts_with("strata.toml:2:") || text.starts_with("strata.toml:3:"), "{text}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_shown_where_it_breaks() {
    let text = only_problem("[sampling]\nfrequency = = 1\n");
    assert!(text.starts_with("strata.toml:2:13: "), "{text}");
    assert!(text.contains("2 | frequency = = 1"), "{text}");
    assert!(only_problem("sampling.frequency = 1x\n").contains("1 | sampling.frequency = 1x"));
    assert!(only_problem("[sampling\n").contains("1 | [sampling"));
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "a = 1\nb = 2\nmemory_limit = true\n";
    let inputs = Inputs { file: Some(("strata.toml", text)), ..Inputs::default() };
    assert_eq!(check(&inputs).len(), 3);
}

#[test]
fn no_problem_shows_a_secret() {
    for text in [
        "[exporter.pyroscope]\ntoken = [\"hunter2\"]\n",
        "[exporter.pyroscope]\ntoken = \"hunter2\n",
        "[exporter.pyroscope]\ntokn = \"hunter2\"\n",
        "[exporter.pyroscope]\npasword = \"hunter2\"\n",
        "[exporter.pyroscope.headers]\nX-Team = [\"hunter2\"]\n",
        "[exporter.pyroscope.headers]\nX-Team = \"hunter2\n",
        "[exporter.pyroscope]\nurl = \"http://me:hunter2@host\"\n",
        "[exporter.pyroscope]\ntoken = \"hunter2\"\ntoken_file = \"/x\"\n",
        "exporter.pyroscope = { period = 3, token = \"hunter2\" }\n",
        "[exporter.pyroscope]\ntoken = \"\"\"a\nhunter2\"\"\" x\n",
        // Pasted in two lines, in an array, without quotes, without a key, below a wrong key.
        "[exporter.pyroscope]\ntoken = \"c2Vj\nhunter2==\"\n",
        "[exporter.pyroscope]\ntoken = [\n \"hunter2=\" \"x\"\n",
        "[exporter.pyroscope]\ntoken =\nhunter2==\n",
        "[exporter.pyroscope]\nhunter2==\n",
        "[exporter.pyroscope]\npasswd = hunter2\n",
        "exporter.pyroscope.url = http://me:hunter2@host\n",
    ] {
        let problems = with(text, &[], &[]).expect_err(text);
        let shown = format!(
            "{problems:?}\n{}",
            problems.iter().map(ToString::to_string).collect::<String>()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn of_several_rules_the_first_wins_setting_by_setting() {
    let rules = file(
        "[[rule]]\nmatch = { exe = \"*/dotnet\" }\nservice = \"a\"\nlabels = { team = \"a\" }\n\
         [[rule]]\nmatch = { comm = \"dot*\" }\nservice = \"b\"\nfrequency = 99\nbridge = \"off\"\nlabels = { team = \"b\", tier = \"b\" }\n\
         [[rule]]\nmatch = { comm = \"other\" }\nenable = false\n",
    )
    .configuration
    .rules;
    let facts = Facts { exe: Some("/usr/bin/dotnet"), comm: "dotnet", ..Facts::default() };
    let decision = decide(&rules, &facts);
    assert_eq!(decision.choice.service.as_deref(), Some("a"));
    assert_eq!(decision.frequency(strata_kinds::Kind::Cpu), Some(99));
    assert_eq!(decision.bridge, Some(BridgePolicy::Off));
    assert_eq!(decision.choice.labels, variables(&[("team", "a"), ("tier", "b")]));
    assert_eq!(decision.choice.enabled, None);
    assert_eq!(decide(&rules, &Facts::default()), Default::default());
}

#[test]
fn a_rule_matches_on_container_labels_and_environment() {
    let id = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";
    let group = control_group::parse(&format!("0::/docker/{id}\n"));
    let pod =
        Pod { container: "web".into(), labels: variables(&[("tier", "front")]), ..Pod::default() };
    let facts = Facts {
        environment: Environment::new(b"STAGE=prod\0"),
        group: Some(&group),
        pod: Some(&pod),
        ..Facts::default()
    };
    for (condition, holds) in [
        ("container = \"web\"", true),
        ("container = \"4f1d6ad2*\"", true),
        ("container = \"db\"", false),
        ("labels = { tier = \"fr?nt\" }", true),
        ("labels = { other = \"*\" }", false),
        ("env = { STAGE = \"prod\" }", true),
        ("env = { STAGE = \"prod\" }, comm = \"x\"", false),
    ] {
        let rules = file(&format!("[[rule]]\nmatch = {{ {condition} }}\nenable = false\n"))
            .configuration
            .rules;
        assert_eq!(decide(&rules, &facts).choice.enabled == Some(false), holds, "{condition}");
    }
}

#[test]
fn a_rule_without_conditions_is_refused_and_so_is_trust_in_claims() {
    assert!(
        only_problem("[[rule]]\nenable = false\n")
            .contains("a rule says which processes it is for")
    );
    let granted =
        |condition: &str| format!("[[rule]]\nmatch = {{ {condition} }}\nown_destination = true\n");
    for claims in ["env = { A = \"b\" }", "comm = \"b\""] {
        let text = only_problem(&granted(claims));
        assert!(text.contains("own_destination: any process can set a variable"), "{text}");
        assert!(text.ends_with("-> match on exe, container or labels as well"), "{text}");
    }
    for condition in ["container = \"web\"", "exe = \"/b\", labels = { app = \"web\" }"] {
        assert_eq!(file(&granted(condition)).configuration.rules.len(), 1, "{condition}");
    }
    // A path is the host's only in the host's mount namespace.
    let rules = file(&granted("exe = \"/b\"")).configuration.rules;
    for is_exe_of_host in [false, true] {
        let facts = Facts { exe: Some("/b"), is_exe_of_host, ..Facts::default() };
        assert_eq!(decide(&rules, &facts).choice.own_destination, is_exe_of_host);
    }
}

#[test]
fn a_rule_on_an_empty_variable_never_matches_and_is_refused() {
    let text = only_problem("[[rule]]\nmatch = { env = { A = \"\" } }\n");
    assert!(text.starts_with("strata.toml:2:19: rule.1.match.env.A: an empty variable"), "{text}");
    assert!(text.ends_with("-> for any value: \"*\""), "{text}");
    let text = only_problem("[[rule]]\nmatch = { env = { A = 1 } }\n");
    assert!(text.contains("rule.1.match.env.A: expected text"), "{text}");
    // A pod's label may be empty.
    file("[[rule]]\nmatch = { labels = { a = \"\" } }\n");
}

#[test]
fn a_host_has_at_least_one_service() {
    assert!(only_problem("[services]\nmost = 0\n").contains("services.most: at least 1"));
}

#[test]
fn a_user_needs_a_password() {
    let text = |lines: &str| format!("[exporter.pyroscope]\nuser = \"me\"\n{lines}\n");
    let alone = only_problem(&text(""));
    assert!(alone.contains("user: a user is sent with a password only"), "{alone}");
    assert!(alone.ends_with("-> set password or password_file"), "{alone}");
    let beside = only_problem(&text("token = \"hunter2\""));
    assert!(beside.ends_with("-> set password instead of token, or remove user"), "{beside}");
    for password in ["password = \"hunter2\"", "password_file = \"/p\""] {
        let exporters = file(&text(password)).configuration.exporters;
        assert!(exporters.iter().all(|exporter| exporter.password.is_some()), "{password}");
    }
}

#[test]
fn a_variable_switches_off_by_its_word_and_sets_nothing_when_it_is_empty() {
    let keys = [
        ("metrics.address", "STRATA_METRICS_ADDRESS"),
        ("metrics.socket", "STRATA_METRICS_SOCKET"),
        ("services.pool", "STRATA_SERVICES_POOL"),
        ("containers.kubelet_ca_file", "STRATA_CONTAINERS_KUBELET_CA_FILE"),
    ];
    for (key, variable) in keys {
        let off = environment(&[(variable, "off")]);
        let line = format!("{key} = \"\"  # variable {variable}\n");
        assert!(off.show().contains(&line) && off.notices.is_empty(), "{}", off.show());
        let flag = with("", &[], &[("--set", key, "off")]).expect("right");
        assert!(flag.show().contains(&format!("{key} = \"\"  # flag --set\n")), "{key}");
        let empty = environment(&[(variable, "")]);
        assert_eq!(empty.configuration, environment(&[]).configuration);
        let notice =
            format!("{variable} is empty and sets nothing: `{variable}=off` switches {key} off");
        assert_eq!(empty.notices, [notice]);
    }
    let off = [("STRATA_METRICS_ADDRESS", "off"), ("STRATA_CONTAINERS_KUBELET", "off")];
    let text = "[containers]\nkubelet = \"https://n:10250\"\n";
    let configuration = with(text, &off, &[]).expect("right").configuration;
    assert_eq!((configuration.metrics.value, configuration.containers.kubelet.value), (None, None));
    // A word of its own.
    let text = "[[rule]]\nmatch = { exe = \"*\" }\nbridge = \"attach\"\nservice = \"a\"\n";
    let off = [("STRATA_RULE_1_BRIDGE", "off"), ("STRATA_RULE_1_SERVICE", "off")];
    let rules = with(text, &off, &[]).expect("right").configuration.rules;
    let rule = rules.first().expect("a rule");
    assert_eq!(rule.bridge.value, Some(BridgePolicy::Off));
    assert_eq!(rule.service.value.as_deref(), Some("off"));
    // Not an environment in which an optional variable is empty.
    assert!(
        environment(&[("STRATA_HOST", ""), ("STRATA_CONTAINERS_KUBELET", "")]).notices.is_empty()
    );
}

#[test]
fn headers_of_the_file_have_variables() {
    let text = "[exporter.pyroscope]\n[exporter.pyroscope.headers]\nX-Team = \"file\"\n";
    let variable = [("STRATA_EXPORTER_PYROSCOPE_HEADERS_X_TEAM", "variable")];
    let exporters = with(text, &variable, &[]).expect("right").configuration.exporters;
    let headers = exporters.first().map(|exporter| exporter.headers.as_slice());
    let Some([(name, value)]) = headers else { panic!("one header") };
    assert_eq!((name.as_str(), value.reveal()), ("X-Team", "variable"));
}

#[test]
fn of_a_credential_and_its_file_the_higher_layer_wins() {
    let value = ("STRATA_EXPORTER_PYROSCOPE_TOKEN", "hunter2");
    let path = ("STRATA_EXPORTER_PYROSCOPE_TOKEN_FILE", "/variable");
    let agents = ("PYROSCOPE_AUTH_TOKEN", "hunter2");
    let secret = || Credential::Value(strata_config::Secret::new("hunter2"));
    for (line, variables, expected, shown) in [
        ("token_file = \"/file\"", &[value][..], secret(), "token_file = \"\"  # variable"),
        ("token_file = \"/file\"", &[agents], secret(), "token_file = \"\"  # variable"),
        ("token = \"file\"", &[path], Credential::File("/variable".into()), "token = \"\"  # var"),
        ("", &[path, agents], Credential::File("/variable".into()), "token = \"\"  # variable"),
        (
            "token_file = \"/file\"\ntoken = \"hunter2\"",
            &[("STRATA_EXPORTER_PYROSCOPE_TOKEN_FILE", "off")],
            secret(),
            "token = ***  # strata.toml:3",
        ),
    ] {
        let text = format!("[exporter.pyroscope]\n{line}\n");
        let loaded = with(&text, variables, &[]).expect("right");
        let exporter = loaded.configuration.exporters.first().expect("an exporter");
        assert_eq!(exporter.token.as_ref().map(|token| &token.value), Some(&expected), "{line}");
        assert!(loaded.show().contains(&format!("pyroscope.{shown}")), "{}", loaded.show());
    }
    let problems = with("[exporter.pyroscope]\n", &[value, path], &[]).expect_err("both are set");
    assert!(problems.iter().all(|problem| problem.message.contains("are both set")));
}

#[test]
fn a_targets_own_destination_is_on_the_network_and_no_file_of_the_host() {
    let wish = |variable, value: &str| Wish { variable, value: value.to_owned() };
    let (exporters, problems) = own_exporters(&[
        wish("DD_TRACE_AGENT_URL", "unix:///etc/socket"),
        wish("OTEL_EXPORTER_OTLP_ENDPOINT", "http://own:4318"),
        wish("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/shadow"),
    ]);
    assert!(problems.is_empty(), "{problems:?}");
    let [exporter] = exporters.as_slice() else { panic!("one exporter: {exporters:?}") };
    assert_eq!(exporter.name, "otlp");
    assert_eq!(exporter.ca_file.value, None);
    assert_eq!(exporter.token, None);
}

#[test]
fn a_target_with_a_value_that_the_host_would_refuse_has_no_destination() {
    let wish = |variable, value: &str| Wish { variable, value: value.to_owned() };
    for refused in [
        wish("PYROSCOPE_PROFILING_UPLOAD_PERIOD", "99999999"),
        wish("PYROSCOPE_BASIC_AUTH_USER", "me"),
    ] {
        let url = wish("PYROSCOPE_SERVER_ADDRESS", "http://own:4040");
        let (exporters, problems) = own_exporters(&[url, refused]);
        assert!(exporters.is_empty() && problems.len() == 1, "{exporters:?} {problems:?}");
    }
}

#[test]
fn every_value_is_shown_with_its_origin() {
    let shown = with("[store]\nage = \"36h\"\n", &[("STRATA_LOG_LEVEL", "debug")], &[])
        .expect("right")
        .show();
    assert!(shown.contains("store.age = \"36h\"  # strata.toml:2\n"), "{shown}");
    assert!(shown.contains("log.level = \"debug\"  # variable STRATA_LOG_LEVEL\n"), "{shown}");
    assert!(shown.contains("memory_limit = \"256MB\"  # default\n"), "{shown}");
}

#[test]
fn patterns_match_as_a_shells_do() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("*", "", true),
        ("a*c", "abbc", true),
        ("a*c", "abcb", false),
        ("*a*b*", "xxaxxbxx", true),
        ("?", "é", true),
        ("?", "", false),
        ("a", "ab", false),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
    assert!(!matches(&"*a".repeat(50), &"b".repeat(5000)));
}

#[test]
fn an_origin_in_a_file_has_a_column() {
    let frequency = file("sampling = { frequency = 7 }\n").configuration.frequencies.remove(0).1;
    assert!(
        matches!(frequency.origin, Origin::File { line: 1, column: 14, .. }),
        "{:?}",
        frequency.origin
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "([a-z_.\\[\\]]{1,12} ?= ?[\"a-z0-9{}, ]{0,9}\n|\\[\\[?[a-z.]{0,12}\\]\\]?\n|.*\n){0,9}") {
        for problem in check(&Inputs { file: Some(("f", &text)), ..Inputs::default() }) {
            let _ = problem.to_string();
        }
    }
}
