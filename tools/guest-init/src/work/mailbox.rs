//! A mailbox for one message in memory that processes share. Its semaphore is a futex, as a mutex and a condition variable are.

use anyhow::Context;
use std::cell::UnsafeCell;
use std::io::{self, Read, Write};

/// A message is so long, in bytes.
pub const MESSAGE: usize = 64;

struct Mailbox {
    /// The number of messages that wait: at most one, as a sender waits for the answer.
    full: UnsafeCell<libc::sem_t>,
    message: UnsafeCell<[u8; MESSAGE]>,
}

/// The end that takes messages out, each in one read.
pub struct Out(&'static Mailbox);

/// The end that puts them in.
pub struct In(&'static Mailbox);

// SAFETY: a semaphore may be used by any thread, and the message is written before `sem_post` and read after `sem_wait`.
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
    // SAFETY: the semaphore is in shared memory, and is used by none yet.
    let made = unsafe { libc::sem_init(mailbox.full.get(), 1, 0) };
    anyhow::ensure!(made == 0, "no semaphore: {}", io::Error::last_os_error());
    Ok((Out(mailbox), In(mailbox)))
}

impl Read for Out {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `mailbox` has initialized the semaphore.
        if unsafe { libc::sem_wait(self.0.full.get()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let n = to.len().min(MESSAGE);
        // SAFETY: the sender has posted, and writes no other message before it has the answer.
        to[..n].copy_from_slice(unsafe { &(&*self.0.message.get())[..n] });
        Ok(n)
    }
}

impl Write for In {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let n = from.len().min(MESSAGE);
        // SAFETY: the receiver has taken the message before and answered it, and reads after the post.
        unsafe { (&mut *self.0.message.get())[..n].copy_from_slice(&from[..n]) };
        // SAFETY: `mailbox` has initialized the semaphore.
        match unsafe { libc::sem_post(self.0.full.get()) } {
            0 => Ok(n),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_in_another_thread_and_is_taken_once() {
        let ((mut asked, mut ask), (mut answered, mut answer)) = (mailbox().unwrap(), mailbox().unwrap());
        let server = std::thread::spawn(move || {
            for _ in 0..1000 {
                let mut message = [0; MESSAGE];
                asked.read_exact(&mut message).unwrap();
                message.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                answer.write_all(&message).unwrap();
            }
        });
        for round in 0..1000 {
            let mut message = [round as u8; MESSAGE];
            ask.write_all(&message).unwrap();
            answered.read_exact(&mut message).unwrap();
            assert_eq!(message, [(round as u8).wrapping_add(1); MESSAGE]);
        }
        server.join().unwrap();
    }
}
