//! All structures, for the test of the document and for `forebay inspect`.

use crate::layout::Structure;
use crate::{batch, checkpoint, extension, member, settings_copy, superblock};

/// Every structure of the format.
pub const ALL: [Structure; 11] = [
    superblock::STRUCTURE,
    member::STRUCTURE,
    settings_copy::STRUCTURE,
    checkpoint::header::STRUCTURE,
    checkpoint::volume::STRUCTURE,
    checkpoint::segment::STRUCTURE,
    checkpoint::intent::STRUCTURE,
    checkpoint::increment::STRUCTURE,
    extension::STRUCTURE,
    batch::header::STRUCTURE,
    batch::entry::STRUCTURE,
];
