//! The direction of a request, for rules about reads or writes only.

use forebay_config::rules::Direction;
use forebay_export::request::Operation;

/// The direction of a request, `None` if no rule can apply to it: it carries no data.
pub(crate) fn direction(operation: Operation) -> Option<Direction> {
    match operation {
        Operation::Read | Operation::Cache => Some(Direction::Read),
        Operation::Write { .. } => Some(Direction::Write),
        Operation::Flush
        | Operation::Trim { .. }
        | Operation::WriteZeroes { .. }
        | Operation::BlockStatus { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transfers_have_a_direction() {
        let zeroes = Operation::WriteZeroes { fua: false, no_hole: false, fast_only: false };
        for (operation, expected) in [
            (Operation::Read, Some(Direction::Read)),
            (Operation::Cache, Some(Direction::Read)),
            (Operation::Write { fua: true }, Some(Direction::Write)),
            (Operation::Flush, None),
            (Operation::Trim { fua: false }, None),
            (zeroes, None),
        ] {
            assert_eq!(direction(operation), expected, "{operation:?}");
        }
    }
}
