//! Signatures as text, in raw names and in shown ones.

use std::borrow::Cow;

use strata_dotnet::names::signature::{decode, decode_type};
use strata_dotnet::names::{RawMethod, Signature, TypeNames, frame_name, with_signature};

struct Shop;

impl TypeNames for Shop {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match token {
            0x0200_0002 => "MyApp.Order",
            0x0200_0003 => "MyApp.Box`1",
            0x0100_0001 => "System.Runtime.CompilerServices.IsExternalInit",
            0x0200_0004 => "MyApp.Outer`1+Inner`1",
            _ => return None,
        }))
    }

    fn type_spec(&self, token: u32) -> Option<&[u8]> {
        match token {
            // MyApp.Box<int>
            0x1b00_0001 => Some(&[0x15, 0x12, 0x0c, 1, 0x08]),
            // Itself.
            0x1b00_0002 => Some(&[0x12, 0x0a]),
            _ => None,
        }
    }

    fn type_parameter(&self, position: u32) -> Option<&str> {
        (position == 0).then_some("TItem")
    }

    fn method_parameter(&self, position: u32) -> Option<&str> {
        (position == 0).then_some("TOther")
    }
}

fn text(blob: &[u8]) -> Option<String> {
    decode(blob, &Shop).map(|signature| signature.to_string())
}

#[test]
fn methods_are_written_with_their_types() {
    for (blob, expected) in [
        (&[0x00, 0, 0x01][..], "System.Void ()"),
        // void (int, ref Order)
        (&[0x20, 2, 0x01, 0x08, 0x10, 0x12, 0x08], "System.Void (System.Int32, MyApp.Order&)"),
        // Box<int>[] (TItem, TOther, !1)
        (
            &[0x30, 1, 3, 0x1d, 0x15, 0x12, 0x0c, 1, 0x08, 0x13, 0, 0x1e, 0, 0x13, 1],
            "MyApp.Box`1[System.Int32][] (TItem, TOther, !1)",
        ),
        (&[0x00, 1, 0x01, 0x0f, 0x0f, 0x08], "System.Void (System.Int32**)"),
        (&[0x00, 1, 0x01, 0x14, 0x08, 2, 0, 0], "System.Void (System.Int32[,])"),
        (
            &[0x00, 1, 0x01, 0x1b, 0, 1, 0x01, 0x08],
            "System.Void (method System.Void *(System.Int32))",
        ),
        (&[0x00, 1, 0x01, 0x12, 0x06], "System.Void (MyApp.Box`1[System.Int32])"),
        // A type without a record.
        (&[0x00, 1, 0x01, 0x12, 0x7c], "System.Void (?)"),
        // Vararg with a sentinel.
        (&[0x05, 2, 0x01, 0x08, 0x41, 0x0e], "System.Void (System.Int32, System.String)"),
    ] {
        assert_eq!(text(blob).as_deref(), Some(expected), "{blob:x?}");
    }
    assert_eq!(
        decode_type(&[0x15, 0x12, 0x0c, 1, 0x08], &Shop).as_deref(),
        Some("MyApp.Box`1[System.Int32]")
    );
}

#[test]
fn broken_signatures_are_none() {
    for blob in [
        &[][..],
        &[0x06, 0x08],
        &[0x00],
        &[0x00, 2, 0x01, 0x08],
        &[0x00, 0, 0x77],
        &[0x00, 0, 0x15, 0x12, 0x08, 0xdf, 0xff, 0xff, 0xff],
        // A type specification of itself.
        &[0x00, 0, 0x12, 0x0a],
    ] {
        assert_eq!(text(blob), None, "{blob:x?}");
    }
    let mut deep = vec![0x00, 0];
    deep.extend([0x1d; 40]);
    deep.push(0x08);
    assert_eq!(text(&deep), None, "too deep");
}

#[test]
fn raw_names_have_the_signature() {
    let signature = decode(&[0x20, 2, 0x01, 0x08, 0x10, 0x12, 0x08], &Shop);
    let method = RawMethod::<&str> {
        type_name: "MyApp.Orders",
        method: "Pay",
        signature: signature.as_ref(),
        ..RawMethod::default()
    };
    let names = frame_name(&method);
    assert_eq!(names.system_name, "System.Void MyApp.Orders.Pay(System.Int32, MyApp.Order&)");
    assert_eq!(names.name, "MyApp.Orders.Pay");
    let generic = RawMethod {
        type_name: "MyApp.Box`1",
        type_arguments: &[""],
        method_arguments: &["System.Int32"],
        ..method
    };
    assert_eq!(
        frame_name(&generic).system_name,
        "System.Void MyApp.Box`1[System.__Canon].Pay[System.Int32](System.Int32, MyApp.Order&)"
    );
}

#[test]
fn shown_names_have_it_when_wanted() {
    let signature = Signature {
        return_type: "System.Void".to_string(),
        parameters: vec!["MyApp.Box`1[System.Int32]".to_string(), "System.Byte*".to_string()],
        ..Signature::default()
    };
    assert_eq!(
        with_signature("MyApp.Orders.Pay", &signature),
        "MyApp.Orders.Pay(MyApp.Box<System.Int32>, System.Byte*)"
    );
}

#[test]
fn signatures_tell_accessors_from_methods_called_alike() {
    let name = |method: &str, blob: &[u8]| {
        let signature = decode(blob, &Shop);
        assert!(signature.is_some());
        frame_name(&RawMethod::<&str> {
            type_name: "A",
            method,
            signature: signature.as_ref(),
            ..RawMethod::default()
        })
        .name
    };
    let (void, int, void_of_int) = ([0x20, 0, 0x01], [0x20, 0, 0x08], [0x20, 1, 0x01, 0x08]);
    assert_eq!(name("get_x", &int), "A.x.get");
    assert_eq!(name("get_x", &void), "A.get_x");
    assert_eq!(name("set_x", &void_of_int), "A.x.set");
    assert_eq!(name("set_x", &void), "A.set_x");
    assert_eq!(name("add_x", &void_of_int), "A.x.add");
    assert_eq!(name("add_x", &int), "A.add_x");
    // int (int)
    let int_of_int = [0x20, 1, 0x08, 0x08];
    assert_eq!(name("get_x", &int_of_int), "A.get_x");
    assert_eq!(name("get_Item", &int_of_int), "A.this[].get");
    assert_eq!(name("get_user_name", &int), "A.user_name.get");
    assert_eq!(name("raise_error", &void_of_int), "A.raise_error");
    // void modreq(IsExternalInit) (int)
    assert_eq!(name("set_x", &[0x20, 1, 0x1f, 0x05, 0x01, 0x08]), "A.x.init");
}
