//! The records of methods of every form.

use strata_bridge_protocol::record::{MethodKind, Record};

use crate::support::*;

/// As `Watcher::full_name` puts them together; shared arguments are empty.
const FORMS: [&str; 21] = [
    "Shop.Program.Main",
    "Shop.Program.Forms",
    "Shop.Cart`1+Line`1<System.Int32, System.Guid>.Pick",
    "Shop.Cart`1+Line`1<System.Int32, >.Pick",
    "Shop.Cart`1<>.Same",
    "Shop.Cart`1<System.Collections.Generic.KeyValuePair`2[System.Int32,System.__Canon]>.Same",
    "Shop.Cart`1<Shop.Money>.Same",
    "Shop.Cart`1<Shop.Color>.Same",
    "Shop.Tools.Choose<System.Int32, >",
    "Shop.Tools.Choose<, Shop.Money>",
    "Shop.Money.op_Addition",
    "Shop.Program+<>c__DisplayClass3_0.<Forms>b__0",
    "Shop.Program+<>c.<Forms>b__3_1",
    "Shop.Program.<Forms>g__Local|3_2",
    "Shop.Order..ctor",
    "Shop.Order.Shop.IPaid.get_Total",
    "Shop.Order.Pay",
    "Shop.Order+<Pay>d__2.MoveNext",
    "Shop.Order+<Lines>d__3.MoveNext",
    "Shop.Program.Burn",
    ".Before",
];

fn assert_forms(watcher: &Watcher, version: &str) {
    let names = watcher.full_names();
    for form in FORMS {
        assert!(
            names.iter().any(|name| name == form),
            "{form} is missing on {version}: {names:#?}"
        );
    }
}

#[test]
fn every_form_of_method_is_published_from_the_start_of_an_eagerly_watched_program() {
    for version in versions() {
        for loaded in [Loaded::AsMain, Loaded::AsNotification] {
            if version == "3.1" && loaded == Loaded::AsNotification {
                // .NET Core 3.1 does not know notification-only profilers.
                continue;
            }
            let start = Start { loaded: Some(loaded), eager: true, ..Start::default() };
            let target = Target::start(version, start);
            let mut watcher = Watcher::find(&target);
            watcher.until("a method", |entries| {
                let is_burn = |entry: &&_| is_method(entry, "Burn");
                entries.iter().find(is_burn).map(drop)
            });
            assert_forms(&watcher, version);
            target.quit();
        }
    }
}

fn is_method(entry: &strata_bridge_protocol::reader::Entry, name: &str) -> bool {
    matches!(&entry.record, Record::Method(method) if method.name == name)
}

#[test]
fn methods_of_a_program_that_runs_already_are_published_when_it_is_attached_to() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        // The dynamic method was made before a reader attached.
        target.tell("dynamic Before");
        watcher.until("the dynamic method", |entries| {
            entries.iter().find(|entry| is_method(entry, "Before")).map(drop)
        });
        assert_forms(&watcher, version);
        target.quit();
    }
}

#[test]
fn records_come_after_what_they_refer_to_and_have_code() {
    for version in versions() {
        let start = Start { loaded: Some(Loaded::AsMain), eager: true, ..Start::default() };
        let mut target = Target::start(version, start);
        target.tell("forms");
        let mut watcher = Watcher::find(&target);
        watcher.read();
        let (mut modules, mut types, mut domains) = (vec![], vec![], vec![]);
        for entry in &watcher.entries {
            match &entry.record {
                Record::AppDomain(domain) => domains.push(domain.id),
                Record::Module(module) => {
                    assert!(domains.contains(&module.app_domain), "{version}: {module:?}");
                    assert_ne!(module.mvid, [0; 16], "{version}: {module:?}");
                    assert!(!module.assembly.is_empty(), "{version}: {module:?}");
                    modules.push(module.module);
                }
                Record::Type(found) => {
                    assert!(modules.contains(&found.module));
                    assert!(found.name.is_empty() != found.signature.is_empty(), "{found:?}");
                    let key = (found.module, found.token);
                    assert!(!types.contains(&key), "{version}: told twice: {found:?}");
                    types.push(key);
                }
                Record::Method(method) => {
                    assert!(!method.ranges.is_empty(), "{version}: {method:?}");
                    for range in &method.ranges {
                        assert_eq!(range.code.len(), (range.size as usize).min(96));
                    }
                    if method.kind() == Some(MethodKind::Jitted) {
                        assert!(modules.contains(&method.module));
                        assert!(types.contains(&(method.module, method.type_token)));
                        assert!(!method.signature.is_empty() && !method.name.is_empty());
                    }
                }
                _ => {}
            }
        }
        assert!(types.len() > 20 && modules.len() > 2, "{version}: {}", types.len());
        target.quit();
    }
}

#[test]
fn a_type_has_its_generic_parameters_and_so_has_a_method() {
    let version = "9";
    let start = Start { loaded: Some(Loaded::AsMain), eager: true, ..Start::default() };
    let target = Target::start(version, start);
    let mut watcher = Watcher::find(&target);
    watcher.read();
    let parameters = |name: &str| {
        watcher.entries.iter().find_map(|entry| match &entry.record {
            Record::Type(found) if found.name == name => Some(found.generic_parameters.clone()),
            _ => None,
        })
    };
    // A nested type repeats the parameters of the one around it (ECMA-335 II.10.3.1).
    assert_eq!(parameters("Shop.Cart`1+Line`1"), Some(vec!["T".into(), "U".into()]));
    assert_eq!(parameters("Shop.Order"), Some(vec![]));
    let choose = watcher.methods().find(|method| method.name == "Choose").expect("Choose");
    assert_eq!(choose.generic_parameters, ["TFirst", "TSecond"]);
    target.quit();
}
