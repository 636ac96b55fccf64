//! The order of precedence: one case per step, and one per tie.

use strata_kinds::Kinds;
use strata_metadata::control_group;
use strata_metadata::{
    Application, Choice, Container, Environment, Facts, Identity, Pod, Source, identify,
};

const ID: &str = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";

/// Owned facts that a case changes.
#[derive(Default)]
struct World {
    choice: Choice,
    environment: Vec<&'static str>,
    application: &'static str,
    entry_assembly: Option<&'static str>,
    groups: String,
    container: Option<Container>,
    pod: Option<Pod>,
    exe: Option<&'static str>,
    called: Option<&'static str>,
    comm: &'static str,
}

impl World {
    /// Every source is set, each to a different value.
    fn full() -> Self {
        Self {
            choice: Choice { service: Some("of-rule".into()), ..Choice::default() },
            environment: vec![
                "OTEL_RESOURCE_ATTRIBUTES=service.name=of-attributes",
                "OTEL_SERVICE_NAME=of-otel",
                "DD_TAGS=service:of-tags",
                "DD_SERVICE=of-dd",
                "PYROSCOPE_LABELS=service_name:of-labels",
                "PYROSCOPE_APPLICATION_NAME=of-pyroscope",
            ],
            application: "of-application",
            entry_assembly: Some("Of.Assembly.dll"),
            groups: "0::/system.slice/of-unit.service\n".into(),
            container: Some(Container {
                name: Some("of-container".into()),
                labels: pairs(&[("com.datadoghq.tags.service", "of-docker-label")]),
                ..Container::default()
            }),
            pod: Some(Pod {
                namespace: "shop".into(),
                name: "cart-1".into(),
                container: "cart".into(),
                labels: pairs(&[
                    ("app.kubernetes.io/name", "of-name-label"),
                    ("tags.datadoghq.com/service", "of-datadog-label"),
                    ("tags.datadoghq.com/cart.service", "of-container-label"),
                ]),
                annotations: pairs(&[
                    ("resource.opentelemetry.io/service.name", "of-otel-annotation"),
                    ("pyroscope.io/service_name", "of-annotation"),
                ]),
                ..Pod::default()
            }),
            exe: Some("/usr/bin/of-exe"),
            called: Some("of-link"),
            comm: "of-comm",
        }
    }

    fn who(&self) -> Identity {
        let block: Vec<u8> =
            self.environment.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        let group = control_group::parse(&self.groups);
        let facts = Facts {
            environment: Environment::new(&block),
            application: Application { service: self.application, ..Application::default() },
            entry_assembly: self.entry_assembly,
            group: Some(&group),
            container: self.container.as_ref(),
            pod: self.pod.as_ref(),
            exe: self.exe,
            is_exe_of_host: false,
            called: self.called,
            comm: self.comm,
        };
        identify(&facts, &self.choice, Kinds::NONE)
    }

