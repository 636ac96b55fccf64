//! The flame graph, read back as XML.

mod support;

use std::collections::BTreeMap;

use quick_xml::events::{BytesStart, Event};
use strata_kinds::Kind;
use strata_profile::{Format, Profile, ProfileBuilder, WriteOptions, pprof, write};
use support::{HOSTILE_NAMES, add, everything, hostile, recording};

#[derive(Clone, Debug, Default)]
struct Drawn {
    name: String,
    figures: String,
    value: i64,
    start: i64,
    x: f64,
    y: f64,
    width: f64,
}

impl Drawn {
    fn samples(&self) -> i64 {
        let (number, _) = self.figures.trim_start_matches('(').split_once(' ').unwrap();
        number.replace(',', "").parse().unwrap()
    }
}

fn svg(profile: &Profile) -> String {
    let mut bytes = Vec::new();
    write(profile, Format::Svg, &WriteOptions::default(), &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn attribute(element: &BytesStart<'_>, name: &str) -> String {
    let found = element.try_get_attribute(name).unwrap();
    found.map_or(String::new(), |found| String::from_utf8(found.value.into_owned()).unwrap())
}

/// The frames of a picture, and the names of every element in it.
fn read(svg: &str) -> (Vec<Drawn>, BTreeMap<String, usize>) {
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_comments = true;
    let mut elements = BTreeMap::new();
    let mut frames: Vec<Drawn> = Vec::new();
    let mut text = String::new();
    let mut in_title = false;
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => break,
            Event::Start(element) => {
                let name = String::from_utf8(element.name().as_ref().to_vec()).unwrap();
                if name == "g" && !attribute(&element, "data-v").is_empty() {
                    frames.push(Drawn {
                        value: attribute(&element, "data-v").parse().unwrap(),
                        start: attribute(&element, "data-x").parse().unwrap(),
                        ..Drawn::default()
                    });
                }
                in_title = name == "title";
                text.clear();
                *elements.entry(name).or_default() += 1;
            }
            Event::Empty(element) => {
                let name = String::from_utf8(element.name().as_ref().to_vec()).unwrap();
                if let (Some(frame), "rect") = (frames.last_mut(), name.as_str()) {
                    frame.x = attribute(&element, "x").parse().unwrap();
                    frame.y = attribute(&element, "y").parse().unwrap();
                    frame.width = attribute(&element, "width").parse().unwrap();
                }
                *elements.entry(name).or_default() += 1;
            }
            Event::Text(part) => text.push_str(&part.decode().unwrap()),
            Event::GeneralRef(entity) => text.push_str(match entity.decode().unwrap().as_ref() {
                "amp" => "&",
                "lt" => "<",
                "gt" => ">",
                "quot" => "\"",
                "#39" => "'",
                other => panic!("unexpected entity {other}"),
            }),
            Event::End(_) if in_title => {
                in_title = false;
                if let (Some(frame), Some((name, figures))) =
                    (frames.last_mut(), text.rsplit_once('\n'))
                {
                    frame.name = name.to_owned();
                    frame.figures = figures.to_owned();
                }
            }
            _ => {}
        }
    }
    (frames, elements)
}

#[test]
fn widths_and_counts_equal_the_totals_of_the_pprof_file() {
    let profile = everything();
    let mut bytes = Vec::new();
    pprof::encode(&profile, &mut bytes).unwrap();
    let again = pprof::decode(&bytes).unwrap();
    let (frames, _) = read(&svg(&again));
    let all = frames.first().unwrap();
    assert_eq!((all.name.as_str(), all.value, all.samples()), ("all", 1000, 1000));
    let sum = |name: &str| {
        frames.iter().filter(|frame| frame.name == name).map(Drawn::samples).sum::<i64>()
    };
    assert_eq!(sum("vfs_read"), 500);
    assert_eq!(sum("app::inner"), 970);
    assert_eq!(sum("Shop.Order.Pay"), 50);
    assert_eq!(sum("libc.so.6!0x29234"), 25);
    for frame in &frames {
        let share = frame.value as f64 / all.value as f64;
        let width = frame.width / all.width;
        assert!((share - width).abs() < 0.001, "{frame:?}");
    }
}

#[test]
fn processes_stand_at_the_top_and_named_threads_below_them() {
    let (frames, _) = read(&svg(&everything()));
    let row = |name: &str| frames.iter().find(|frame| frame.name == name).unwrap().y;
    assert!(row("all") < row("app") && row("app") < row("worker 1") && row("app") == row("other"));
    assert!(row("app::outer") < row("app::inner") && row("app::inner") < row("read"));
    assert!(row("read") < row("vfs_read"));
}

