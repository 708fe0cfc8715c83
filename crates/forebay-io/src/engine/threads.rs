//! Several rings: I/O threads run a part of the steps of a busy loop.
//!
//! Most of the cost of a request is in the kernel: receives and sends copy data, and a transfer
//! passes through the block layer twice, for submission and completion. All of that runs on the
//! thread whose ring has the step. So a loop that is out of time gives steps to the rings of I/O
//! threads: as many as bring its load below the threshold ([`OffloadPolicy`]), and dealt once a
//! turn, because waking a thread takes as long as a step. A loop that sleeps now and then keeps all
//! steps. Reasons: decision 0048.
//!
//! An I/O thread knows steps but not their purpose. It also runs the computation over the bytes of
//! a step (`work`): so the data is in the cache of the processor that sends it.
//!
//! Invariants:
//! - A step is in one ring. Steps that one thread must always issue (commands of block devices and
//!   FUSE connections), steps that threads of another kind run (`BLKDISCARD`, jobs), and accepts
//!   stay in the loop's own ring.
//! - Steps, and changes of memory and descriptors, reach each ring in the order of `push`. A cancel
//!   goes to all rings, behind all steps pushed before it.
//! - A thread that is about to sleep sets a flag and then checks for input once more; a thread that
//!   hands something over checks the flag afterwards and wakes the other one. So no item waits for
//!   a sleeping thread. (An I/O thread checks under the lock of its orders, which orders the two
//!   accesses. The loop checks only a flag; those accesses are sequentially consistent.)
//! - The lists are bounded by the operations in flight: an operation has one step at the engine.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::offload_policy::OffloadPolicy;
use super::uring::Uring;
use super::{Engine, EngineKind, KernelStep, StepDone, Syscall};
use crate::error::IoFailure;
use crate::sys;
use crate::waker::Waker;

/// Steps that are worth waking a thread, which takes about as long as one of them.
const WAKE_FOR: usize = 2;

/// Longest wait for the end of the threads, and the interval of checks.
const END_WITHIN: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_micros(100);

/// A message to a thread.
enum Order {
    Step(KernelStep),
    Cancel(u64),
    Serve(RawFd, bool),
    Forget(u32, u64),
    Stop,
}

/// Results of a thread.
#[derive(Default)]
struct Back {
    done: Vec<StepDone>,
    /// Set when the thread has ended because the kernel returned an error.
    failed: Option<IoFailure>,
}

/// State that the loop and one thread share.
struct Shared {
    orders: Mutex<Vec<Order>>,
    back: Mutex<Back>,
    /// `back` is not empty.
    has_back: AtomicBool,
    /// The thread sleeps, or is about to.
    sleeps: AtomicBool,
    waker: Waker,
    loop_sleeps: Arc<AtomicBool>,
    loop_waker: Waker,
}

impl Shared {
    /// Sends orders to the thread; empties `orders`.
    fn tell(&self, orders: &mut Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        lock(&self.orders).append(orders);
        if self.sleeps.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Returns results to the loop; empties `done`.
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
    /// Orders to send next.
    orders: Vec<Order>,
    join: JoinHandle<()>,
}

/// The loop's own ring, and threads that have one each.
pub(crate) struct IoThreads {
    own: Uring,
    threads: Vec<IoThread>,
    share: OffloadPolicy,
    steps_given: u64,
    /// Steps that are worth waking a thread.
    wake_for: usize,
    /// Steps of this turn.
    turn: Vec<KernelStep>,
    /// The first thread that gets steps.
    first: usize,
    /// The threads that get steps of this turn; empty between turns.
    takers: Vec<usize>,
    sleeps: Arc<AtomicBool>,
}

impl IoThreads {
    /// Starts a thread for each ring of `rings`; `waker` is the loop's. The threads inherit their
    /// priority from the calling thread.
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
            share: OffloadPolicy::new(busy_pct),
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

    /// Deals the steps of this turn. Steps to give away go to the threads that are awake and, if
    /// they justify waking more threads, to those too. The rest goes to the loop's own ring.
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
                    return Err(failure); // and again on every call
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
    /// Ends the threads. The steps in their rings are abandoned, as with a ring that is dropped. A
    /// thread that hangs in the kernel while submitting a step to a device is left running: the
    /// reactor has not got that step back, and leaks its memory too.
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

/// A thread, and the steps in its ring.
struct Carrier {
    ring: Uring,
    shared: Arc<Shared>,
    /// Steps in flight, by their key in this thread's ring.
    under_way: Vec<Option<KernelStep>>,
    free: Vec<u32>,
}

impl Carrier {
    /// Reports a panic to the loop, which would otherwise wait forever.
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
                // Set before the last check of the orders.
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

    /// Completes a step: runs the computation after it, and restores the loop's key.
    fn end(&mut self, done: &mut StepDone) {
        let Some(step) = self.under_way[done.key as usize].take() else { return };
        self.free.push(done.key as u32);
        done.key = step.key;
        step.conclude(done.result);
    }
}
