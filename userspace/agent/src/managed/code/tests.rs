use super::eras::{BEGUN_FOR, LATELY, MOST_BEGUN};
use super::*;

fn rule(cfa: u32) -> Rule {
    Rule::simple(Packed::frame(Kind::Sp, cfa, 0, 0).unwrap())
}

fn looked_up(map: &CodeMap, address: u64) -> Rule {
    map.table_of(address & !(UNIT - 1)).unwrap().lookup(address)
}

#[test]
fn a_method_has_its_rules_and_what_is_around_it_is_unannounced() {
    let mut map = CodeMap::default();
    map.insert(0x10_0123, 0x40, &[(0, rule(8)), (4, rule(40))], MethodIndex(0));
    assert_eq!(looked_up(&map, 0x10_0123), rule(8));
    assert_eq!(looked_up(&map, 0x10_0126), rule(8));
    assert_eq!(looked_up(&map, 0x10_0127), rule(40));
    assert_eq!(looked_up(&map, 0x10_0162), rule(40));
    for outside in [0x10_0122, 0x10_0163, 0x10_0000, 0x13_ffff] {
        assert_eq!(looked_up(&map, outside).packed, Packed::UNANNOUNCED, "{outside:x}");
    }
    assert!(map.table_of(0x14_0000).is_none());
}

#[test]
fn a_method_that_crosses_units_is_in_both() {
    let mut map = CodeMap::default();
    map.insert(0x13_fff0, 0x20, &[(0, rule(16))], MethodIndex(0));
    assert_eq!(map.take_dirty(10), [0x10_0000, 0x14_0000]);
    assert_eq!(looked_up(&map, 0x13_ffff), rule(16));
    assert_eq!(looked_up(&map, 0x14_000f), rule(16));
    assert_eq!(looked_up(&map, 0x14_0010).packed, Packed::UNANNOUNCED);
}

#[test]
fn neighbours_keep_their_own_rules() {
    let mut map = CodeMap::default();
    for method in 0..2000u64 {
        let start = 0x20_0000 + method * 0x60;
        map.insert(start, 0x60, &[(0, rule(8)), (1, rule(16))], MethodIndex(method as u32));
    }
    for method in 0..2000u64 {
        let start = 0x20_0000 + method * 0x60;
        assert_eq!(looked_up(&map, start), rule(8));
        assert_eq!(looked_up(&map, start + 1), rule(16));
        assert_eq!(looked_up(&map, start + 0x5f), rule(16));
    }
}

#[test]
fn code_tells_whether_it_keeps_a_frame_pointer() {
    let framed = Rule::simple(Packed::frame(Kind::Fp, 16, 16, 0).unwrap());
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8)), (5, framed)], MethodIndex(0));
    assert_eq!(map.keeps_frame_pointer(0x1004), Some(false));
    assert_eq!(map.keeps_frame_pointer(0x1005), Some(true));
    assert_eq!(map.keeps_frame_pointer(0x1040), None);
}

#[test]
fn an_address_is_looked_up_in_the_era_of_its_sample() {
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x100, &[(0, rule(8))], MethodIndex(1));
    let before = map.eras.now();
    map.insert(0x1080, 0x100, &[(0, rule(8))], MethodIndex(2));
    let after = map.eras.now();
    assert_eq!(map.method_at(0x1090, before).map(|f| f.method), Some(MethodIndex(1)));
    assert_eq!(map.method_at(0x1090, after).map(|f| f.method), Some(MethodIndex(2)));
    assert_eq!(map.method_at(0x1010, after), None, "it was overwritten, so it is gone");
    map.insert(0x9000, 0x100, &[(0, rule(8))], MethodIndex(3));
    assert_eq!(map.method_at(0x9000, before), None, "it came later");
}

