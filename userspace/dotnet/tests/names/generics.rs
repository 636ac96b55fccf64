//! Generic arguments: exact ones, shared ones, and those of types that stand for a method.

use std::sync::Arc;

use strata_dotnet::names::{RawMethod, frame_name};

/// The name of "Type.Method", with arguments of the type and of the method, each list as
/// "Parameter=Argument".
fn name(type_name: &str, method: &str, of_type: &[&str], of_method: &[&str]) -> String {
    let split = |list: &[&'static str]| -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        list.iter()
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(parameter, argument)| (parameter.into(), argument.into()))
            .unzip()
    };
    let leaked = |list: &[&str]| -> Vec<&'static str> {
        list.iter().map(|text| &*String::from(*text).leak()).collect()
    };
    let (type_parameters, type_arguments) = split(&leaked(of_type));
    let (method_parameters, method_arguments) = split(&leaked(of_method));
    frame_name(&RawMethod {
        type_name,
        method,
        type_parameters: &type_parameters,
        type_arguments: &type_arguments,
        method_parameters: &method_parameters,
        method_arguments: &method_arguments,
        ..RawMethod::default()
    })
    .name
}

#[test]
fn value_types_are_exact_and_shared_ones_have_the_parameters_name() {
    let list = "System.Collections.Generic.List`1";
    assert_eq!(
        name(list, "Add", &["T=System.Int32"], &[]),
        "System.Collections.Generic.List<System.Int32>.Add"
    );
    for shared in ["T=", "T=System.__Canon"] {
        assert_eq!(name(list, "Add", &[shared], &[]), "System.Collections.Generic.List<T>.Add");
    }
    assert_eq!(
        name("Shop.Tools", "Pick", &[], &["T0=System.Int32", "T1="]),
        "Shop.Tools.Pick<System.Int32, T1>"
    );
    assert_eq!(
        name("Shop.Basket`1", "Convert", &["TItem="], &["TOther=System.Int64"]),
        "Shop.Basket<TItem>.Convert<System.Int64>"
    );
    assert_eq!(name("Shop.Basket`1", ".ctor", &["T="], &[]), "Shop.Basket<T>.Basket");
}

#[test]
fn arguments_stand_at_the_type_they_belong_to() {
    for (type_name, of_type, expected) in [
        (
            "Shop.Basket`1+Shelf`1",
            &["TItem=", "TWood=System.Byte"][..],
            "Shop.Basket<TItem>.Shelf<System.Byte>.Put",
        ),
        ("Shop.Basket`1+Line", &["TItem=System.Byte"], "Shop.Basket<System.Byte>.Line.Put"),
        ("Shop.A+B`2+C", &["K=", "V="], "Shop.A.B<K, V>.C.Put"),
        // No parameters are known.
        ("Shop.Basket`1", &[], "Shop.Basket.Put"),
        // Compilers that do not count.
        ("Shop.Basket", &["T="], "Shop.Basket<T>.Put"),
        // More counted than there are.
        ("Shop.Basket`9+Shelf`9", &["T="], "Shop.Basket<T>.Shelf.Put"),
    ] {
        assert_eq!(name(type_name, "Put", of_type, &[]), expected, "{type_name}");
    }
}

#[test]
fn arguments_of_types_made_for_a_method_are_the_methods() {
    for (type_name, method, of_type, of_method, expected) in [
        (
            "Shop.Payment+<Generic>d__4`1",
            "MoveNext",
            &["T="][..],
            &[][..],
            "Shop.Payment.Generic<T>",
        ),
        (
            "Shop.Basket`1+<Pay>d__4`1",
            "MoveNext",
            &["T=System.Int32", "U="],
            &[],
            "Shop.Basket<System.Int32>.Pay<U>",
        ),
        (
            "Shop.Tools+<>c__3`2",
            "<Pick>b__3_0",
            &["T0=System.Int32", "T1="],
            &[],
            "Shop.Tools.Pick<System.Int32, T1>_Lambda",
        ),
        (
            "Shop.Tools+<>c__DisplayClass3_0`1",
            "<Pick>b__0",
            &["T="],
            &[],
            "Shop.Tools.Pick<T>_AnonymousMethod",
        ),
        (
            "Shop.Tools+<>c__3`1+<<Pick>b__3_0>d",
            "MoveNext",
            &["T="],
            &[],
            "Shop.Tools.Pick<T>_Lambda",
        ),
        ("Shop.Tools", "<Pick>b__3_0", &[], &["T="], "Shop.Tools.Pick<T>_Lambda"),
        ("Shop.Tools", "<Pick>g__Inner|3_0", &[], &["T="], "Shop.Tools.Pick.Inner<T>"),
        (
            "Shop.Tools+<<Pick>g__Inner|3_0>d`1",
            "MoveNext",
            &["T="],
            &[],
            "Shop.Tools.Pick.Inner<T>",
        ),
        ("Store.Till+VB$StateMachine_3_Pay`1", "MoveNext", &["SM$T="], &[], "Store.Till.Pay<T>"),
        (
            "<>f__AnonymousType0`2",
            "Equals",
            &["<First>j__TPar=", "<Second>j__TPar=System.Int32"],
            &[],
            "AnonymousType0.Equals",
        ),
    ] {
        assert_eq!(name(type_name, method, of_type, of_method), expected, "{type_name}.{method}");
    }
}

#[test]
fn arguments_are_cleaned_too() {
    assert_eq!(
        name("A`1", "M", &["T=Ns.Pair`2[System.Int32,System.__Canon]"], &[]),
        "A<Ns.Pair<System.Int32, __Canon>>.M"
    );
    assert_eq!(
        name(
            "System.Runtime.CompilerServices.AsyncMethodBuilderCore",
            "Start",
            &[],
            &["TStateMachine=Shop.Payment+<Pay>d__7"]
        ),
        "System.Runtime.CompilerServices.AsyncMethodBuilderCore.Start<Shop.Payment.Pay>"
    );
}
