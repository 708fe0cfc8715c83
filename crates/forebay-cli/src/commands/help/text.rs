//! A page as text for a terminal. Tables of prose do not fit there: each row becomes an entry with
//! its cells below it.

use super::markdown::Block;
use crate::screen::{Paint, Width, wrapped};

/// Maximum line width, even on a wider terminal: longer lines are hard to read.
const READABLE: u16 = 100;
/// Columns by which code and cells are indented.
const INDENT: u16 = 4;

/// Returns the page.
pub(super) fn text(blocks: &[Block], paint: Paint, width: Width) -> String {
    let columns = width.columns().map_or(READABLE, |columns| columns.min(READABLE));
    let mut text = String::new();
    let mut in_list = false;
    for block in blocks {
        let is_item = matches!(block, Block::Item(..));
        let goes_on = is_item && in_list;
        if !text.is_empty() && !goes_on {
            text += "\n";
        }
        in_list = is_item;
        match block {
            Block::Heading(1, title) => text += &format!("{}\n", paint.bold(&title.to_uppercase())),
            Block::Heading(_, title) => text += &format!("{}\n", paint.bold(title)),
            Block::Paragraph(words) => text += &indented(words, "", columns),
            Block::Item(mark, words) => text += &indented(words, &format!("{mark} "), columns),
            Block::Code(lines) => {
                let space = " ".repeat(usize::from(INDENT));
                lines
                    .iter()
                    .for_each(|line| text += &(format!("{space}{line}").trim_end().to_owned() + "\n"));
            }
            Block::Table(header, rows) => text += &entries(header, rows, paint, columns),
        }
    }
    text
}

/// Returns wrapped text after a mark, with the following lines aligned to the text.
fn indented(words: &str, mark: &str, columns: u16) -> String {
    let space = mark.chars().count() as u16;
    let lines = wrapped(words, Width::exactly(columns.saturating_sub(space)));
    let mut text = String::new();
    for (at, line) in lines.lines().enumerate() {
        text += &match at {
            0 => format!("{mark}{line}\n"),
            _ => format!("{}{line}\n", " ".repeat(usize::from(space))),
        };
    }
    text
}

fn entries(header: &[String], rows: &[Vec<String>], paint: Paint, columns: u16) -> String {
    let mut text = String::new();
    for row in rows {
        let first = row.first().map_or("", String::as_str);
        // A row without further cells is a heading within the table.
        let rest: Vec<(usize, &String)> =
            row.iter().enumerate().skip(1).filter(|(_, cell)| !cell.is_empty()).collect();
        for line in wrapped(first, Width::exactly(columns)).lines().filter(|_| !first.is_empty()) {
            text += &format!("{}\n", paint.bold(line));
        }
        for (at, cell) in &rest {
            let name = header.get(*at).filter(|name| rest.len() > 1 && !name.is_empty());
            let name = name.map_or(String::new(), |name| format!("{name}: "));
            text += &indented(&format!("{name}{cell}"), &" ".repeat(usize::from(INDENT)), columns);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::markdown::parse;
    use super::*;

    #[test]
    fn a_page_reads_well_without_markup() {
        let page = "# Title\n\nWords and more words than fit.\n\n- one\n- two that is longer than the line is wide\n\n\
                    ```\ncode\n```\n\n| key | does | default |\n| --- | --- | --- |\n| `a` | this | 5 |\n";
        let expected = "TITLE\n\nWords and more words than fit.\n\n- one\n- two that is longer than the line is\n  wide\n\n    \
                        code\n\n`a`\n    does: this\n    default: 5\n";
        assert_eq!(text(&parse(page), Paint::none(), Width::of(40)), expected);
    }

    #[test]
    fn help_pages_fit_the_terminal() {
        for (name, page) in super::super::pages::ALL {
            let blocks: Vec<Block> =
                parse(page).into_iter().filter(|block| !matches!(block, Block::Code(_))).collect();
            for line in text(&blocks, Paint::none(), Width::of(80)).lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }
}
