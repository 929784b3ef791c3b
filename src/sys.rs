//! What std and nix do not offer as safe calls. The only file with `unsafe`; every function here is safe to call.

#![allow(unsafe_code, reason = "this is the one place for it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{c_int, c_uint};
use nix::sys::signal::SigSet;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;

/// The greatest number of a signal.
pub const LAST_SIGNAL: i32 = 64;

static IGNORED_AT_ENTRY: AtomicU64 = AtomicU64::new(0);

/// Runs before `main`, and so before Rust's runtime ignores SIGPIPE.
extern "C" fn note_dispositions() {
    for signal in 1..=LAST_SIGNAL {
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: without a new action the call only writes the present one into `old`, which has room for it.
        let known = unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } == 0;
        // SAFETY: the call succeeded, so `old` was written.
        if known && unsafe { old.assume_init() }.sa_sigaction == libc::SIG_IGN {
            IGNORED_AT_ENTRY.fetch_or(bit(signal), Ordering::Relaxed);
        }
    }
}

// SAFETY: the section holds pointers to functions that the C library calls before `main`; this is one. It uses
// nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_DISPOSITIONS: extern "C" fn() = note_dispositions;

/// Has all threads share one heap. glibc gives each its own, of 64 MiB of addresses, to keep them from waiting for each
/// other, which the few small pieces of two threads never do.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number in the allocator. A failure leaves the heaps as they were.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// The bit of `signal` in a set of signals.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals that were ignored when the process started, one [`bit`] each.
pub fn ignored_at_entry() -> u64 {
    IGNORED_AT_ENTRY.load(Ordering::Relaxed)
}

/// Gives `signal` its default disposition, or ignores it.
pub fn set_disposition(signal: i32, ignore: bool) -> io::Result<()> {
    let handler = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither value runs code of ours.
    let old = unsafe { libc::signal(signal, handler) };
    if old == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The set of these signals, one [`bit`] each. nix's own sets know no real-time signals.
pub fn signal_set(bits: u64) -> SigSet {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses the numbers that the C library keeps for itself.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in (1..=LAST_SIGNAL).filter(|signal| bits & bit(*signal) != 0) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    }
}

/// Sends `signal` to a process; 0 only asks whether that is possible.
pub fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // Zero and below name groups and everybody: never what is meant here.
    if pid.as_raw() <= 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the call touches no memory.
    check(unsafe { libc::kill(pid.as_raw(), signal) })
}

/// Sends `signal` to the calling thread.
pub fn raise(signal: i32) -> io::Result<()> {
    // SAFETY: no handler of ours is installed for any signal.
    check(unsafe { libc::raise(signal) })
}

/// Forks: the child's pid in the parent, none in the child. Refused in a process with more than one thread, whose
/// child could run almost nothing. The child must end by [`exit_now`], and never return.
pub fn fork() -> io::Result<Option<Pid>> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("there is more than one thread"));
    }
    // SAFETY: there is no other thread that could hold a lock at this moment.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid))),
    }
}

/// Lets this thread run before every ordinary one: `SCHED_RR` at its least priority. One that has a real-time policy
/// already keeps it. Refused without `CAP_SYS_NICE` and `RLIMIT_RTPRIO`, and not asked for under a seccomp filter, which
/// may kill whoever asks (systemd's `SystemCallFilter=~@resources` does).
pub fn run_before_others() -> io::Result<()> {
    // SAFETY: the calls only answer questions.
    let (policy, filter) = unsafe { (libc::sched_getscheduler(0), libc::prctl(libc::PR_GET_SECCOMP)) };
    if filter != 0 || !matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE) {
        return Ok(());
    }
    let least = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads `least`, which outlives it.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const least) })
}

/// Ends the process at once, without what std does at the end (flushing, destructors): for a forked child.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(code) }
}

/// Lets the child of `command`, before it becomes the program, take this signal mask, ignore the signals in `ignored`
/// and be killed when `parent`, the thread that spawns it, ends.
pub fn before_exec(command: &mut Command, mask: SigSet, ignored: u64, parent: Pid) {
    let before = move || {
        // SAFETY: these calls may be made between fork and exec, and touch no memory but the set.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() != parent.as_raw() {
                // It died before the line above.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for signal in (1..=LAST_SIGNAL).filter(|signal| ignored & bit(*signal) != 0) {
                libc::signal(signal, libc::SIG_IGN);
            }
            check(libc::sigprocmask(libc::SIG_SETMASK, mask.as_ref(), ptr::null_mut()))
        }
    };
    // SAFETY: `before` allocates nothing, takes no lock, and calls only what may be called after a fork.
    unsafe { command.pre_exec(before) };
}

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this code.
    Exited(i32),
    /// It died of this signal.
    Killed(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
}

