//! Words of a line, some of them quoted: the written form of values with spaces.
//!
//! A part in double quotes may contain anything; `""` within it is one quote. No other character is
//! special, so that paths and globs with backslashes need no second escape.

/// Splits a line into words; `None` if a quote is not closed.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => word.get_or_insert_default().push('"'),
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (!quoted).then_some(words)
}

/// Quotes a value so that [`split`] reads it back.
pub(super) fn quote(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '"';
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_split() {
        assert_eq!(split("  a  b\tc ").unwrap(), ["a", "b", "c"]);
        assert_eq!(split(r#"x="a b" "" "say ""hi""" \n"#).unwrap(), ["x=a b", "", "say \"hi\"", "\\n"]);
        assert_eq!(split("a \"b"), None);
        assert_eq!(split("").unwrap(), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn quoted_text_splits_back(values in proptest::collection::vec("[a-z \"\\\\=\n]{0,8}|\\PC{0,8}", 0..5)) {
            let line: Vec<String> = values.iter().map(|value| quote(value)).collect();
            prop_assert_eq!(split(&line.join(" ")), Some(values));
        }
    }
}