#[test]
fn a_sample_is_of_the_code_that_was_there_at_its_time() {
    let mut map = CodeMap::default();
    let found = |map: &CodeMap, time| map.method_at(0x1008, map.eras.at(time)).map(|f| f.method.0);
    map.eras.set_time(100, 1000);
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
    assert_eq!(found(&map, 150), Some(1));
    // Other code comes to its place, and goes, before any of it was read.
    map.eras.set_time(200, 1000);
    map.remove(0x1000);
    map.eras.set_time(300, 1000);
    map.insert(0x1000, 0x60, &[(0, rule(8))], MethodIndex(2));
    map.eras.set_time(400, 1000);
    map.remove(0x1000);
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(3));
    let at = |map: &CodeMap, times: [u64; 5]| times.map(|time| found(map, time));
    let all = [Some(1), Some(1), Some(2), Some(2), Some(3)];
    assert_eq!(at(&map, [99, 199, 300, 399, 400]), all);
    // A record that is out of order, and one that claims a time to come.
    map.eras.set_time(350, 1000);
    map.remove(0x1000);
    map.insert(0x1000, 0x50, &[(0, rule(8))], MethodIndex(4));
    map.eras.set_time(500, 1000);
    map.eras.set_time(u64::MAX, 1000);
    map.remove(0x1000);
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(5));
    let all = [Some(2), Some(2), Some(4), Some(4), Some(5)];
    assert_eq!(at(&map, [300, 399, 400, 499, 500]), all);
}

#[test]
fn code_that_runs_before_its_record_is_written_is_that_of_the_record() {
    const SECOND: u64 = 1_000_000_000;
    let mut map = CodeMap::default();
    let insert = |map: &mut CodeMap, time, start, method| {
        map.eras.set_time(time, time);
        map.insert(start, 0x40, &[(0, rule(8))], MethodIndex(method));
    };
    insert(&mut map, SECOND, 0x1000, 1);
    let ran = map.eras.at(SECOND);
    map.eras.set_time(SECOND + 1, SECOND + 1);
    map.remove(0x1000);
    insert(&mut map, SECOND + 2, 0x2000, 2);
    insert(&mut map, SECOND + 3, 0x1000, 3);
    insert(&mut map, 2 * SECOND, 0x3000, 4);
    let found = [0x1000, 0x2000, 0x3000].map(|at| map.method_at(at, ran).map(|f| f.method.0));
    assert_eq!(found, [Some(1), Some(2), None]);
}

#[test]
fn beginnings_of_eras_are_known_for_some_seconds() {
    let mut map = CodeMap::default();
    let mut replace = |time: u64| {
        map.eras.set_time(time, time);
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(time as u32));
        map.remove(0x1000);
        map.eras.known()
    };
    let lengths: Vec<_> = (0..40_000).map(&mut replace).collect();
    assert_eq!(lengths.iter().max(), Some(&MOST_BEGUN));
    assert_eq!(replace(BEGUN_FOR + 39_999), 3);
    assert_eq!(replace(BEGUN_FOR * 3), 2);
    // Until the last one the one before was in force, and before that an earlier one.
    let before = BEGUN_FOR + 39_999;
    assert_eq!([before - 1, before].map(|time| map.eras.now() - map.eras.at(time)), [2, 1]);
}

