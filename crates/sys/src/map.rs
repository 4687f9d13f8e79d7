//! Map: address space whose pages get memory when they are first written.
//!
//! A [`Region`] reserves addresses. On Linux the first write to a page allocates it, on the NUMA node of the CPU that
//! writes unless the thread has set another memory policy. A page that is only read stays the kernel's zero page. With
//! mlockall(MCL_FUTURE) the kernel allocates all pages at once, so programs with large regions must not use it.
//!
//! # Cost
//!
//! 8192 slots of a page of 4 KiB each reserve 32 MiB of addresses and take no memory until they are written.
//!
//! # Source
//!
//! mmap(2) MAP_NORESERVE; madvise(2) MADV_NOHUGEPAGE, because with huge pages the first touch of a slot would allocate
//! 2 MiB, which are 512 slots.

use std::io;
use std::ptr::NonNull;

/// Returns the page size in bytes.
#[cfg(unix)]
pub fn page_bytes() -> usize {
    // SAFETY: no pointers. It cannot fail for _SC_PAGESIZE.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Returns 4096: this platform is not asked for its page size.
#[cfg(not(unix))]
pub fn page_bytes() -> usize {
    4096
}

/// Returns the number of minor page faults of this thread, such as first touches of pages and first writes to shared
/// pages.
#[cfg(target_os = "linux")]
pub fn page_faults() -> io::Result<u64> {
    // SAFETY: the kernel fills the struct, for which all zeros is valid.
    let (done, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_THREAD, &mut usage), usage)
    };
    if done == 0 { Ok(usage.ru_minflt as u64) } else { Err(io::Error::last_os_error()) }
}

/// Returns the error `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn page_faults() -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reserved, zeroed, private memory, page-aligned. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Region is an address range; its owner decides which threads access it.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` returns addresses and numbers only.
unsafe impl Sync for Region {}

/// Rounds `bytes` up to a multiple of the page size, at least one page.
fn whole_pages(bytes: usize) -> io::Result<usize> {
    bytes.max(1).checked_next_multiple_of(page_bytes()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Region {
    /// Reserves at least `bytes`, rounded up to pages.
    #[cfg(unix)]
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let bytes = whole_pages(bytes)?;
        // SAFETY: a new anonymous private mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice for the new mapping. A kernel without huge pages returns an error, which is ignored.
        unsafe {
            libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE)
        };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap maps no page 0"), bytes })
    }

    /// Allocates at least `bytes`, zeroed, page-aligned.
    #[cfg(not(unix))]
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let bytes = whole_pages(bytes)?;
        let layout = std::alloc::Layout::from_size_align(bytes, page_bytes()).map_err(io::Error::other)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees all memory and keeps the addresses, which then read as zeros. The caller makes sure that no thread uses
    /// the memory at the same time. The kernel refuses if the pages are locked (mlockall); then nothing has changed.
    #[cfg(target_os = "linux")]
    pub fn discard(&self) -> io::Result<()> {
        // SAFETY: this region's private anonymous mapping; afterwards it is as after `reserve`.
        let done = unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
        crate::checked(done).map(drop)
    }

    /// Returns the error `Unsupported`.
    #[cfg(not(target_os = "linux"))]
    pub fn discard(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the number of the region's pages that have memory of their own, including swapped ones. A page that was
    /// only read is the kernel's zero page and is not counted; mincore(2) would count it. A page in memory that is
    /// shared with a child of `fork` is not counted either.
    #[cfg(target_os = "linux")]
    pub fn resident_pages(&self) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        /// Bits of an entry of /proc/self/pagemap: Documentation/admin-guide/mm/pagemap.rst.
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const EXCLUSIVE: u64 = 1 << 56;
        let mut entries = vec![0u8; self.bytes / page_bytes() * 8];
        let first = self.start.as_ptr() as u64 / page_bytes() as u64 * 8;
        std::fs::File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, first)?;
        let is_ours =
            |entry: u64| entry & SWAPPED != 0 || entry & (PRESENT | EXCLUSIVE) == PRESENT | EXCLUSIVE;
        let (entries, _) = entries.as_chunks::<8>();
        Ok(entries.iter().filter(|e| is_ours(u64::from_ne_bytes(**e))).count())
    }

    /// Returns the error `Unsupported`.
    #[cfg(not(target_os = "linux"))]
    pub fn resident_pages(&self) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Region {
    #[cfg(unix)]
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `reserve` made. Users of addresses in it must keep the Region.
        let done = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(done, 0, "munmap of our own mapping: {}", io::Error::last_os_error());
    }

    #[cfg(not(unix))]
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.bytes, page_bytes()).expect("as in reserve");
        // SAFETY: exactly what `reserve` allocated, with the same layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_memory_only_when_it_is_written() {
        let _no_child_shares_a_page = crate::fork::tests::FORKS.lock();
        let region = Region::reserve(8192 * page_bytes()).unwrap();
        assert_eq!(region.resident_pages().unwrap(), 0);
        for page in [0, 17, 8191] {
            // SAFETY: inside the region, which only this test uses.
            unsafe { region.start().add(page * page_bytes()).write(1) };
        }
        assert_eq!(region.resident_pages().unwrap(), 3);
        for page in 0..8192 {
            // SAFETY: as above.
            let byte = unsafe { region.start().add(page * page_bytes()).read_volatile() };
            assert_eq!(byte, u8::from([0, 17, 8191].contains(&page)));
        }
        assert_eq!(region.resident_pages().unwrap(), 3, "reading costs no memory");
    }

    #[test]
    fn only_the_first_write_to_a_page_is_a_page_fault() {
        let region = Region::reserve(64 * page_bytes()).unwrap();
        let write = || {
            let before = page_faults().unwrap();
            for page in 0..64 {
                // SAFETY: inside the region, which only this test uses.
                unsafe { region.start().add(page * page_bytes()).write_volatile(1) };
            }
            page_faults().unwrap() - before
        };
        assert!(write() >= 64);
        assert!(write() < 64);
    }

    #[test]
    fn a_size_above_the_address_space_is_an_error() {
        assert!(Region::reserve(1 << 60).is_err());
        assert!(Region::reserve(usize::MAX).is_err());
    }
}
