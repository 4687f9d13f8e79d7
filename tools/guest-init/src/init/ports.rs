//! The I/O ports of the interval timer.

use anyhow::ensure;
use std::arch::asm;

/// The first of its four ports: channels 0 to 2, and the control word.
const FIRST: u16 = 0x40;

/// This thread may write to the ports.
pub(super) struct Ports(());

impl Ports {
    /// Asks the kernel for them.
    pub(super) fn open() -> anyhow::Result<Self> {
        // SAFETY: the call changes what this thread may do, and no memory.
        let failed = unsafe { libc::ioperm(FIRST.into(), 4, 1) };
        ensure!(failed == 0, "no access to I/O ports: {}", std::io::Error::last_os_error());
        Ok(Self(()))
    }

    /// Writes a byte to one of the four ports.
    pub(super) fn write(&self, port: u16, byte: u8) {
        assert!(port < 4, "port {port} of four");
        // outb byte, port
        // SAFETY: the kernel let this thread use the port in `open`. The interval timer's interrupt is masked, and Linux has another
        // clock: no memory and no other program depends on it.
        unsafe {
            asm!("out dx, al", in("dx") FIRST + port, in("al") byte, options(nomem, nostack, preserves_flags))
        };
    }
}
