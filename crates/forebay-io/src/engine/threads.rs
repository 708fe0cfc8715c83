//! Several rings: what a busy loop hands to the kernel is carried out by I/O threads.
//!
//! Most of what a request costs is the kernel's: a receive and a send copy, a transfer goes through
//! the block layer, and its completion comes back through it. All of that is done by the thread
//! whose ring a step is in. So a loop that has no time for more gives steps to the rings of I/O
//! threads: as many as bring it below that ([`Share`]), and dealt out once a turn, for waking a
//! thread takes as long as a step. A loop that sleeps now and then keeps everything. Why so:
//! decision 0048.
//!
//! An I/O thread knows steps and nothing of what they are for. It also does the work over the bytes
//! of a step (`work`): so the data comes into the cache of the processor that sends it.
//!
//! Invariants:
//! - A step is in one ring. What must be given by one thread always (commands of block devices and
//!   FUSE connections), and what threads of another kind do (`BLKDISCARD`, jobs), stays in the
//!   loop's own.
//! - Steps, and what is told of memory and descriptors, reach each ring in the order of `push`. A
//!   cancel goes to all rings, behind everything that was pushed before it.
//! - Whoever is about to sleep says so and then looks once more; whoever hands something over looks
//!   after that whether to wake. So nothing waits for a thread that sleeps. (An I/O thread looks
//!   under the lock of its orders, which orders the two. The loop looks at a flag only: those are
//!   sequentially consistent.)
//! - The lists are bounded by the operations in flight: an operation has one step at the engine.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::share::Share;
use super::uring::Uring;
use super::{Engine, EngineKind, KernelStep, StepDone, Syscall};
use crate::error::IoFailure;
use crate::sys;
use crate::waker::Waker;

/// So many steps are worth waking a thread: that takes about as long as one of them.
const WAKE_FOR: usize = 2;

/// How long the end of the threads is waited for, and how often is looked.
const END_WITHIN: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_micros(100);

/// What a thread is told.
enum Order {
    Step(KernelStep),
    Cancel(u64),
    Serve(RawFd, bool),
    Forget(u32, u64),
    Stop,
}

/// What a thread has brought back.
#[derive(Default)]
struct Back {
    done: Vec<StepDone>,
    /// The thread has ended, for the kernel refuses to work.
    failed: Option<IoFailure>,
}

/// What the loop and one thread share.
struct Shared {
    orders: Mutex<Vec<Order>>,
    back: Mutex<Back>,
    /// There is something in `back`.
    has_back: AtomicBool,
    /// The thread sleeps, or is about to.
    sleeps: AtomicBool,
    waker: Waker,
    loop_sleeps: Arc<AtomicBool>,
    loop_waker: Waker,
}