#[test]
fn a_sample_that_came_while_older_records_were_read_is_of_what_they_leave() {
    let mut map = CodeMap::default();
    let found = |map: &CodeMap, address, era| map.method_at(address, era).map(|f| f.method.0);
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
    map.insert(0x2000, 0x40, &[(0, rule(8))], MethodIndex(2));
    map.insert(0x3000, 0x40, &[(0, rule(8))], MethodIndex(3));
    map.insert(0x4000, 0x40, &[(0, rule(8))], MethodIndex(4));
    map.eras.was_read_until(10);
    let before = map.era_of_sample(10);
    let meanwhile = map.era_of_sample(20);
    // All of this was over when the sample was taken.
    map.remove(0x1000);
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(11));
    assert_eq!([10, 20, u64::MAX].map(|time| map.eras.at(time)), [before, meanwhile, meanwhile]);
    map.eras.was_read_until(19);
    map.remove(0x1000);
    map.insert(0x1000, 0x60, &[(0, rule(8))], MethodIndex(12));
    map.insert(0x2010, 0x40, &[(0, rule(8))], MethodIndex(13));
    map.insert(0x5000, 0x40, &[(0, rule(8))], MethodIndex(14));
    map.remove(0x5000);
    map.remove_ended(0x3000);
    assert!(map.eras.is_held_at(meanwhile) && !map.eras.is_held_at(before));
    map.eras.was_read_until(20);
    assert!(!map.eras.is_held());
    let at =
        |era| [0x1008, 0x2008, 0x2018, 0x3008, 0x4008].map(|address| found(&map, address, era));
    assert_eq!(at(before), [Some(1), Some(2), Some(2), Some(3), Some(4)]);
    for era in [meanwhile, map.eras.at(u64::MAX)] {
        assert_eq!(at(era), [Some(12), None, Some(13), None, Some(4)], "{era}");
    }
    assert_eq!(found(&map, 0x5008, meanwhile), Some(14), "it may have ended just now");
    // What was read meanwhile, and ends before its samples are named.
    map.remove(0x2010);
    map.insert(0x2010, 0x40, &[(0, rule(8))], MethodIndex(16));
    assert_eq!(found(&map, 0x2018, meanwhile), Some(13));
    assert_eq!(found(&map, 0x2018, map.eras.at(u64::MAX)), Some(16));
    // What ends later was there.
    map.remove(0x4000);
    map.insert(0x4000, 0x40, &[(0, rule(8))], MethodIndex(15));
    assert_eq!(found(&map, 0x4008, meanwhile), Some(4));
    assert_eq!(found(&map, 0x4008, map.eras.at(u64::MAX)), Some(15));
}

#[test]
fn an_era_is_held_for_a_second_where_the_log_is_never_read_to_its_end() {
    const SECOND: u64 = 1_000_000_000;
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
    map.eras.was_read_until(SECOND);
    let held = map.era_of_sample(SECOND * 2);
    map.eras.was_read_in_part_until(SECOND + 5, SECOND * 2);
    assert!(map.eras.is_held_at(held));
    map.eras.was_read_in_part_until(SECOND + 9, SECOND * 3);
    assert!(!map.eras.is_held());
    // The next one is another.
    let next = map.era_of_sample(SECOND * 4);
    assert!(map.eras.is_held_at(next) && next != held);
    assert_eq!(map.era_of_sample(SECOND * 2), held);
}

#[test]
fn code_that_is_gone_is_unwound_and_named_until_other_code_is_there() {
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8)), (4, rule(40))], MethodIndex(1));
    map.remove(0x1000);
    assert!(!map.knows(0x1010) && map.is_gone(0x1010) && !map.is_gone(0x1040));
    assert_eq!(map.rule_of_gone(0x1003), Some(rule(8)));
    assert_eq!(map.rule_of_gone(0x1010), Some(rule(40)));
    // Its stack arrived later than the record of its end.
    let found = map.method_at(0x1010, map.eras.now());
    assert_eq!(found.map(|found| found.method), Some(MethodIndex(1)));
    map.insert(0x1008, 0x40, &[(0, rule(16))], MethodIndex(2));
    assert_eq!(map.rule_of_gone(0x1010), None, "the next publication has its rule");
    assert_eq!(map.rule_of_gone(0x1004), Some(rule(40)));
    let found = map.method_at(0x1010, map.eras.now());
    assert_eq!(found.map(|found| found.method), Some(MethodIndex(2)));
}

