//! Records as bytes: what is written is read, what is too long is truncated, and no bytes do harm.

use proptest::collection::vec;
use proptest::prelude::*;
use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::event::EventRecord;
use strata_bridge_protocol::field::{
    CodeRange, CodeRangeRecord, Field, IlMapEntry, MAX_BLOB, MAX_RANGES, MAX_TEXT, MAX_TEXTS,
    Measure, Source,
};
use strata_bridge_protocol::layout::MAX_RECORD;
use strata_bridge_protocol::record::{
    AppDomainEnd, AppDomainRecord, DiagnosticRecord, Encode, Enumerated, IlMap, IlMapRecord, Level,
    Method, MethodKind, MethodRecord, MethodUnload, MethodView, ModuleRecord, ModuleUnload,
    NotFound, Record, ThreadEnd, ThreadRecord, Tier, TypeRecord, module_flag,
};

fn bytes_of(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn text(text: &str) -> String {
    text.to_owned()
}

/// All that a view shows, as a record of its own.
fn viewed(bytes: &[u8]) -> Result<MethodRecord, DecodeError> {
    let view = MethodView::of(bytes)?;
    let mut texts = Source::new(view.texts);
    let mut arguments = Source::new(view.arguments);
    let record = MethodRecord {
        function: view.function,
        rejit: view.rejit,
        module: view.module,
        type_token: view.type_token,
        token: view.token,
        kind: view.kind,
        tier: view.tier,
        app_domain: view.app_domain,
        name: Field::take(&mut texts)?,
        generic_parameters: Field::take(&mut texts)?,
        signature: Field::take(&mut texts)?,
        class_arguments: Field::take(&mut arguments)?,
        method_arguments: Field::take(&mut arguments)?,
        asked_ip: view.asked_ip,
        ranges: view
            .ranges
            .iter()
            .map(|CodeRange { start, size, code }| CodeRangeRecord {
                start,
                size,
                code: code.to_vec(),
            })
            .collect(),
    };
    assert!(texts.take(1).is_err() && arguments.take(1).is_err(), "nothing besides");
    let has_none = record.class_arguments.is_empty() && record.method_arguments.is_empty();
    assert_eq!(view.arguments == MethodView::NO_ARGUMENTS, has_none);
    assert_eq!((view.kind(), view.tier()), (record.kind(), record.tier()));
    Ok(record)
}

fn a_method() -> MethodRecord {
    MethodRecord {
        function: 0x7f12_3456_789a,
        rejit: 1,
        module: 0x7f00,
        type_token: 0x0200_0002,
        token: 0x0600_0003,
        kind: MethodKind::Jitted as u8,
        tier: Tier::Osr as u8,
        app_domain: 4,
        name: text("Größe"),
        generic_parameters: vec![text("T"), text("")],
        signature: vec![0x20, 1, 1, 8],
        class_arguments: vec![text("System.Int32"), text("")],
        method_arguments: vec![],
        asked_ip: 0,
        ranges: vec![
            CodeRangeRecord { start: 0x7f00_0000, size: 96, code: vec![0x55, 0x48] },
            CodeRangeRecord { start: 0x7f00_1000, size: 16, code: vec![] },
        ],
    }
}

fn one_of_each() -> Vec<Record> {
    vec![
        AppDomainRecord {
            id: 1,
            runtime_id: [9; 16],
            name: text("clrhost"),
            service: text("shop"),
            environment: text("production"),
            version: text("1.2.3"),
        }
        .into(),
        AppDomainEnd { id: 1 }.into(),
        ModuleRecord {
            module: 2,
            app_domain: 1,
            base: 0x7f00_0000_0000,
            size: 4096,
            mvid: [7; 16],
            flags: module_flag::READY_TO_RUN | module_flag::FLAT,
            assembly: text("Shop"),
            path: text("/app/Shop.dll"),
        }
        .into(),
        ModuleUnload { module: 2 }.into(),
        TypeRecord {
            module: 2,
            token: 0x0200_0002,
            name: text("Shop.Cart+Line`1"),
            signature: vec![],
            generic_parameters: vec![text("TItem")],
        }
        .into(),
        a_method().into(),
        MethodUnload { function: 5, start: 6 }.into(),
        NotFound { ip: u64::MAX }.into(),
        IlMapRecord {
            function: 5,
            rejit: 0,
            start: 6,
            entries: vec![IlMapEntry { native: 0, il: -2 }, IlMapEntry { native: 7, il: 0 }],
        }
        .into(),
        ThreadRecord { managed_id: 3, os_tid: 77, name: text(".NET TP Worker") }.into(),
        ThreadEnd { managed_id: 3 }.into(),
        DiagnosticRecord { level: Level::Warning as u8, text: text("odd") }.into(),
        Enumerated { epoch: 3 }.into(),
    ]
}

#[test]
fn every_kind_is_read_as_it_was_written() {
    let records = one_of_each();
    let kinds: Vec<u16> = records.iter().map(Record::kind).collect();
    assert!(kinds.into_iter().eq(1..=13), "each kind once");
    for record in records {
        assert_eq!(Record::decode(record.kind(), &bytes_of(&record)), Ok(record));
    }
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let record = ThreadRecord { managed_id: 0x0102, os_tid: 3, name: text("ä") };
    let bytes = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0xc3, 0xa4];
    assert_eq!(bytes_of(&record.into()), bytes);
    let record = IlMapRecord {
        function: 1,
        rejit: 0,
        start: 2,
        entries: vec![IlMapEntry { native: 3, il: -1 }],
    };
    let mut bytes = [0; 34];
    (bytes[0], bytes[16], bytes[24], bytes[26]) = (1, 2, 1, 3);
    bytes[30..].fill(0xff);
    assert_eq!(bytes_of(&record.into()), bytes);
}

