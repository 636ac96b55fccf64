//! Whatever comes in, what comes out is bounded and does nothing to a terminal.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::prelude::*;

use strata_dotnet::names::signature::{decode, decode_type};
use strata_dotnet::names::{
    Kind, MAX_NAME_BYTES, RawMethod, Shown, Signature, TypeNames, folds, frame_name, plumbing,
    type_name, with_signature,
};

/// Texts of the marks that compilers use, in any order, and of anything else.
fn name() -> impl Strategy<Value = String> {
    let mark = prop_oneof![
        "[<>+.`|\\[\\],*&$@#_ -]",
        "[a-zA-Z0-9]{1,3}",
        Just("<>c__DisplayClass3_0".to_string()),
        Just("<Run>b__3_0".to_string()),
        Just("<Run>g__Inner|3_0".to_string()),
        Just("<Pay>d__7`1".to_string()),
        Just("<PrivateImplementationDetails>".to_string()),
        Just("VB$StateMachine_3_Pay".to_string()),
        Just("_Closure$__1-0".to_string()),
        Just("_Lambda$__0".to_string()),
        Just("<StartupCode$".to_string()),
        Just("op_Checked".to_string()),
        Just("method System.Void *(".to_string()),
        Just("MoveNext".to_string()),
        Just(".ctor".to_string()),
        "\\PC{0,8}",
        any::<String>(),
    ];
    vec(mark, 0..12).prop_map(|marks| marks.concat())
}

fn is_good(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

struct Circular;

impl TypeNames for Circular {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        (token & 1 == 0).then(|| Cow::Owned("\u{1b}x".repeat(token as usize & 0xfff)))
    }

    fn type_spec(&self, token: u32) -> Option<&[u8]> {
        // Two type specifications of each other, and of themselves twice.
        Some(if token & 1 == 0 {
            &[0x15, 0x12, 0x0a, 2, 0x12, 0x0a, 0x12, 0x06]
        } else {
            &[0x15, 0x12, 0x06, 1, 0x12, 0x0a]
        })
    }

    fn type_parameter(&self, _position: u32) -> Option<&str> {
        Some("T\n")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_names_give_good_ones(
        of_type in name(),
        method in name(),
        arguments in vec(name(), 0..4),
        parameters in vec(name(), 0..4),
        related in proptest::option::of(name()),
        kind in prop_oneof![Just(Kind::Ordinary), Just(Kind::Dynamic), Just(Kind::Stub)],
    ) {
        let signature = Signature {
            return_type: of_type.clone(),
            parameters: arguments.clone(),
            ..Signature::default()
        };
        let names = frame_name(&RawMethod {
            type_name: &of_type,
            method: &method,
            type_parameters: &parameters,
            method_parameters: &arguments,
            type_arguments: &arguments,
            method_arguments: &parameters,
            kind,
            signature: Some(&signature),
            related: related.as_deref(),
        });
        prop_assert!(is_good(&names.name), "{names:?}");
        prop_assert!(is_good(&names.system_name), "{names:?}");
        prop_assert!(is_good(&with_signature(&names.name, &signature)));
        prop_assert!(is_good(&type_name(&of_type)));
        prop_assert_eq!(plumbing(&names.name), names.plumbing);
        let shown = Shown { name: &names.name, system_name: &names.system_name };
        prop_assert!(!folds(shown, shown));
    }

    #[test]
    fn any_bytes_give_good_signatures(blob in vec(any::<u8>(), 0..600)) {
        if let Some(signature) = decode(&blob, &Circular) {
            prop_assert!(is_good(&signature.return_type));
            prop_assert!(signature.parameters.iter().all(|parameter| is_good(parameter)));
            prop_assert!(signature.to_string().len() <= 4 * MAX_NAME_BYTES);
            prop_assert!(signature.return_modifiers.iter().all(|modifier| is_good(modifier)));
        }
        prop_assert!(decode_type(&blob, &Circular).is_none_or(|text| is_good(&text)));
    }

    #[test]
    fn bytes_of_types_give_good_signatures(
        blob in vec(prop_oneof![0x0fu8..0x23, 0u8..8, Just(0x12), Just(0x15), Just(0x06)], 0..200),
    ) {
        let blob = [&[0x20, 8], &blob[..]].concat();
        let signature = decode(&blob, &Circular);
        prop_assert!(signature.is_none_or(|signature| signature.parameters.len() <= 8));
    }
}

#[test]
fn of_very_long_names_only_the_start_is_looked_at() {
    for piece in ["<", "<>", "+", "A+", "[", "A`1[", ",", "<>c+", "`", "<a", ".", "-", "@1", "_"] {
        let long = piece.repeat(20_000);
        let arguments = vec![long.clone(), long.get(..4000).unwrap_or_default().to_string()];
        let names = frame_name(&RawMethod {
            type_name: &long,
            method: &long,
            type_arguments: &arguments,
            method_arguments: &arguments,
            ..RawMethod::default()
        });
        assert!(is_good(&names.name) && is_good(&names.system_name));
    }
}
