//! Work on all processors: put the longest items first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the results of `work` for `0..count`, in this order.
pub(crate) fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(count) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    results.lock().expect("no worker panics here").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no worker panics here");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
