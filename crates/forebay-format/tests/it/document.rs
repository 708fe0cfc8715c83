//! Checks `docs/internals/on-disk-format.md` against the code: every offset table, and every
//! constant in the table of limits.

use forebay_format::checkpoint::increment;
use forebay_format::layout::Structure;
use forebay_format::{
    BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, VERSION, batch, checkpoint, extension, geometry, member,
    settings_copy, structures, summary, superblock,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[test]
fn document_tables_match_the_code() {
    let tables = tables(&document());
    for structure in structures::ALL {
        let name = structure.name;
        let table = tables.get(name).unwrap_or_else(|| {
            panic!(
                "docs/internals/on-disk-format.md has no heading `### {name}` with a table; it should be:\n{}",
                table_of(structure)
            )
        });
        let expected: Vec<_> =
            structure.fields.iter().map(|f| (f.offset, f.len, f.name.to_owned())).collect();
        assert_eq!(
            *table,
            expected,
            "docs/internals/on-disk-format.md, `### {name}`: (offset, bytes, field) differ from the code, which says:\n{}",
            table_of(structure)
        );
        let end = table.last().map(|(offset, len, _)| offset + len);
        assert_eq!(end, Some(structure.len), "`### {name}` describes the whole structure");
    }
    for name in tables.keys().filter(|name| *name != "summary item") {
        assert!(structures::ALL.iter().any(|s| s.name == *name), "the code knows no structure `{name}`");
    }
}

#[test]
fn document_summary_item_length_matches() {
    let tables = tables(&document());
    let (offset, len, _) = tables["summary item"].last().unwrap().clone();
    assert_eq!(offset + len, summary::ITEM_BYTES);
}

#[test]
fn document_limits_match_the_code() {
    let document = document();
    let limits: BTreeMap<String, String> = rows(&document)
        .filter_map(|(heading, cells)| match &cells[..] {
            [name, value, _meaning] if heading == "Numbers" && name.starts_with('`') => {
                Some((plain(name), plain(value)))
            }
            _ => None,
        })
        .collect();
    let expected = [
        ("VERSION", u64::from(VERSION)),
        ("BLOCK_BYTES", BLOCK_BYTES as u64),
        ("SECTOR_BYTES", SECTOR_BYTES as u64),
        ("SECTORS_PER_BLOCK", SECTORS_PER_BLOCK as u64),
        ("SUPERBLOCK_A_BLOCK", geometry::SUPERBLOCK_A_BLOCK),
        ("SUPERBLOCK_B_BLOCK", geometry::SUPERBLOCK_B_BLOCK),
        ("CHECKPOINT_START_BLOCK", geometry::CHECKPOINT_START_BLOCK),
        ("CHECKPOINT_SLOTS", geometry::CHECKPOINT_SLOTS),
        ("SEGMENTS_MIN", u64::from(geometry::SEGMENTS_MIN)),
        ("SEGMENT_BLOCKS_MIN", u64::from(geometry::SEGMENT_BLOCKS_MIN)),
        ("SEGMENT_BLOCKS_MAX", u64::from(geometry::SEGMENT_BLOCKS_MAX)),
        ("VOLUMES_MAX", u64::from(geometry::VOLUMES_MAX)),
        ("INTENTS_MAX", u64::from(geometry::INTENTS_MAX)),
        ("INTENT_REGION_BLOCKS", checkpoint::INTENT_REGION_BLOCKS),
        ("CHANGE_SLOTS_MAX", u64::from(increment::CHANGE_SLOTS_MAX)),
        ("SAMPLES_MAX", checkpoint::SAMPLES_MAX as u64),
        ("NAME_BYTES_MAX", checkpoint::NAME_BYTES_MAX as u64),
        ("GROWTH_DEFAULT", u64::from(geometry::GROWTH_DEFAULT)),
        ("MEMBERS_MAX", member::MEMBERS_MAX as u64),
        ("DATA_START_BLOCK", member::DATA_START_BLOCK),
        ("EXTENSION_SEGMENTS_MAX", extension::EXTENSION_SEGMENTS_MAX as u64),
        ("SETTINGS_TEXT_MAX", settings_copy::SETTINGS_TEXT_MAX as u64),
        ("ENTRIES_MAX", batch::ENTRIES_MAX as u64),
        ("ITEM_BYTES", summary::ITEM_BYTES as u64),
    ];
    for (name, value) in expected {
        let found =
            limits.get(name).unwrap_or_else(|| panic!("`## Numbers` has no row `{name}`, it is {value}"));
        assert_eq!(*found, value.to_string(), "`## Numbers`, `{name}`: the document differs from the code");
    }
    assert_eq!(
        limits.len(),
        expected.len(),
        "`## Numbers` has rows that this test does not know: {limits:?}"
    );
}

#[test]
fn document_magic_numbers_match_the_code() {
    let document = document();
    for magic in [
        &superblock::MAGIC[..],
        &member::MAGIC,
        &checkpoint::MAGIC,
        &increment::INCREMENT_MAGIC,
        &increment::BASE_MAGIC,
        &extension::MAGIC,
        &settings_copy::MAGIC,
        &batch::MAGIC,
    ] {
        let shown = format!("`{}`", String::from_utf8_lossy(magic).replace('\0', "\\0"));
        assert!(document.contains(&shown), "the document does not name the magic number {shown}");
    }
}

fn document() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/on-disk-format.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Rows of all tables with numbers in their first two columns, by heading: offset, bytes, field.
fn tables(document: &str) -> BTreeMap<String, Vec<(usize, usize, String)>> {
    let mut tables: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (heading, cells) in rows(document) {
        let [offset, bytes, field, _meaning] = &cells[..] else { continue };
        let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse()) else { continue };
        tables.entry(heading).or_default().push((offset, bytes, plain(field)));
    }
    tables
}

/// Cells of every table row, with the heading above it.
fn rows(document: &str) -> impl Iterator<Item = (String, Vec<String>)> {
    let mut heading = String::new();
    document.lines().filter_map(move |line| {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim().to_owned();
        }
        let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some((heading.clone(), row.split('|').map(|cell| cell.trim().to_owned()).collect()))
    })
}

fn plain(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

/// The expected table in the document, without meanings.
fn table_of(structure: Structure) -> String {
    let mut text = "| offset | bytes | field | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for field in structure.fields {
        text += &format!("| {} | {} | `{}` | |\n", field.offset, field.len, field.name);
    }
    text
}
