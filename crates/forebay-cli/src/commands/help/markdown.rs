//! The part of Markdown that the pages of the documentation use, as blocks.

use std::path::Path;

/// A block of a page. Texts are single lines without links and emphasis.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Level 1 is the title of the page.
    Heading(usize, String),
    Paragraph(String),
    /// An item of a list, with its mark (`-`, `2.`).
    Item(String, String),
    /// Preformatted lines.
    Code(Vec<String>),
    /// The header of a table, and its rows.
    Table(Vec<String>, Vec<Vec<String>>),
}

/// Parses a page into its blocks, in order. Comments and images are left out.
pub(super) fn parse(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with("![") {
        } else if bare.starts_with("<!--") {
            let mut last = bare;
            while !last.contains("-->") {
                let Some(next) = lines.next() else { break };
                last = next;
            }
        } else if bare.starts_with("```") {
            let code = lines.by_ref().take_while(|line| !line.trim().starts_with("```"));
            blocks.push(Block::Code(code.map(str::to_owned).collect()));
        } else if let Some(level) = heading(bare) {
            blocks.push(Block::Heading(level, inline(bare[level..].trim())));
        } else if bare.starts_with('|') {
            let mut rows = vec![cells(bare)];
            while let Some(row) = lines.next_if(|line| line.trim().starts_with('|')) {
                rows.push(cells(row.trim()));
            }
            let header = rows.remove(0);
            rows.retain(|row| {
                !row.iter().all(|cell| cell.trim_matches([':', '-']).is_empty() && !cell.is_empty())
            });
            blocks.push(Block::Table(header, rows));
        } else {
            let (mark, text) = item(bare).unwrap_or(("", bare));
            let mut text = text.to_owned();
            while let Some(more) = lines.next_if(|line| continues(line)) {
                text += " ";
                text += more.trim();
            }
            blocks.push(match mark {
                "" => Block::Paragraph(inline(&text)),
                mark => Block::Item(mark.to_owned(), inline(&text)),
            });
        }
    }
    blocks
}

fn heading(line: &str) -> Option<usize> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    (level > 0 && line[level..].starts_with(' ')).then_some(level)
}

fn item(line: &str) -> Option<(&str, &str)> {
    let (mark, text) = line.split_once(' ')?;
    let numbered = mark.strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok());
    (mark == "-" || mark == "*" || numbered).then_some((mark, text))
}

/// Returns true if a line continues the paragraph or item before it.
fn continues(line: &str) -> bool {
    let bare = line.trim();
    let begins = ["|", "```", "<!--", "!["].iter().any(|start| bare.starts_with(start));
    !bare.is_empty() && !begins && heading(bare).is_none() && item(bare).is_none()
}

/// Returns the cells of a table line. A bar in code or after a backslash is part of its cell.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut in_code, mut escaped) = (false, false);
    for c in line.trim_start_matches('|').chars() {
        match c {
            '\\' if !escaped && !in_code => escaped = true,
            '|' if !escaped && !in_code => cells.push(String::new()),
            c => {
                in_code ^= c == '`';
                escaped = false;
                cells.last_mut().expect("one is there from the start").push(c);
            }
        }
    }
    if cells.last().is_some_and(|last| last.trim().is_empty()) {
        cells.pop();
    }
    cells.iter().map(|cell| inline(cell.trim())).collect()
}

/// Returns text without emphasis marks; a link to another page becomes the name of its topic.
fn inline(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['[', '*', '`']) {
        let (before, mark) = rest.split_at(at);
        plain += before;
        rest = if let Some(code) = mark.strip_prefix('`') {
            let end = code.find('`').map_or(mark.len(), |end| end + 2);
            plain += &mark[..end];
            &mark[end..]
        } else if let Some(bold) = mark.strip_prefix("**") {
            bold
        } else if let Some((words, target, after)) = link(mark) {
            plain += &inline(words);
            plain += &reference(target);
            after
        } else {
            plain += &mark[..1];
            &mark[1..]
        };
    }
    plain + rest
}

fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (words, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    (!words.contains('[')).then_some((words, target, after))
}

fn reference(target: &str) -> String {
    let page = target.split('#').next().unwrap_or_default();
    let name = Path::new(page).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    match super::pages::find(name) {
        Some(_) if page.ends_with(".md") => format!(" (forebay help {name})"),
        _ if target.contains("://") => format!(" ({target})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_blocks() {
        let page = "# T `x`\n\n<!-- guide: a\nb -->\n\nSome *t*ext,\n**two** lines.\n\n- one\n  more\n2. two\n\n```sh\n# a\n\nb\n```\n\
                    | a | b |\n| --- | --- |\n| `x|y` | c \\| d |\n";
        let text = |text: &str| text.to_owned();
        let expected = vec![
            Block::Heading(1, text("T `x`")),
            Block::Paragraph(text("Some *t*ext, two lines.")),
            Block::Item(text("-"), text("one more")),
            Block::Item(text("2."), text("two")),
            Block::Code(vec![text("# a"), text(""), text("b")]),
            Block::Table(vec![text("a"), text("b")], vec![vec![text("`x|y`"), text("c | d")]]),
        ];
        assert_eq!(parse(page), expected);
    }

    #[test]
    fn links_name_their_topic() {
        let text = "See [the disk](../operate/disk-died.md#x), [d](../decisions/0001-a.md), [w](https://example.org/).";
        assert_eq!(inline(text), "See the disk (forebay help disk-died), d, w (https://example.org/).");
    }
}
