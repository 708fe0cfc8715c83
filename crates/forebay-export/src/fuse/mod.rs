//! The FUSE protocol: a volume as one plain file, or a tree of small text files, in the kernel's
//! file system.
//!
//! Reading order: [`wire`] (constants), [`request`], [`reply`] and [`ring`] (bytes), [`tree`]
//! (files and directories), `handles` (open ones), [`session`] (a connection), [`control_files`] (a
//! tree of text files), [`prepared`] (the same, for texts that take time). `docs/use/fuse.md` lists
//! the supported features.
//!
//! Nothing here does I/O. `forebay-io` owns the mount and the descriptor.

pub mod control_files;
mod handles;
pub mod prepared;
pub mod reply;
pub mod request;
pub mod ring;
pub mod session;
pub mod tree;
pub mod wire;

pub use control_files::{ControlTree, NodeKind, Provider};
pub use handles::UserLimits;
pub use prepared::{Found, Need, Prepared};
pub use reply::{Attributes, DirectoryEntry, Errno};
pub use session::{Agreed, Answer, Caller, FuseStep, Limits, PAYLOAD_BYTES_MAX, Session, VolumeRequest};
pub use tree::{Access, Change, Content, Tree, VolumeTree};
