//! A page as a manual page of section 7.

use super::markdown::Block;

/// Returns the manual page.
pub(super) fn page(name: &str, blocks: &[Block]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let title = blocks.iter().find_map(|block| match block {
        Block::Heading(1, title) => Some(title.as_str()),
        _ => None,
    });
    let mut page = format!(".TH {} 7 \"\" \"forebay {version}\" Forebay\n", name.to_uppercase());
    page += &format!(".SH NAME\n{name} \\- {}\n.SH DESCRIPTION\n", escaped(title.unwrap_or(name)));
    for block in blocks {
        match block {
            Block::Heading(1, _) => {}
            Block::Heading(2, title) => page += &format!(".SH {}\n", escaped(&title.to_uppercase())),
            Block::Heading(_, title) => page += &format!(".SS {}\n", escaped(title)),
            Block::Paragraph(words) => page += &format!(".PP\n{}\n", escaped(words)),
            Block::Item(mark, words) => {
                let mark = if mark == "-" { "\\(bu".to_owned() } else { escaped(mark) };
                page += &format!(".IP \"{mark}\" 4\n{}\n", escaped(words));
            }
            Block::Code(lines) => {
                page += ".PP\n.RS 4\n.nf\n";
                lines.iter().for_each(|line| page += &format!("{}\n", literal(line)));
                page += ".fi\n.RE\n";
            }
            Block::Table(header, rows) => {
                for row in rows {
                    page += &format!(".TP\n\\fB{}\\fR\n", escaped(row.first().map_or("", String::as_str)));
                    let several = row.len() > 2;
                    for (at, cell) in row.iter().enumerate().skip(1).filter(|(_, cell)| !cell.is_empty()) {
                        let head = header.get(at).filter(|head| several && !head.is_empty());
                        let head = head.map_or(String::new(), |head| format!("{}: ", escaped(head)));
                        page += &format!("{head}{}\n{}", escaped(cell), if several { ".br\n" } else { "" });
                    }
                }
            }
        }
    }
    page
}

/// Escapes text and removes the marks of code.
fn escaped(text: &str) -> String {
    literal(&text.replace('`', ""))
}

/// Escapes text for roff.
fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::markdown::parse;
    use super::*;

    #[test]
    fn lines_that_look_like_requests_are_text() {
        let page = page("x", &parse("# T\n\nWords\n\n```\n.so /etc/passwd\n'br\na\\b -c\n```\n"));
        assert!(page.contains("\n\\&.so /etc/passwd\n\\&'br\na\\eb \\-c\n"), "{page}");
    }

    #[test]
    fn roff_pages_use_known_requests_only() {
        let known = [".TH ", ".SH ", ".SS ", ".PP", ".IP ", ".RS 4", ".RE", ".nf", ".fi", ".TP", ".br"];
        for (name, text) in super::super::pages::ALL {
            for line in page(name, &parse(text)).lines().filter(|line| line.starts_with(['.', '\''])) {
                assert!(known.iter().any(|request| line.starts_with(request)), "{name}: {line}");
            }
        }
    }
}