#[test]
fn borrowed_and_owned_are_the_same_bytes() {
    let owned = a_method();
    let ranges: Vec<CodeRange<'_>> = owned
        .ranges
        .iter()
        .map(|range| CodeRange { start: range.start, size: range.size, code: &range.code })
        .collect();
    let parameters: Vec<&str> = owned.generic_parameters.iter().map(String::as_str).collect();
    let borrowed = Method {
        ranges: ranges.as_slice().into(),
        generic_parameters: parameters.as_slice().into(),
        ..owned.borrow()
    };
    let mut bytes = Vec::new();
    borrowed.encode(&mut bytes);
    assert_eq!(bytes, bytes_of(&owned.clone().into()));
    assert_eq!(borrowed.measure().length, bytes.len());
    assert_eq!((owned.kind(), owned.tier()), (Some(MethodKind::Jitted), Tier::Osr));
}

#[test]
fn what_is_too_long_is_cut_and_marked() {
    let mut method = a_method();
    assert!(!method.measure().cut);
    method.name = "ä".repeat(MAX_TEXT);
    method.class_arguments = vec![text("x"); MAX_TEXTS + 1];
    method.ranges = vec![CodeRangeRecord::default(); MAX_RANGES + 1];
    method.signature = vec![1; MAX_BLOB + 1];
    let Measure { length, cut } = method.measure();
    let bytes = bytes_of(&method.clone().into());
    assert_eq!((length, cut), (bytes.len(), true));
    let read = MethodRecord::decode(&bytes).expect("a whole record");
    assert_eq!(read.name, "ä".repeat(MAX_TEXT / 2), "cut between characters");
    let lengths = (read.class_arguments.len(), read.ranges.len(), read.signature.len());
    assert_eq!(lengths, (MAX_TEXTS, MAX_RANGES, MAX_BLOB));
}

