//! Counters, under FlashCache's names.

/// Defines the counters once: the structure, and their names in order.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start. Blocks are counted, as FlashCache counts requests after the
        /// kernel split them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns names and values, in FlashCache's order.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Parts of reads.
    reads,
    /// Parts of writes.
    writes,
    /// Reads from the flash.
    read_hits,
    /// Writes to a block that was cached.
    write_hits,
    /// ... and dirty.
    dirty_write_hits,
    /// Clean blocks evicted for a read.
    replacement,
    /// Clean blocks evicted for a write.
    write_replacement,
    /// Cached blocks dropped for an uncached write.
    write_invalidates,
    /// Cached blocks dropped for an uncached read.
    read_invalidates,
    /// Parts that waited for an operation on the same cached block.
    pending_enqueues,
    /// Cached blocks dropped because a part had waited for them, or because of an error.
    pending_inval,
    /// Blocks marked dirty in metadata.
    metadata_dirties,
    /// Blocks marked clean in metadata.
    metadata_cleans,
    /// Marks that shared the write of another one.
    metadata_batch,
    /// Writes of metadata blocks.
    metadata_ssd_writes,
    /// Blocks cleaned, or with a failed attempt.
    cleanings,
    /// Blocks cleaned because they were idle.
    fallow_cleanings,
    /// Misses that found no clean idle block in their set.
    no_room,
    /// Dirty neighbours behind a victim that were cleaned with it.
    front_merge,
    /// Dirty neighbours before a victim that were cleaned with it.
    back_merge,
    /// Blocks or parts read from the disk.
    disk_reads,
    /// Blocks or parts written to the disk.
    disk_writes,
    /// Blocks read from the flash.
    ssd_reads,
    /// Blocks written to the flash, metadata included.
    ssd_writes,
    /// Parts of reads that bypassed the cache.
    uncached_reads,
    /// Parts of writes that bypassed the cache.
    uncached_writes,
    /// Failed reads of the disk.
    disk_read_errors,
    /// Failed writes of the disk.
    disk_write_errors,
    /// Failed reads of the flash.
    ssd_read_errors,
    /// Failed writes of the flash.
    ssd_write_errors,
    /// Not FlashCache's: parts that waited for an uncached operation on the same block, which
    /// FlashCache would have started at once and repeated after a collision.
    uncached_waits,
}