#[test]
fn an_address_that_is_none_is_near_nothing() {
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(0));
    for address in [0, u64::MAX, u64::MAX >> 2, 1 << 62] {
        map.insert_stub(address, true);
        map.insert_known_stub(address, 64, &[(0, rule(8))]);
        assert!(!map.is_beside_known(address | 1 << 61) && !map.is_gone(address));
        assert!(map.method_at(address, map.eras.now()).is_none());
    }
}

#[test]
fn unknown_code_that_has_called_something_is_followed_by_its_frame_pointer() {
    let mut map = CodeMap::default();
    map.insert_stub(0x1008, false);
    map.insert_stub(0x2008, true);
    assert_eq!(looked_up(&map, 0x1008), rule(8));
    assert_eq!(map.keeps_frame_pointer(0x2008), Some(true));
}

#[test]
fn code_that_has_long_been_gone_is_not_unwound() {
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
    map.remove(0x1000);
    for _ in 0..LATELY {
        assert!(map.is_gone(0x1010));
        map.insert(0x9000, 0x40, &[(0, rule(8))], MethodIndex(2));
        map.remove(0x9000);
    }
    assert!(!map.is_gone(0x1010));
}

#[test]
fn a_stub_gives_way_to_a_method_and_never_the_other_way_round() {
    let mut map = CodeMap::default();
    map.insert_stub(0x1008, false);
    assert!(map.knows(0x1000) && map.method_at(0x1008, map.eras.now()).is_none());
    map.insert(0x1000, 0x100, &[(0, rule(8))], MethodIndex(0));
    map.insert_stub(0x1010, false);
    assert_eq!(map.method_at(0x1018, map.eras.now()).map(|f| f.start), Some(0x1000));
}

#[test]
fn claimed_code_is_bounded_by_the_units_it_lies_in() {
    let mut map = CodeMap::default();
    for n in 0..100_000u64 {
        map.insert(0x10_0000 + n * u64::from(MAX_SIZE), MAX_SIZE, &[], MethodIndex(n as u32));
    }
    assert!(map.units.len() <= MAX_UNITS && map.dirty.len() <= MAX_UNITS);
    assert_eq!(map.refused, 100_000 - map.spans.len() as u64);
    // Each turn builds a few, and none is forgotten.
    let all = map.dirty.len();
    let mut built = 0;
    while map.is_dirty() {
        let (era, version) = (map.eras.now(), map.eras.version());
        let taken = map.take_dirty(UNITS_AT_ONCE).len();
        assert!(taken <= UNITS_AT_ONCE);
        assert!(
            built == 0 || map.eras.version() != version,
            "what was cached meanwhile is out of date"
        );
        assert_eq!(map.eras.now(), era, "the code is the same");
        built += taken;
    }
    assert_eq!(built, all);
    for start in map.spans.keys().copied().collect::<Vec<_>>() {
        map.remove(start);
    }
    assert!(map.units.is_empty());
}

#[test]
fn every_byte_that_a_process_makes_strata_keep_is_counted() {
    let mut map = CodeMap::default();
    // Crafted code: a row for nearly every instruction, all lists different.
    for n in 0..100u32 {
        let rules: Vec<_> = (0..8000).map(|at| (at + n, rule(8 + at % 2 * 8))).collect();
        map.insert(u64::from(n) << 16, 0xf000, &rules, MethodIndex(n));
    }
    let longest = map.row_lists.all().map(<[Row]>::len).max();
    assert_eq!(longest, Some(MAX_ROWS + 1));
    let rows: usize = map.row_lists.all().map(size_of_val).sum();
    assert!(map.bytes() >= rows, "{} {rows}", map.bytes());
    assert_eq!(looked_up(&map, 0xe000).packed, Packed::UNSUPPORTED, "and not another's rule");
    assert_eq!(map.refused, 100);
}

