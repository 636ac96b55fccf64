//! Flame graphs in a real browser: the script's zoom, tooltips and search, and that nothing is
//! clipped at the edge of a window.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use strata_tests::running::run;
use strata_tests::{machine, places};

const STACKS: &str = "\
shop;worker;main;serve;parse 30
shop;worker;main;serve;parse;malloc 10
shop;worker;main;serve;a_function_with_a_very_long_name_that_no_window_has_room_for_in_one_line_of_text;malloc 20
mail;main;deliver;malloc 40
";

/// A flame graph of [`STACKS`], as `strata convert` draws it.
fn picture(folder: &Path) -> Result<PathBuf> {
    let (folded, svg) = (folder.join("shop.folded"), folder.join("shop.svg"));
    std::fs::write(&folded, STACKS)?;
    let mut convert = Command::new(places::strata_binary()?);
    let done = run(convert.arg("convert").arg(&folded).arg(&svg))?;
    ensure!(done.status.success(), "{}", done.stderr);
    Ok(svg)
}

/// The document after `script` has run in it, in a window of this width.
fn look(picture: &Path, state: &str, width: u32, script: &str) -> Result<String> {
    let text = std::fs::read_to_string(picture)?;
    let with = text.replace(
        "</svg>",
        &format!(
            "<script><![CDATA[window.addEventListener('load', function () {{\n\
             var frame = function (name) {{ return Array.from(document.querySelectorAll('#frames > g, #inverted > g'))\
             .filter(function (g) {{ return g.style.display !== 'none' && g.textContent.indexOf(name) >= 0; }})[0]; }};\n\
             var send = function (g, what) {{ g.dispatchEvent(new MouseEvent(what, {{ bubbles: true }})); }};\n\
             {script}\n}});]]></script></svg>"
        ),
    );
    let looked_at = picture.with_extension("looked.svg");
    std::fs::write(&looked_at, with)?;
    let browser = places::required("chromium-headless-shell", "chromium-headless-shell")?;
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
        .arg(format!("--window-size={width},200"))
        .arg("--dump-dom")
        .arg(format!("file://{}{state}", looked_at.display()));
    let done = run(&mut command)?;
    ensure!(done.stdout.contains("id=\"frames\""), "{}", done.stderr);
    Ok(done.stdout)
}

/// The text of the element with this id.
fn text_of(document: &str, id: &str) -> Result<String> {
    let start = document.find(&format!("id=\"{id}\"")).with_context(|| format!("no {id}"))?;
    let rest = document.get(start..).unwrap_or_default();
    let (_, rest) = rest.split_once('>').context("an open element")?;
    Ok(rest.split('<').next().unwrap_or_default().to_owned())
}

#[test]
fn pointing_zooming_and_searching_say_shares_of_all_and_of_what_is_shown() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let picture = picture(folder.path())?;
    let document = look(
        &picture,
        "",
        900,
        "send(frame('serve'), 'click'); send(frame('parse'), 'mouseover');",
    )?;
    let (name, figures) = (text_of(&document, "details")?, text_of(&document, "figures")?);
    println!("{name}: {figures}");
    assert_eq!(name, "parse");
    assert!(
        figures.contains("40.00 % of all") && figures.contains("66.67 % of shown"),
        "{figures}"
    );
    assert!(figures.contains("40 samples") && figures.contains("self 30.00 %"), "{figures}");
    let document = look(&picture, "#q=malloc", 900, "send(frame('serve'), 'click');")?;
    let matched = text_of(&document, "matched")?;
    println!("{matched}");
    assert_eq!(matched, "matched 70.00 % of all, 50.00 % of shown");
    Ok(())
}

#[test]
fn the_address_keeps_what_is_shown() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let picture = picture(folder.path())?;
    let remember = "document.documentElement.setAttribute('data-hash', location.hash);";
    let script = format!("send(frame('serve'), 'click'); {remember}");
    let document = look(&picture, "#q=parse", 900, &script)?;
    let hash = document.split("data-hash=\"").nth(1).and_then(|rest| rest.split('"').next());
    let hash = hash.context("a hash")?.replace("&amp;", "&");
    println!("{hash}");
    let again = look(&picture, &hash, 900, "send(frame('parse'), 'mouseover');")?;
    assert!(text_of(&again, "figures")?.contains("66.67 % of shown"));
    assert_eq!(text_of(&again, "matched")?, "matched 40.00 % of all, 66.67 % of shown");
    Ok(())
}

#[test]
fn the_inverted_tree_has_functions_by_their_own_time_and_callers_below() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let picture = picture(folder.path())?;
    let rows = "var rows = Array.from(document.querySelectorAll('#inverted > g')).map(function (g) {\
                return g.querySelector('rect').getAttribute('y') + ' ' + g.textContent; });\
                document.documentElement.setAttribute('data-rows', rows.join('|'));";
    let document = look(&picture, "#i=1", 1600, rows)?;
    let rows = document.split("data-rows=\"").nth(1).and_then(|rest| rest.split('"').next());
    let rows: Vec<&str> = rows.context("rows")?.split('|').collect();
    println!("{rows:#?}");
    assert_eq!(rows[..3], ["126 all", "144 malloc", "162 deliver"]);
    let row = |text: &str| rows.iter().any(|row| row == &text);
    assert!(row("144 parse") && row("162 serve"), "each leaf is a root with its callers");
    let point = "send(document.querySelectorAll('#inverted > g')[1], 'mouseover');";
    let pointed = look(&picture, "#i=1", 900, point)?;
    let figures = text_of(&pointed, "figures")?;
    println!("{figures}");
    assert!(figures.contains("70.00 % of all") && figures.contains("Native"), "{figures}");
    let matched = look(&picture, "#i=1&q=malloc", 900, "")?;
    assert_eq!(text_of(&matched, "matched")?, "matched 70.00 % of all");
    Ok(())
}

#[test]
fn what_is_pointed_at_stays_in_view_and_nothing_is_cut_at_the_edge() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let picture = picture(folder.path())?;
    let script = "send(frame('a_function'), 'mouseover'); window.scrollTo(0, 150); \
        window.dispatchEvent(new Event('scroll')); \
        var right = Array.from(document.querySelectorAll('text, rect, foreignObject')).filter(function (e) { \
        return !e.closest('[style*=\"display: none\"]') && e.getBoundingClientRect().width > 0; \
        }).map(function (e) { return e.getBoundingClientRect().right; }); \
        document.documentElement.setAttribute('data-edge', \
        Math.max.apply(null, right) + ' ' + document.documentElement.clientWidth + ' ' + window.scrollY \
        + ' ' + document.documentElement.scrollWidth + ' ' + window.innerWidth);";
    for width in [500, 700, 1000, 1600] {
        let document = look(&picture, "#q=main", width, script)?;
        let edge = document.split("data-edge=\"").nth(1).and_then(|rest| rest.split('"').next());
        let edge: Vec<f64> =
            edge.context("an edge")?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        println!("{width}: {edge:?}");
        assert!(edge[0] <= edge[1] + 0.5, "something ends at {} of {}", edge[0], edge[1]);
        assert!(edge[2] > 0.0, "the picture is higher than the window");
        assert!(edge[3] <= edge[1] && edge[1] < edge[4], "only the vertical scroll bar is there");
        let head = format!("id=\"head\" transform=\"translate(0 {})", edge[2]);
        assert!(document.contains(&head), "the head does not follow");
    }
    Ok(())
}
