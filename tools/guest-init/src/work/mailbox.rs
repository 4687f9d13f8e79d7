//! A mailbox for one message in memory that processes share. Its semaphores are futexes, as a mutex and a condition variable are.

use anyhow::Context;
use std::cell::UnsafeCell;
use std::io::{self, Read, Write};

/// A message is so long, in bytes.
pub const MESSAGE: usize = 64;

struct Mailbox {
    /// 1 while a message waits.
    full: UnsafeCell<libc::sem_t>,
    /// 1 while a message may be put in. No sender waits for that where the peers alternate, so it costs no system call there.
    empty: UnsafeCell<libc::sem_t>,
    message: UnsafeCell<[u8; MESSAGE]>,
}

/// The end that takes messages out, each in one read.
pub struct Out(&'static Mailbox);

/// The end that puts them in.
pub struct In(&'static Mailbox);

// SAFETY: a semaphore may be used by any thread. Who has taken `empty` writes the message, and then posts `full`; who has taken
// `full` reads it, and then posts `empty`. So none reads or writes it beside another.
unsafe impl Sync for Mailbox {}

/// A mailbox, which processes that are started from now on share. It is never freed.
///
/// # Errors
/// There is no memory.
pub fn mailbox() -> anyhow::Result<(Out, In)> {
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping at an address of the kernel's choice touches no other memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Mailbox>(), read_write, shared, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).context("no shared memory");
    }
    // SAFETY: the mapping is large enough, page-aligned, zeroed, which is a valid message, and is never unmapped.
    let mailbox = unsafe { &*at.cast::<Mailbox>() };
    for (semaphore, value) in [(&mailbox.full, 0), (&mailbox.empty, 1)] {
        // SAFETY: the semaphore is in shared memory, and is used by none yet.
        done(unsafe { libc::sem_init(semaphore.get(), 1, value) }).context("no semaphore")?;
    }
    Ok((Out(mailbox), In(mailbox)))
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn take(semaphore: &UnsafeCell<libc::sem_t>) -> io::Result<()> {
    // SAFETY: `mailbox` has initialized it.
    done(unsafe { libc::sem_wait(semaphore.get()) })
}

fn post(semaphore: &UnsafeCell<libc::sem_t>) -> io::Result<()> {
    // SAFETY: `mailbox` has initialized it.
    done(unsafe { libc::sem_post(semaphore.get()) })
}

impl Read for Out {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        take(&self.0.full)?;
        let n = to.len().min(MESSAGE);
        // SAFETY: `full` was taken.
        to[..n].copy_from_slice(unsafe { &(&*self.0.message.get())[..n] });
        post(&self.0.empty)?;
        Ok(n)
    }
}

impl Write for In {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        take(&self.0.empty)?;
        let n = from.len().min(MESSAGE);
        // SAFETY: `empty` was taken.
        unsafe { (&mut *self.0.message.get())[..n].copy_from_slice(&from[..n]) };
        post(&self.0.full)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order_however_fast_they_are_sent() {
        let (mut out, mut sends) = mailbox().unwrap();
        let sender = std::thread::spawn(move || {
            (0..10_000).for_each(|round| sends.write_all(&[round as u8; MESSAGE]).unwrap());
        });
        for round in 0..10_000 {
            let mut message = [0; MESSAGE];
            out.read_exact(&mut message).unwrap();
            assert_eq!(message, [round as u8; MESSAGE]);
        }
        sender.join().unwrap();
    }
}
