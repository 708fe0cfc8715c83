//! The open pools, with the records of their caches.
//!
//! A method locks the table only for itself, so a caller that holds another lock can use it.

use forebay_pool::PoolHandle;
use forebay_pool::register::Entry;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct OpenPools(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    pools: BTreeMap<String, Arc<PoolHandle>>,
    /// Records of the caches.
    entries: BTreeMap<String, Arc<Entry>>,
    /// Cache files created since the start.
    made: BTreeMap<String, Vec<PathBuf>>,
}

impl OpenPools {
    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<PoolHandle>> {
        self.table().pools.get(name).cloned()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.table().pools.contains_key(name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.table().pools.keys().cloned().collect()
    }

    pub(super) fn all(&self) -> Vec<(String, Arc<PoolHandle>)> {
        self.table().pools.iter().map(|(name, pool)| (name.clone(), Arc::clone(pool))).collect()
    }

    /// Returns the record of a pool's cache. A pool that is served without its cache has none.
    pub(super) fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.table().entries.get(name).cloned()
    }

    /// Adds a pool that was just opened, with the files created for its cache.
    pub(super) fn insert(&self, name: &str, pool: PoolHandle, entry: Option<Arc<Entry>>, made: Vec<PathBuf>) {
        let mut table = self.table_mut();
        table.pools.insert(name.into(), Arc::new(pool));
        table.made.insert(name.into(), made);
        entry.map(|entry| table.entries.insert(name.into(), entry));
    }

    /// Removes a pool from the table and keeps its record: a pool in the table that ends counts as
    /// failed.
    pub(super) fn remove(&self, name: &str) -> Option<Arc<PoolHandle>> {
        self.table_mut().pools.remove(name)
    }

    /// Takes back [`Self::remove`].
    pub(super) fn put_back(&self, name: &str, pool: Arc<PoolHandle>) {
        self.table_mut().pools.insert(name.into(), pool);
    }

    /// Forgets the record of a pool that was removed or exported.
    pub(super) fn remove_entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.table_mut().entries.remove(name)
    }

    /// Forgets the files created for the cache of an exported pool: they exist for another host.
    pub(super) fn keep_made(&self, name: &str) {
        self.table_mut().made.remove(name);
    }

    /// Removes all pools, which are being stopped.
    pub(super) fn take_all(&self) -> BTreeMap<String, Arc<PoolHandle>> {
        std::mem::take(&mut self.table_mut().pools)
    }

    /// Returns the files created for the cache of each pool, and its record, to remove them after a
    /// failed start.
    pub(super) fn take_made(&self) -> Vec<(String, Vec<PathBuf>, Option<Arc<Entry>>)> {
        let mut table = self.table_mut();
        let (made, mut entries) = (std::mem::take(&mut table.made), std::mem::take(&mut table.entries));
        made.into_iter().map(|(name, files)| (name.clone(), files, entries.remove(&name))).collect()
    }

    /// Returns true if a pool has ended by itself.
    pub(super) fn any_ended(&self) -> bool {
        self.table().pools.values().any(|pool| pool.has_ended_by_itself())
    }

    /// Removes the pools that have ended by themselves, and their records.
    pub(super) fn take_ended(&self) -> Vec<(String, Arc<PoolHandle>)> {
        let mut table = self.table_mut();
        let (ended, open) = std::mem::take(&mut table.pools)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, pool)| pool.has_ended_by_itself());
        table.pools = open;
        ended.keys().for_each(|name| drop(table.entries.remove(name)));
        ended.into_iter().collect()
    }
}