#[test]
fn the_largest_il_map_is_a_record() {
    let entries = vec![IlMapEntry::default(); 1 << 16];
    let map = IlMap { function: 1, rejit: 0, start: 0, entries: &entries };
    let Measure { length, cut } = map.measure();
    assert!(cut && length + 16 <= MAX_RECORD, "{length}");
}

#[test]
fn a_text_that_is_none_is_made_one() {
    let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0xff, b'x'];
    let thread = ThreadRecord::decode(&bytes).expect("a record");
    assert_eq!(thread.name, "\u{fffd}x");
}

#[test]
fn lengths_and_counts_beyond_the_end_are_refused() {
    let mut bytes = bytes_of(&a_method().into());
    for end in 0..bytes.len() {
        assert_eq!(MethodRecord::decode(&bytes[..end]), Err(DecodeError::Truncated));
        assert_eq!(viewed(&bytes[..end]), Err(DecodeError::Truncated));
    }
    bytes.extend([0; 7]);
    assert_eq!(MethodRecord::decode(&bytes), Ok(a_method()), "padding is ignored");
    assert_eq!(viewed(&bytes), Ok(a_method()));
    // A name of 65,535 bytes.
    bytes[50..52].fill(0xff);
    assert_eq!(MethodRecord::decode(&bytes), Err(DecodeError::Invalid("a count")));
    assert_eq!(Record::decode(99, &bytes), Err(DecodeError::UnknownKind(99)));
}

proptest! {
    #[test]
    fn methods_survive(
        numbers in any::<[u64; 5]>(),
        tokens in any::<[u32; 2]>(),
        name in ".{0,80}",
        lists in vec(vec(".{0,20}", 0..5), 3),
        signature in vec(any::<u8>(), 0..40),
        ranges in vec((any::<u64>(), any::<u32>(), vec(any::<u8>(), 0..100)), 0..6),
        bytes in any::<[u8; 2]>(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![Just(0_u8), 1..4_u8, any::<u8>()],
    ) {
        let method = MethodRecord {
            function: numbers[0],
            rejit: numbers[1],
            module: numbers[2],
            type_token: tokens[0],
            token: tokens[1],
            kind: bytes[0],
            tier: bytes[1],
            app_domain: numbers[3],
            name,
            generic_parameters: lists[0].clone(),
            signature,
            class_arguments: lists[1].clone(),
            method_arguments: lists[2].clone(),
            asked_ip: numbers[4],
            ranges: ranges
                .into_iter()
                .map(|(start, size, code)| CodeRangeRecord { start, size, code })
                .collect(),
        };
        let mut bytes = bytes_of(&method.clone().into());
        prop_assert_eq!(MethodRecord::decode(&bytes), Ok(method));
        // A byte that is another one: a length, a count, or a part of a text.
        let at = at.index(bytes.len());
        bytes[at] = bytes[at].wrapping_add(byte);
        prop_assert_eq!(viewed(&bytes), MethodRecord::decode(&bytes));
    }

    /// Small bytes, so that lengths are often right.
    #[test]
    fn any_bytes_are_a_record_or_an_error(
        kind in 0..16_u16,
        bytes in vec(prop_oneof![4 => Just(0_u8), 2 => 1..4_u8, 1 => any::<u8>()], 0..300),
    ) {
        prop_assert_eq!(viewed(&bytes), MethodRecord::decode(&bytes));
        if let Ok(record) = Record::decode(kind, &bytes) {
            prop_assert_eq!(record.kind(), kind);
            prop_assert_eq!(Record::decode(kind, &bytes_of(&record)), Ok(record));
        }
    }

    #[test]
    fn any_bytes_are_an_event_or_an_error(
        bytes in vec(prop_oneof![3 => Just(0_u8), 1 => 1..4_u8, 1 => any::<u8>()], 0..300),
    ) {
        if let Ok(event) = EventRecord::decode(&bytes) {
            prop_assert!(event.borrow().length().is_some_and(|length| length <= bytes.len()));
        }
    }
}