/// The next change of child `which` (none for any), of the kinds in `flags`; none if there is nothing new, or no such
/// child. Never blocks. nix's own fails for a child that died of a real-time signal.
pub fn wait_child(which: Option<Pid>, flags: WaitPidFlag) -> Option<(Pid, Change)> {
    let (kind, id) = which.map_or((libc::P_ALL, 0), |pid| (libc::P_PID, pid.as_raw().unsigned_abs()));
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the call writes at most one `siginfo_t`.
    let done = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), (flags | WaitPidFlag::WNOHANG).bits()) };
    // SAFETY: all zeros is a valid value, which the call may have replaced.
    let info = unsafe { info.assume_init() };
    // SAFETY: both are fields of what waitid writes, or still zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if done != 0 || pid == 0 {
        return None;
    }
    let change = match info.si_code {
        libc::CLD_EXITED => Change::Exited(status),
        libc::CLD_KILLED | libc::CLD_DUMPED => Change::Killed(status),
        libc::CLD_CONTINUED => Change::Continued,
        _ => Change::Stopped(status),
    };
    Some((Pid::from_raw(pid), change))
}

/// Takes over the descriptor `number` that the process was started with: a copy that is not passed on. The number
/// itself is not passed on either, unless it is one of the standard three. An error (EBADF) where the process was not
/// given it; to be called before anything else is opened.
pub fn take_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: an unknown number only makes the call fail.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is open, as just seen, and nothing closes it here.
    let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?;
    if number > libc::STDERR_FILENO {
        // SAFETY: the call changes one flag of an open descriptor.
        check(unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) })?;
    }
    Ok(copy)
}

/// Closes every descriptor above the standard three, but those in `keep`. For a forked child that uses nothing else:
/// whatever owns a closed descriptor must never be touched again.
pub fn close_all_but(keep: &[RawFd]) {
    let mut kept: Vec<c_uint> = keep.iter().filter_map(|fd| c_uint::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut first: c_uint = 3;
    for fd in kept.into_iter().filter(|fd| *fd >= 3) {
        if fd > first {
            close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    close_range(first, c_uint::MAX);
}

fn close_range(first: c_uint, last: c_uint) {
    // SAFETY: the caller of `close_all_but` has said that nobody uses these any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Linux before 5.9.
    let open: Vec<c_uint> = fs::read_dir("/proc/self/fd")
        .map(|names| names.flatten().filter_map(|name| name.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// Two words that this process and the children it forks from now on share, both 0 at first. They stay until the
/// last of them has ended.
pub fn shared_words() -> io::Result<&'static [AtomicU64; 2]> {
    let size = size_of::<[AtomicU64; 2]>();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no memory that is in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is zeroed, aligned, large enough and never unmapped, and is only used through atomics.
    Ok(unsafe { &*page.cast::<[AtomicU64; 2]>() })
}

/// How much address space is set aside for the day when there is no more, in bytes: far more than rlock takes after its
/// start, so that a lock that is held can be released and a command ended.
const RESERVE_SIZE: usize = 2 << 20;

static RESERVE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

/// The line to say, and the code to end with, when there is no memory at all.
static LAST_WORD: OnceLock<(&str, i32)> = OnceLock::new();

/// The system's memory and, when that is out, what [`keep_reserve`] has set aside. When that is out too the process ends
/// with a last word: the standard way is to abort.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

impl Memory {
    fn get(ask: impl Fn() -> *mut u8) -> *mut u8 {
        let got = ask();
        if !got.is_null() {
            return got;
        }
        let reserve = RESERVE.swap(ptr::null_mut(), Ordering::Relaxed);
        if !reserve.is_null() {
            // SAFETY: the mapping is our own, nothing stands in it, and nobody else has taken its address.
            unsafe { libc::munmap(reserve, RESERVE_SIZE) };
        }
        let got = ask();
        if got.is_null()
            && let Some((line, code)) = LAST_WORD.get()
        {
            // SAFETY: the call reads `line`, which is that long.
            unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
            exit_now(*code);
        }
        got
    }
}

// SAFETY: every call is passed on as it came, and none is answered but by the system's allocator.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has it.
        Self::get(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has it.
        Self::get(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller has it; where it fails, the old one still stands.
        Self::get(|| unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as the caller has it.
        unsafe { System.dealloc(old, layout) };
    }
}

/// Sets the reserve aside, once; `line` is said, and `code` is the process's end, when that is used up too. It costs
/// address space, no memory.
pub fn keep_reserve(line: &'static str, code: i32) {
    if LAST_WORD.set((line, code)).is_err() {
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // Writable, since a limit may count only what is.
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping touches no memory that is in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), RESERVE_SIZE, protection, flags, -1, 0) };
    if page != libc::MAP_FAILED {
        RESERVE.store(page, Ordering::Relaxed);
    }
}

/// `fcntl`'s `F_SETSIG`, which the libc crate does not have.
const F_SETSIG: c_int = 10;

/// Has the kernel send SIGCONT to this process, so that it goes on even if it is stopped, when something happens at
/// `fd`: at the read end of a pipe that nobody writes to, when its last writer has ended.
pub fn go_on_at(fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: these calls change how an open descriptor signals, and touch no memory.
    unsafe {
        check(libc::fcntl(fd, libc::F_SETOWN, libc::getpid()))?;
        check(libc::fcntl(fd, F_SETSIG, libc::SIGCONT))?;
        check(libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK))
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
