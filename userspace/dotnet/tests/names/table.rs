//! Every form that the documentation of frame names lists, and the variants that compilers make.

use strata_dotnet::names::{Kind, Lacking, RawMethod, frame_name, lacking};

/// The name of a method without arguments: "Type" and "Method".
fn name(type_name: &str, method: &str) -> String {
    frame_name(&RawMethod::<&str> { type_name, method, ..RawMethod::default() }).name
}

fn all(table: &[(&str, &str, &str)]) {
    for (type_name, method, expected) in table {
        assert_eq!(name(type_name, method), *expected, "{type_name}.{method}");
    }
}

#[test]
fn methods_have_the_names_of_their_source() {
    all(&[
        ("Shop.Order", "Pay", "Shop.Order.Pay"),
        ("Shop.Order", ".ctor", "Shop.Order.Order"),
        ("Shop.Order", ".cctor", "Shop.Order.Order (static)"),
        ("Order", ".ctor", "Order.Order"),
        ("Shop.Basket`1", ".ctor", "Shop.Basket.Basket"),
        ("Shop.Cart+Line", "Total", "Shop.Cart.Line.Total"),
        ("Shop.Cart+Line+Detail", ".ctor", "Shop.Cart.Line.Detail.Detail"),
        ("Shop.Order", "get_Total", "Shop.Order.Total.get"),
        ("Shop.Order", "set_Total", "Shop.Order.Total.set"),
        ("Shop.Order", "get_Item", "Shop.Order.this[].get"),
        ("Shop.Order", "set_Item", "Shop.Order.this[].set"),
        ("Shop.Bus", "add_Changed", "Shop.Bus.Changed.add"),
        ("Shop.Bus", "remove_Changed", "Shop.Bus.Changed.remove"),
        ("Shop.Money", "op_Addition", "Shop.Money.operator +"),
        ("Shop.Money", "op_Implicit", "Shop.Money.operator implicit"),
        ("Shop.Money", "op_CheckedAddition", "Shop.Money.operator checked +"),
        ("Shop.Money", "op_True", "Shop.Money.operator true"),
        ("Shop.Money", "op_False", "Shop.Money.operator false"),
        ("Shop.Finalised", "Finalize", "Shop.Finalised.Finalize"),
        ("Shop.Odd", "get_", "Shop.Odd.get_"),
        ("Shop.Odd", "op_Erate", "Shop.Odd.op_Erate"),
    ]);
}

#[test]
fn explicit_interface_methods_keep_their_interface() {
    all(&[
        ("Shop.Order", "System.IDisposable.Dispose", "Shop.Order.System.IDisposable.Dispose"),
        (
            "Shop.Order",
            "System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
            "Shop.Order.System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
        ),
        (
            "Shop.Order",
            "System.Collections.Generic.IDictionary<TKey,TValue>.get_Item",
            "Shop.Order.System.Collections.Generic.IDictionary<TKey, TValue>.this[].get",
        ),
        (
            "Shop.Money",
            "System.Numerics.IAdditionOperators<A,B,C>.op_Addition",
            "Shop.Money.System.Numerics.IAdditionOperators<A, B, C>.operator +",
        ),
        ("Shop.Order", "Shop.IBus.add_Changed", "Shop.Order.Shop.IBus.Changed.add"),
    ]);
}

#[test]
fn lambdas_and_local_functions_are_named_after_their_method() {
    all(&[
        ("Shop.Order+<>c", "<Run>b__3_0", "Shop.Order.Run_Lambda"),
        ("Shop.Order", "<Run>b__3_0", "Shop.Order.Run_Lambda"),
        ("Shop.Order+<>c__DisplayClass3_0", "<Run>b__0", "Shop.Order.Run_AnonymousMethod"),
        (
            "Shop.Order+<>c__DisplayClass3_0+<>c__DisplayClass3_1",
            "<Run>b__1",
            "Shop.Order.Run_AnonymousMethod",
        ),
        ("Shop.Order", "<Run>g__Inner|3_0", "Shop.Order.Run.Inner"),
        ("Shop.Order+<>c", "<Run>g__Inner|3_1", "Shop.Order.Run.Inner"),
        ("Shop.Order+<>c__DisplayClass3_0", "<Run>g__Inner|1", "Shop.Order.Run.Inner"),
        ("Shop.Order", "<Run>g__Inner3_0", "Shop.Order.Run.Inner"),
        ("Shop.Order+<>c", "<.ctor>b__3_0", "Shop.Order.Order_Lambda"),
        ("Shop.Order+<>c", "<.cctor>b__3_0", "Shop.Order.Order_Lambda (static)"),
        ("Shop.Order+<>c", "<get_Total>b__3_0", "Shop.Order.Total.get_Lambda"),
        ("Shop.Order", "<get_Item>g__Inner|3_0", "Shop.Order.this[].get.Inner"),
        ("Shop.Order+<>c", "<Run>b__3_0#1", "Shop.Order.Run_Lambda"),
        (
            "Shop.Order+<>c",
            "<System.IDisposable.Dispose>b__3_0",
            "Shop.Order.System.IDisposable.Dispose_Lambda",
        ),
        ("Shop.Order", "<>n__0", "Shop.Order.base"),
        ("Shop.Order+<>c", ".cctor", "(compiler) Shop.Order.Closure"),
        ("Shop.Order+<>c__DisplayClass3_0", ".ctor", "(compiler) Shop.Order.Closure"),
    ]);
}

