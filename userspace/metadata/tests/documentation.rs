//! The documentation agrees with the code.

const MARK: &str = "<!-- From here on made by the crate strata-metadata: STRATA_UPDATE_DOCS=1 cargo test -p strata-metadata -->\n";

#[test]
fn the_documented_tables_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/services.md");
    let text = std::fs::read_to_string(path).expect("docs/services.md is there");
    let (head, tables) = text.split_once(MARK).expect("docs/services.md has the mark");
    let expected = format!("\n{}", strata_metadata::document::tables());
    if std::env::var_os("STRATA_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{MARK}{expected}"))
            .expect("docs/services.md is written");
        return;
    }
    assert_eq!(tables, expected, "run STRATA_UPDATE_DOCS=1 cargo test -p strata-metadata");
}