impl Shared {
    /// Hands orders to the thread; empties `orders`.
    fn tell(&self, orders: &mut Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        lock(&self.orders).append(orders);
        if self.sleeps.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Hands results to the loop; empties `done`.
    fn bring_back(&self, done: &mut Vec<StepDone>, failed: Option<IoFailure>) {
        if done.is_empty() && failed.is_none() {
            return;
        }
        let mut back = lock(&self.back);
        back.done.append(done);
        back.failed = back.failed.or(failed);
        self.has_back.store(true, Ordering::SeqCst);
        drop(back);
        if self.loop_sleeps.swap(false, Ordering::SeqCst) {
            self.loop_waker.ring();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The loop's side of one thread.
struct IoThread {
    shared: Arc<Shared>,
    /// What it is told next.
    orders: Vec<Order>,
    join: JoinHandle<()>,
}

/// The loop's own ring, and threads that have one each.
pub(crate) struct IoThreads {
    own: Uring,
    threads: Vec<IoThread>,
    share: Share,
    steps_given: u64,
    /// So many steps are worth waking a thread.
    wake_for: usize,
    /// Steps of this turn.
    turn: Vec<KernelStep>,
    /// The thread that is dealt to first.
    first: usize,
    /// Those that get some of this turn's; empty between turns.
    takers: Vec<usize>,
    sleeps: Arc<AtomicBool>,
}

impl IoThreads {
    /// Starts a thread for each ring of `rings`; `waker` is the loop's. They take their priority
    /// from the calling thread.
    pub(crate) fn new(
        own: Uring,
        rings: Vec<Uring>,
        busy_pct: u32,
        waker: &Waker,
    ) -> std::io::Result<IoThreads> {
        let sleeps = Arc::new(AtomicBool::new(false));
        let mut all = IoThreads {
            own,
            threads: Vec::new(),
            share: Share::new(busy_pct),
            steps_given: 0,
            wake_for: if busy_pct == 0 { 1 } else { WAKE_FOR },
            turn: Vec::new(),
            first: 0,
            takers: Vec::new(),
            sleeps: Arc::clone(&sleeps),
        };
        for (number, ring) in rings.into_iter().enumerate() {
            let shared = Arc::new(Shared {
                orders: Mutex::default(),
                back: Mutex::default(),
                has_back: AtomicBool::new(false),
                sleeps: AtomicBool::new(false),
                waker: Waker::new()?,
                loop_sleeps: Arc::clone(&sleeps),
                loop_waker: waker.clone(),
            });
            let carrier =
                Carrier { ring, shared: Arc::clone(&shared), under_way: Vec::new(), free: Vec::new() };
            let thread = std::thread::Builder::new().name(format!("ring-{number}"));
            let join = thread.spawn(|| carrier.run_or_tell())?;
            all.threads.push(IoThread { shared, orders: Vec::new(), join });
        }
        Ok(all)
    }

    /// Deals the steps of this turn out. What is given away goes to the threads that are awake, if
    /// there are any, else to as many as are worth waking for it. The rest goes to the loop's own
    /// ring.
    fn deal(&mut self) {
        if self.turn.is_empty() {
            return;
        }
        let (given, count) = (self.share.of(self.turn.len()), self.threads.len());
        let in_turn = |at| (self.first + at) % count;
        let is_awake = |at: &usize| !self.threads[*at].shared.sleeps.load(Ordering::Acquire);
        self.takers.extend((0..count).map(in_turn).filter(is_awake));
        self.takers.truncate(given.div_ceil(self.wake_for));
        let wanted = (given / self.wake_for).min(count);
        for at in (0..count).map(in_turn) {
            if self.takers.len() < wanted && !self.takers.contains(&at) {
                self.takers.push(at);
            }
        }
        self.first = in_turn(1);
        let each = given.div_ceil(self.takers.len().max(1)).max(1);
        for (number, step) in self.turn.drain(..).enumerate() {
            match self.takers.get(number / each).filter(|_| number < given) {
                Some(&at) => {
                    self.steps_given += 1;
                    self.threads[at].orders.push(Order::Step(step));
                }
                None => self.own.push(step),
            }
        }
        for at in self.takers.drain(..) {
            let thread = &mut self.threads[at];
            thread.shared.tell(&mut thread.orders);
        }
    }

    fn tell_all(&mut self, order: impl Fn() -> Order) {
        self.deal();
        for thread in &mut self.threads {
            thread.orders.push(order());
            thread.shared.tell(&mut thread.orders);
        }
    }

    fn has_back(&self) -> bool {
        self.threads.iter().any(|thread| thread.shared.has_back.load(Ordering::Acquire))
    }

    fn take_back(&mut self, done: &mut Vec<StepDone>) -> Result<(), IoFailure> {
        for thread in &self.threads {
            if thread.shared.has_back.load(Ordering::Acquire) {
                let mut back = lock(&thread.shared.back);
                done.append(&mut back.done);
                if let Some(failure) = back.failed {
                    return Err(failure); // and every time again
                }
                thread.shared.has_back.store(false, Ordering::Release);
            }
        }
        Ok(())
    }
}

impl Engine for IoThreads {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn push(&mut self, step: KernelStep) {
        match step.request {
            Syscall::Command { .. }
            | Syscall::FuseCommand { .. }
            | Syscall::Discard { .. }
            | Syscall::Accept { .. }
            | Syscall::Run { .. } => self.own.push(step),
            _ if self.share.is_none() => self.own.push(step),
            _ => self.turn.push(step),
        }
    }

    fn steps_given(&self) -> u64 {
        self.steps_given
    }

    fn cancel(&mut self, key: u64) {
        self.tell_all(|| Order::Cancel(key));
        self.own.cancel(key);
    }

    fn wait(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
    ) -> Result<(), IoFailure> {
        self.deal();
        self.share.look(Instant::now(), || sys::thread_cpu_time().saturating_sub(self.own.polled()));
        let is_sleepy = sleep != Some(Duration::ZERO);
        self.sleeps.store(is_sleepy, Ordering::SeqCst);
        let threads = &self.threads;
        let has_back = || threads.iter().any(|thread| thread.shared.has_back.load(Ordering::SeqCst));
        self.own.wait_beside(spin, sleep, waker, done, has_back)?;
        self.sleeps.store(false, Ordering::Release);
        if self.has_back() { self.take_back(done) } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<(), IoFailure> {
        self.deal();
        self.own.hand_over()
    }

    fn set_served(&mut self, fd: RawFd, is_served: bool) {
        self.tell_all(|| Order::Serve(fd, is_served));
        self.own.set_served(fd, is_served);
    }

    fn forget_buffer(&mut self, buffer: u32, mapping: u64) {
        self.tell_all(|| Order::Forget(buffer, mapping));
        self.own.forget_buffer(buffer, mapping);
    }
}

impl Drop for IoThreads {
    /// Ends the threads. What is in their rings is given up, as with a ring that is dropped. One
    /// that does not come out of the kernel, because handing a step to a device hangs, is left
    /// behind: the reactor has not got that step back, and leaves its memory behind, too.
    fn drop(&mut self) {
        self.tell_all(|| Order::Stop);
        let until = Instant::now() + END_WITHIN;
        for thread in &mut self.threads {
            while !thread.join.is_finished() && Instant::now() < until {
                std::thread::sleep(END_LOOK);
            }
        }
    }
}

/// A thread, and what is in its ring.
struct Carrier {
    ring: Uring,
    shared: Arc<Shared>,
    /// Steps by the key that the ring knows them under.
    under_way: Vec<Option<KernelStep>>,
    free: Vec<u32>,
}

impl Carrier {
    /// Should this panic, the loop hears of it: it would wait for ever.
    fn run_or_tell(self) {
        let shared = Arc::clone(&self.shared);
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            shared.bring_back(&mut Vec::new(), Some(IoFailure::from_errno(libc::EIO)));
        }
    }

    fn run(mut self) {
        let (mut orders, mut done) = (Vec::new(), Vec::new());
        loop {
            std::mem::swap(&mut orders, &mut *lock(&self.shared.orders));
            if orders.is_empty() {
                // Said before the orders are looked at for the last time.
                self.shared.sleeps.store(true, Ordering::Release);
                std::mem::swap(&mut orders, &mut *lock(&self.shared.orders));
            }
            let has_orders = !orders.is_empty();
            for order in orders.drain(..) {
                match order {
                    Order::Step(step) => self.begin(step),
                    Order::Cancel(key) => self.cancel(key),
                    Order::Serve(fd, is_served) => self.ring.set_served(fd, is_served),
                    Order::Forget(buffer, mapping) => self.ring.forget_buffer(buffer, mapping),
                    Order::Stop => return,
                }
            }
            let sleep = if has_orders { Some(Duration::ZERO) } else { None };
            let waited = self.ring.wait(Duration::ZERO, sleep, &self.shared.waker, &mut done);
            self.shared.sleeps.store(false, Ordering::Release);
            self.shared.waker.take();
            done.iter_mut().for_each(|step| self.end(step));
            self.shared.bring_back(&mut done, waited.err());
            if waited.is_err() {
                return;
            }
        }
    }

    fn begin(&mut self, step: KernelStep) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            (self.under_way.len() - 1) as u32
        });
        self.under_way[index as usize] = Some(step);
        self.ring.push(KernelStep { key: u64::from(index), ..step });
    }

    fn cancel(&mut self, key: u64) {
        let is_it = |step: &Option<KernelStep>| step.is_some_and(|step| step.key == key);
        if let Some(index) = self.under_way.iter().position(is_it) {
            self.ring.cancel(index as u64);
        }
    }

    /// A step is done: does the work that follows it, and gives it the key that the loop knows.
    fn end(&mut self, done: &mut StepDone) {
        let Some(step) = self.under_way[done.key as usize].take() else { return };
        self.free.push(done.key as u32);
        done.key = step.key;
        step.conclude(done.result);
    }
}