#[test]
fn async_methods_and_iterators_have_their_own_names() {
    all(&[
        ("Shop.Order+<Pay>d__7", "MoveNext", "Shop.Order.Pay"),
        ("Shop.Order+<>c+<<Run>b__3_0>d", "MoveNext", "Shop.Order.Run_Lambda"),
        (
            "Shop.Order+<>c__DisplayClass3_0+<<Run>b__0>d",
            "MoveNext",
            "Shop.Order.Run_AnonymousMethod",
        ),
        ("Shop.Order+<<Run>g__Inner|3_0>d", "MoveNext", "Shop.Order.Run.Inner"),
        ("Shop.Order+<Iterate>d__3", "<>m__Finally1", "Shop.Order.Iterate"),
        ("Shop.Order+<Iterate>d__3", ".ctor", "Shop.Order.Iterate"),
        (
            "Shop.Order+<Iterate>d__3",
            "System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
            "Shop.Order.Iterate.System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
        ),
        ("Shop.Order+<Pay>d__7", "SetStateMachine", "Shop.Order.Pay.SetStateMachine"),
        (
            "Shop.Order+<System-Collections-Generic-IEnumerable<System-Int32>-GetEnumerator>d__1",
            "MoveNext",
            "Shop.Order.System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
        ),
        ("Shop.Order+<get_Lines>d__3", "MoveNext", "Shop.Order.Lines.get"),
        ("Shop.Order+<Pay>d__7#1", "MoveNext", "Shop.Order.Pay"),
        ("Shop.Order+<>c+<<-ctor>b__3_0>d", "MoveNext", "Shop.Order.Order_Lambda"),
    ]);
}

#[test]
fn top_level_programs_have_a_main() {
    all(&[
        ("Program", "<Main>$", "Program.Main"),
        ("Program", "<<Main>$>g__Go|0_0", "Program.Main.Go"),
        ("Program", "<Main>", "Program.Main"),
        ("Program+<>c", "<<Main>$>b__0_0", "Program.Main_Lambda"),
        ("Program+<<Main>$>d__0", "MoveNext", "Program.Main"),
        ("Program+<<<Main>$>g__Go|0_0>d", "MoveNext", "Program.Main.Go"),
        ("Program+<>c+<<<Main>$>b__0_0>d", "MoveNext", "Program.Main_Lambda"),
        ("<Program>$", "<Main>$", "Program.Main"),
    ]);
}

#[test]
fn what_the_compiler_adds_is_marked_or_named() {
    all(&[
        ("Shop.Person", "<Clone>$", "Shop.Person.Clone"),
        ("Shop.Person", "PrintMembers", "Shop.Person.PrintMembers"),
        ("Shop.Person", "get_EqualityContract", "Shop.Person.EqualityContract.get"),
        ("<>f__AnonymousType0`2", "Equals", "AnonymousType0.Equals"),
        ("<>f__AnonymousType0`2", ".ctor", "AnonymousType0.AnonymousType0"),
        ("<>f__AnonymousDelegate1", "Invoke", "AnonymousDelegate1.Invoke"),
        ("<PrivateImplementationDetails>", "ComputeStringHash", "(compiler) ComputeStringHash"),
        (
            "<PrivateImplementationDetails>",
            ".cctor",
            "(compiler) PrivateImplementationDetails (static)",
        ),
        ("<Module>", ".cctor", "(compiler) Module (static)"),
        ("<Module>", "main", "main"),
        ("<>z__ReadOnlyArray`1", "get_Count", "(compiler) ReadOnlyArray.Count.get"),
        ("<Program>F0123456789ABCDEF__Hidden", "Run", "Hidden.Run"),
        ("Shop.<Program>F0123456789ABCDEF__Hidden`1", ".ctor", "Shop.Hidden.Hidden"),
    ]);
}

