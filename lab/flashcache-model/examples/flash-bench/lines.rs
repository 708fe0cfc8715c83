//! Tables: lines of Markdown for reading, lines of JSON for parsing.

/// One value of a line.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    /// A name; without quotes and backslashes.
    Text(String),
    /// A number, with its significant decimals.
    Number(f64, usize),
}

impl Cell {
    fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value, digits) => format!("{value:.digits$}"),
        }
    }

    fn json(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Number(..) => self.plain(),
        }
    }
}

/// Lines of one kind, all with the same columns.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    kind: &'static str,
    lines: Vec<Vec<(&'static str, Cell)>>,
}

impl Table {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, lines: Vec::new() }
    }

    pub(crate) fn add(&mut self, line: &[(&'static str, Cell)]) {
        self.lines.push(line.to_vec());
    }

    /// Returns the table as Markdown.
    pub(crate) fn text(&self) -> String {
        let Some(first) = self.lines.first() else { return String::new() };
        let names: Vec<&str> = first.iter().map(|(name, _)| *name).collect();
        let mut text = format!("| {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len()));
        for line in &self.lines {
            let cells: Vec<String> = line.iter().map(|(_, cell)| cell.plain()).collect();
            text += &format!("| {} |\n", cells.join(" | "));
        }
        text
    }

    /// Returns a JSON object for each line.
    pub(crate) fn json(&self) -> String {
        let object = |line: &Vec<(&str, Cell)>| {
            let fields: Vec<String> =
                line.iter().map(|(name, cell)| format!("\"{name}\": {}", cell.json())).collect();
            format!("{{\"kind\": \"{}\", {}}}\n", self.kind, fields.join(", "))
        };
        self.lines.iter().map(object).collect()
    }
}