#[test]
fn every_frame_lies_within_its_caller() {
    let (frames, _) = read(&svg(&everything()));
    let mut callers: Vec<&Drawn> = Vec::new();
    for frame in &frames {
        callers.retain(|caller| caller.y < frame.y);
        if let Some(caller) = callers.last() {
            assert!(frame.start >= caller.start, "{frame:?} in {caller:?}");
            assert!(
                frame.start + frame.value <= caller.start + caller.value,
                "{frame:?} in {caller:?}"
            );
        }
        callers.push(frame);
    }
}

#[test]
fn hostile_names_are_inert() {
    let text = svg(&hostile());
    let (frames, elements) = read(&text);
    assert_eq!(elements.get("script"), Some(&1), "{elements:?}");
    let allowed = ["svg", "title", "style", "rect", "text", "g", "foreignObject", "script"];
    assert!(elements.keys().all(|name| allowed.contains(&name.as_str())), "{elements:?}");
    assert!(frames.iter().any(|frame| frame.name == "<script>alert(1)</script>"));
    assert!(frames.iter().any(|frame| frame.name == "\\x1b[31mred\\x1b[0m"));
    assert_eq!(frames.iter().filter(|frame| frame.y > 184.0).count(), HOSTILE_NAMES.len());
    for character in text.chars().filter(|character| *character != '\n') {
        assert!(!character.is_control(), "{character:?}");
        let code = u32::from(character);
        assert!(
            !matches!(code, 0x200b..=0x200f | 0x2028..=0x202e | 0x2066..=0x2069 | 0xfffe | 0xffff)
        );
    }
}

#[test]
fn kinds_of_code_have_their_colours_and_a_legend() {
    let text = svg(&everything());
    for legend in ["Kernel 50.0 %", "Native 32.5 %", "JIT 12.0 %", "Managed 5.0 %"] {
        assert!(text.contains(legend), "{legend}");
    }
    let class_of = |name: &str| {
        let before = text.split(&format!("<title>{name}\n")).next().unwrap();
        before.rsplit_once("class=\"").unwrap().1.chars().next().unwrap()
    };
    assert_eq!(class_of("vfs_read"), 'k');
    assert_eq!(class_of("read"), 'n');
    assert_eq!(class_of("*render view.js:3"), 'j');
    assert_eq!(class_of("Shop.Order.Pay"), 'm');
    assert_eq!(class_of("[truncated]"), 'u');
}

#[test]
fn a_profile_without_samples_is_a_picture_that_says_so() {
    let text = svg(&recording().finish());
    let (frames, _) = read(&text);
    assert_eq!(frames.len(), 1);
    assert!(text.contains("no samples"));
}

#[test]
fn a_huge_profile_gives_a_small_file_in_which_wide_frames_are_right() {
    let mut builder = recording();
    let thread = builder.thread(1, 1, "app", "app", "");
    for number in 0..60_000 {
        let name = format!("function_{number}_{}", "x".repeat(40));
        add(&mut builder, thread, &[&name, "caller", "main"], 1 + i64::from(number % 3));
    }
    add(&mut builder, thread, &["hot", "main"], 60_000);
    let deep = vec!["recurse"; 5_000];
    add(&mut builder, thread, &deep, 1_000);
    let profile = builder.finish();
    let text = svg(&profile);
    assert!(text.len() < 8 << 20, "{} bytes", text.len());
    let (frames, _) = read(&text);
    let caller = frames.iter().find(|frame| frame.name == "caller").unwrap();
    assert_eq!(caller.value, (1 + 2 + 3) * 20_000);
    assert_eq!(frames.iter().find(|frame| frame.name == "hot").unwrap().value, 60_000);
    assert!(text.contains("are not drawn"));
    assert!(frames.last().unwrap().y < 32_000.0);
}

#[test]
fn a_picture_of_elapsed_time_does_not_count_samples_of_a_cpu() {
    let kinds = [Kind::Cpu, Kind::Wall].into_iter().collect();
    let mut builder = ProfileBuilder::of_kinds(kinds);
    let of = builder.thread(41, 42, "worker", "app", "");
    let labels = builder.thread_labels(of);
    let location = support::native(&mut builder, "Shop.Pay");
    let stack = builder.stack(&[location]);
    builder.add_of(Kind::Wall, stack, labels, &[3_000_000_000]);
    let options = WriteOptions { sample_type: Some("wall".to_owned()), ..WriteOptions::default() };
    let mut bytes = Vec::new();
    write(&builder.finish(), Format::Svg, &options, &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("3.00 s") && !text.contains("sample"), "{text}");
}