#[test]
fn visual_basic_names_are_cleaned() {
    all(&[
        ("Store.Till+VB$StateMachine_3_Pay", "MoveNext", "Store.Till.Pay"),
        ("Store.Till", "get_Line", "Store.Till.Line.get"),
        ("Store.Till", "op_Like", "Store.Till.operator Like"),
        ("Store.Till+_Closure$__1-0", "_Lambda$__0", "Store.Till.Lambda"),
        ("VB$AnonymousType_0`1", "ToString", "AnonymousType0.ToString"),
    ]);
    for (type_name, method) in [
        ("Store.Till+_Closure$__1-0", "_Lambda$__0"),
        ("Store.Till+_Closure$__", "_Lambda$__6-0"),
        ("Store.Till+_Closure$__", "_Lambda$__R6-1"),
        ("Store.Till", "_Lambda$__16-1"),
        ("Store.Till+_Closure$__1-0+VB$StateMachine___Lambda$__0", "MoveNext"),
    ] {
        let method =
            RawMethod::<&str> { type_name, method, related: Some("Run"), ..RawMethod::default() };
        assert_eq!(frame_name(&method).name, "Store.Till.Run_Lambda");
    }
}

#[test]
fn what_a_name_lacks_is_known() {
    for (type_name, method, lacks) in [
        ("Store.Till+_Closure$__1-0", "_Lambda$__0", Some(Lacking::Around)),
        ("Store.Till", "_Lambda$__16-1", Some(Lacking::Around)),
        ("Till+_Closure$__1-0+VB$StateMachine___Lambda$__0", "MoveNext", Some(Lacking::Around)),
        ("", "IL_STUB_PInvoke", Some(Lacking::Target)),
        ("", "IL_STUB_ReversePInvoke", None),
        ("", "Invoke_1", None),
        ("Store.Till+VB$StateMachine_3_Pay", "MoveNext", None),
        ("Shop.Order+<>c", "<Run>b__3_0", None),
        ("Shop.Order", "IL_STUB_PInvoke", None),
    ] {
        assert_eq!(lacking(type_name, method), lacks, "{type_name}.{method}");
    }
}

#[test]
fn fsharp_names_are_cleaned() {
    all(&[
        ("Module+total@12", "Invoke", "Module.total@12"),
        ("Ns.Module+later@51-1", "Invoke", "Ns.Module.later@51-1"),
        ("Module+seq@12", "GenerateNext", "Module.seq@12"),
        ("<StartupCode$App>.$Program", "main@", "Program.main@"),
        ("<StartupCode$App>.$Program", ".cctor", "Program.Program (static)"),
        ("Module", "|Even|Odd|", "Module.|Even|Odd|"),
        ("Module+total@12", ".ctor", "Module.total@12.total@12"),
        ("Counter`1", "System-IDisposable-Dispose", "Counter.System.IDisposable.Dispose"),
        (
            "Counter`1",
            "System-Collections-Generic-IEnumerable`1-GetEnumerator",
            "Counter.System.Collections.Generic.IEnumerable.GetEnumerator",
        ),
        ("Counter", "Till-ITotal-get_Name", "Counter.Till.ITotal.Name.get"),
        ("Module", "my odd-name test", "Module.my odd-name test"),
        ("Module", "well-known", "Module.well-known"),
        ("Module", "op_PipeRight", "Module.operator |>"),
    ]);
}

#[test]
fn methods_without_metadata_say_what_they_are() {
    let of = |kind, method, related| {
        frame_name(&RawMethod::<&str> { kind, method, related, ..RawMethod::default() }).name
    };
    assert_eq!(of(Kind::Dynamic, "Invoke_1", None), "(dynamic) Invoke_1");
    assert_eq!(of(Kind::Stub, "IL_STUB_PInvoke", Some("read")), "(stub) P/Invoke read");
    assert_eq!(of(Kind::Stub, "IL_STUB_PInvoke", None), "(stub) P/Invoke");
    // Found by its address, it cannot be recognised as a stub.
    assert_eq!(of(Kind::Dynamic, "IL_STUB_PInvoke", Some("read")), "(stub) P/Invoke read");
    assert_eq!(of(Kind::Stub, "IL_STUB_ReversePInvoke", None), "(stub) reverse P/Invoke");
    assert_eq!(of(Kind::Stub, "IL_STUB_Array_Get", None), "(stub) Array Get");
    let stub = RawMethod::<&str> {
        kind: Kind::Stub,
        type_name: "Shop.Order",
        method: "get_Total",
        ..RawMethod::default()
    };
    assert_eq!(frame_name(&stub).name, "(stub) Shop.Order.Total.get");
}
