//! A pool of worker threads with one way to use it: run `tasks` independent pieces of work, each of which
//! owns its outputs. Which thread runs which piece never changes a result.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};

/// The threads that operations of this crate run on. Create one and pass it to every call.
pub struct Threads {
    pool: Option<rayon_core::ThreadPool>,
    count: usize,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.count).finish()
    }
}

impl Threads {
    /// A pool of `count` threads. One thread means that everything runs on the caller's.
    ///
    /// # Errors
    /// `count` is 0, or the system refuses to start the threads.
    pub fn new(count: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::Unsupported {
                operation: "Threads::new",
                parameter: "count",
                value: "0".into(),
                supported: "at least one thread is needed",
            });
        }
        let pool = if count == 1 {
            None
        } else {
            let built = rayon_core::ThreadPoolBuilder::new()
                .num_threads(count)
                .thread_name(|i| format!("nibble-{i}"))
                .build()
                .map_err(|e| Error::Threads { threads: count, reason: e.to_string() })?;
            Some(built)
        };
        Ok(Self { pool, count })
    }

    /// As many threads as the machine offers to this process.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn available() -> Result<Self> {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each exactly once, and returns when all are done. Threads take
    /// the next index as they become free; a panic in a task reaches the caller.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| tasks > 1) else {
            return (0..tasks).for_each(task);
        };
        let next = AtomicUsize::new(0);
        let worker = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    return;
                }
                task(index);
            }
        };
        pool.scope(|scope| {
            for _ in 0..self.count.min(tasks) {
                scope.spawn(|_| worker());
            }
        });
    }

    /// Like [`run`](Self::run), but each task takes one of `parts` by value: the way to hand out disjoint
    /// `&mut` pieces of an output.
    pub fn run_on<P: Send>(&self, parts: Vec<P>, task: impl Fn(usize, P) + Sync) {
        let parts: Vec<_> = parts.into_iter().map(|p| std::sync::Mutex::new(Some(p))).collect();
        self.run(parts.len(), |index| {
            let part = parts[index].lock().expect("no task panicked with the lock held").take();
            task(index, part.expect("each index is handed out once"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_count() {
        for count in 1..=4 {
            let threads = Threads::new(count).unwrap();
            for tasks in [0, 1, 2, 3, 100] {
                let mut hits = vec![0u32; tasks];
                threads.run_on(hits.iter_mut().collect(), |index, hit| *hit += 1 + index as u32);
                assert_eq!(hits, (0..tasks).map(|i| i as u32 + 1).collect::<Vec<_>>());
            }
        }
        assert!(Threads::new(0).is_err());
    }
}