#[test]
fn code_that_comes_and_goes_is_remembered_until_its_samples_are_named() {
    let mut map = CodeMap::default();
    for n in 0..2 * MAX_RETIRED_IN_PAGE as u32 {
        map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(n));
    }
    assert!(map.retired_count <= MAX_RETIRED_IN_PAGE && map.refused > 0);
    let (last, now) = (map.eras.now() - 1, map.eras.now());
    let newest = 2 * MAX_RETIRED_IN_PAGE as u32 - 2;
    assert_eq!(map.method_at(0x1010, last).map(|found| found.method.0), Some(newest));
    map.forget_retired(now, |_| false);
    assert_eq!((map.retired_count, map.retired.len()), (0, 0));
    assert!(map.method_at(0x1010, now).is_some(), "what is there stays");
}

#[test]
fn what_a_process_claims_is_bounded() {
    let mut map = CodeMap::default();
    map.insert(0x1000, u32::MAX, &[], MethodIndex(0));
    map.insert(u64::MAX - 5, 100, &[], MethodIndex(0));
    map.insert(0x1000, 0, &[], MethodIndex(0));
    assert_eq!((map.refused, map.spans.len()), (3, 0));
    for n in 0..5000u32 {
        let rules = [(0, Rule { cfa_offset: n as i32, ..Rule::simple(Packed::extended(0)) })];
        map.insert(u64::from(n) * 64, 64, &rules, MethodIndex(n));
    }
    assert!(map.rules.len() <= NEW_RULES_PER_OWNER);
}

#[test]
fn code_that_comes_and_goes_without_end_takes_no_more_than_it_did() {
    let mut map = CodeMap::default();
    let mut once = 0;
    for turn in 0..200u32 {
        // Every time other rules, and other methods.
        for n in 0..100u64 {
            let start = 0x10_0000 + n * 0x80;
            let rules = [(0, rule(8)), (1 + turn % 50, rule(16))];
            map.insert(start, 0x60, &rules, MethodIndex(n as u32));
            map.insert(start + 0x60, 0x20, &rules, MethodIndex(n as u32));
        }
        for n in 0..100u64 {
            map.remove(0x10_0000 + n * 0x80);
            assert!(map.has_code_of(MethodIndex(n as u32)), "its other code");
            map.remove(0x10_0060 + n * 0x80);
        }
        assert!(map.take_unused().is_empty(), "what is gone has samples");
        map.forget_retired(map.eras.now(), |_| false);
        assert_eq!(map.take_unused().len(), 100);
        map.take_dirty(UNITS_AT_ONCE);
        if turn == 0 {
            once = map.bytes();
        }
        assert!(map.bytes() <= once, "{} {once}", map.bytes());
    }
}

#[test]
fn code_that_was_sampled_outlives_its_end() {
    let mut map = CodeMap::default();
    for n in 0..4u32 {
        map.insert(0x1000 + u64::from(n) * 0x40, 0x40, &[(0, rule(8))], MethodIndex(n));
    }
    let before = map.eras.now();
    for n in 0..4u64 {
        map.remove(0x1000 + n * 0x40);
    }
    map.forget_retired(map.eras.now(), |method| method.0 == 2);
    let at = |n: u64| map.method_at(0x1010 + n * 0x40, before).map(|found| found.method.0);
    assert_eq!([at(0), at(1), at(2), at(3)], [None, None, Some(2), None]);
    let unused: Vec<u32> = map.take_unused().into_iter().map(|method| method.0).collect();
    assert_eq!(unused, [0, 1, 3]);
}

#[test]
fn stubs_found_long_ago_are_forgotten_and_methods_are_not() {
    let mut map = CodeMap::default();
    map.insert(0x1000, 0x40, &[(0, rule(8))], MethodIndex(1));
    map.insert_stub(0x2000, false);
    let era = map.eras.now();
    map.insert(0x1000, 0x80, &[(0, rule(8))], MethodIndex(2));
    map.insert_stub(0x3000, false);
    map.forget_stubs(era);
    assert_eq!([0x1000, 0x2000, 0x3000].map(|at| map.knows(at)), [true, false, true]);
}