    fn service(&self) -> (String, Source) {
        let service = self.who().service;
        (service.value, service.source)
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// One winner of the ladder, and how it is taken away so that the next one shows.
type Rung = (&'static str, Source, fn(&mut World));

#[test]
fn every_step_and_every_tie_in_it_names_the_service_when_those_before_are_missing() {
    fn unset(world: &mut World) {
        world.environment.pop();
    }
    fn without(world: &mut World, label: &str) {
        let pod = world.pod.as_mut().expect("the pod is still known");
        pod.labels.retain(|(name, _)| name != label);
        pod.annotations.retain(|(name, _)| name != label);
    }
    let ladder: [Rung; 21] = [
        ("of-rule", Source::Rule, |world| world.choice.service = None),
        ("of-application", Source::Application, |world| world.application = ""),
        ("of-pyroscope", Source::PyroscopeApplicationName, unset),
        ("of-labels", Source::PyroscopeLabels, unset),
        ("of-dd", Source::DdService, unset),
        ("of-tags", Source::DdTags, unset),
        ("of-otel", Source::OtelServiceName, unset),
        ("of-attributes", Source::OtelResourceAttributes, unset),
        ("Of.Assembly", Source::EntryAssembly, |world| world.entry_assembly = None),
        ("of-unit", Source::SystemdUnit, |world| world.groups.clear()),
        ("of-docker-label", Source::ContainerDatadogLabel, |world| {
            world.container.as_mut().expect("the container is still known").labels.clear();
        }),
        ("of-container", Source::ContainerName, |world| world.container = None),
        ("of-annotation", Source::PodPyroscopeAnnotation, |world| {
            without(world, "pyroscope.io/service_name");
        }),
        ("of-container-label", Source::PodDatadogLabel, |world| {
            without(world, "tags.datadoghq.com/cart.service");
        }),
        ("of-datadog-label", Source::PodDatadogLabel, |world| {
            without(world, "tags.datadoghq.com/service");
        }),
        ("of-otel-annotation", Source::PodOtelAnnotation, |world| {
            without(world, "resource.opentelemetry.io/service.name");
        }),
        ("of-name-label", Source::PodNameLabel, |world| without(world, "app.kubernetes.io/name")),
        ("shop/cart", Source::PodContainer, |world| world.pod = None),
        ("of-link", Source::Executable, |world| world.called = None),
        ("of-exe", Source::Executable, |world| world.exe = None),
        ("of-comm", Source::Comm, |world| world.comm = ""),
    ];
    let mut world = World::full();
    for (name, source, take_away) in ladder {
        assert_eq!(world.service(), (name.to_owned(), source));
        take_away(&mut world);
    }
    assert_eq!(world.service(), ("unknown".to_owned(), Source::Nothing));
}

#[test]
fn a_value_that_is_empty_or_blank_leaves_the_step_to_the_next() {
    let world = World {
        choice: Choice { service: Some(" ".into()), ..Choice::default() },
        environment: vec![
            "PYROSCOPE_APPLICATION_NAME=",
            "DD_SERVICE= \t",
            "OTEL_SERVICE_NAME=real",
        ],
        ..World::default()
    };
    assert_eq!(world.service().0, "real");
}

#[test]
fn of_a_variable_that_is_set_twice_the_first_counts() {
    let world = World { environment: vec!["DD_SERVICE=a", "DD_SERVICE=b"], ..World::default() };
    assert_eq!(world.service().0, "a");
}

#[test]
fn of_two_names_in_one_list_the_first_written_counts() {
    let world = World {
        environment: vec!["DD_TAGS=service.name:a,service:b,env:x,env:y"],
        ..World::default()
    };
    let who = world.who();
    assert_eq!(who.service.value, "a");
    assert_eq!(who.env.map(|env| env.value).as_deref(), Some("x"));
}

#[test]
fn env_and_version_follow_the_same_order() {
    let all = [
        "OTEL_RESOURCE_ATTRIBUTES=deployment.environment=otel,service.version=otel",
        "DD_TAGS=env:tags,version:tags",
        "DD_VERSION=dd",
        "DD_ENV=dd",
        "PYROSCOPE_LABELS=env=labels,version=labels",
    ];
    let mut world = World::full();
    world.pod = Some(Pod {
        labels: pairs(&[
            ("tags.datadoghq.com/env", "pod"),
            ("tags.datadoghq.com/version", "pod"),
            ("app.kubernetes.io/version", "name-label"),
        ]),
        ..Pod::default()
    });
    world.container = Some(Container {
        labels: pairs(&[
            ("com.datadoghq.tags.env", "container"),
            ("com.datadoghq.tags.version", "container"),
        ]),
        ..Container::default()
    });
    world.environment = all.to_vec();
    world.choice =
        Choice { env: Some("rule".into()), version: Some("rule".into()), ..Choice::default() };
    let check = |world: &World, env: &str, version: &str| {
        let who = world.who();
        assert_eq!(who.env.map(|env| env.value).unwrap_or_default(), env);
        assert_eq!(who.version.map(|version| version.value).unwrap_or_default(), version);
    };
    check(&world, "rule", "rule");
    world.choice = Choice::default();
    for (left, expected) in [(5, "labels"), (4, "dd"), (2, "tags"), (1, "otel"), (0, "container")] {
        world.environment = all.get(..left).expect("at most all of them").to_vec();
        check(&world, expected, expected);
    }
    world.container = None;
    check(&world, "pod", "pod");
    world.pod = Some(Pod {
        labels: pairs(&[("app.kubernetes.io/version", "name-label")]),
        ..Pod::default()
    });
    check(&world, "", "name-label");
}

#[test]
fn labels_are_merged_and_the_earlier_source_wins_a_name() {
    let world = World {
        choice: Choice { labels: pairs(&[("team", "rule")]), ..Choice::default() },
        environment: vec![
            "OTEL_RESOURCE_ATTRIBUTES=team=otel,d=otel,c=otel",
            "DD_TAGS=team:dd c:dd b:dd",
            "PYROSCOPE_LABELS=team:pyro,b:pyro,a:pyro",
        ],
        ..World::default()
    };
    let labels = world.who().labels;
    let shown: Vec<_> =
        labels.iter().map(|label| (label.name.as_str(), label.value.as_str())).collect();
    assert_eq!(shown, [("a", "pyro"), ("b", "pyro"), ("c", "dd"), ("d", "otel"), ("team", "rule")]);
    assert_eq!(labels.last().map(|label| label.source), Some(Source::Rule));
}

#[test]
fn the_host_says_where_a_process_runs_and_the_target_cannot() {
    let mut world = World::full();
    world.groups = format!("0::/web.service/libpod-payload-{ID}\n");
    world.environment = vec!["DD_TAGS=pod:other,Runtime.ID:1,__name__:x,namespace:other,fine:yes"];
    let who = world.who();
    let label = |name: &str| {
        who.labels.iter().find(|label| label.name == name).map(|label| label.value.as_str())
    };
    assert_eq!(label("pod"), Some("cart-1"));
    assert_eq!(label("namespace"), Some("shop"));
    assert_eq!(label("container"), Some("cart"));
    assert_eq!(label("container_name"), Some("of-container"));
    assert_eq!(label("container_id"), Some(ID));
    assert_eq!(label("systemd_unit"), Some("web.service"));
    assert_eq!(label("fine"), Some("yes"));
    assert_eq!(who.refused.reserved, 4);
}

#[test]
fn a_process_cannot_place_itself_by_the_backends_names() {
    let world = World {
        choice: Choice { labels: pairs(&[("kube_node", "of-rule")]), ..Choice::default() },
        environment: vec![
            "DD_TAGS=pod_name:a,Kube_Namespace:b,kube_node:c,process_id:1",
            "OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=a,container.id=b,service.instance.id=c,k8s=d",
        ],
        ..World::default()
    };
    let who = world.who();
    let labels: Vec<_> =
        who.labels.iter().map(|label| (label.name.as_str(), label.value.as_str())).collect();
    assert_eq!(labels, [("k8s", "d"), ("kube_node", "of-rule")]);
    assert_eq!(who.refused.reserved, 7);
}

#[test]
fn labels_with_a_repository_lose_user_and_password() {
    let world = World {
        environment: vec![
            "DD_TAGS=Git.Repository_URL:https://ci:secret@host/x,other:a://b@c",
            "OTEL_RESOURCE_ATTRIBUTES=vcs.repository.url.full=https://secret%40@host/x",
        ],
        ..World::default()
    };
    let labels = world.who().labels;
    let values: Vec<&str> = labels.iter().map(|label| label.value.as_str()).collect();
    assert_eq!(values, ["https://host/x", "a://b@c", "https://host/x"]);
}

#[test]
fn a_container_of_a_pod_is_named_by_kubernetes() {
    for name in ["cart", "k8s_cart_cart-1_shop_0f1e_0"] {
        let mut world = World::full();
        world.choice.service = None;
        world.application = "";
        world.environment.clear();
        world.entry_assembly = None;
        world.groups.clear();
        world.container = Some(Container { name: Some(name.into()), ..Container::default() });
        assert_eq!(world.service().0, "of-annotation", "{name}");
    }
}

#[test]
fn an_id_alone_names_no_service() {
    let world = World {
        groups: format!("0::/system.slice/docker-{ID}.scope\n"),
        exe: Some("/app/web"),
        ..World::default()
    };
    assert_eq!(world.service().0, "web");
}

#[test]
fn names_are_written_as_their_languages_write_them() {
    let assembly = |name| World { entry_assembly: Some(name), ..World::default() }.service().0;
    assert_eq!(assembly("Shop.Web.dll"), "Shop.Web");
    assert_eq!(assembly("/app/Shop.EXE"), "Shop");
    assert_eq!(assembly("Shop.Web"), "Shop.Web");
    let exe = |path| World { exe: Some(path), comm: "main", ..World::default() }.service().0;
    assert_eq!(exe("/usr/sbin/nginx (deleted)"), "nginx");
    assert_eq!(exe("/memfd:loader (deleted)"), "loader");
    assert_eq!(exe("/"), "main");
}

#[test]
fn a_target_chooses_no_destination_and_what_it_asked_for_is_listed() {
    let mut world = World {
        environment: vec![
            "PYROSCOPE_SERVER_ADDRESS=http://evil",
            "DD_API_KEY=hunter2",
            "DD_AGENT_HOST=",
            "PYROSCOPE_AUTH_TOKEN=hunter2",
        ],
        ..World::default()
    };
    let who = world.who();
    assert_eq!(who.ignored, ["PYROSCOPE_SERVER_ADDRESS", "DD_API_KEY", "PYROSCOPE_AUTH_TOKEN"]);
    assert_eq!(who.wishes, []);
    assert!(!format!("{who:?}").contains("evil"));

    world.choice.own_destination = true;
    let who = world.who();
    assert!(who.ignored.is_empty());
    let wishes: Vec<_> =
        who.wishes.iter().map(|wish| (wish.variable, wish.value.as_str())).collect();
    assert_eq!(wishes.first(), Some(&("PYROSCOPE_SERVER_ADDRESS", "http://evil")));
    assert!(!format!("{who:?}").contains("hunter2"), "credentials are in no log");
}
