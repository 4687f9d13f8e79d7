//! Format: the bytes of a recording.
//!
//! A file is a header and then blocks. The header says what the process and the machine were, as lines of text. A block
//! has a fixed header with a checksum, so a file that ends anywhere is readable up to its last whole block.
//!
//! ```text
//! file    = "warmrec\n", version: u32, text bytes: u32, checksum of the text: u64, text, block*
//! block   = "WRBK", kind: u8, 0: u8, thread: u16, payload bytes: u32, 0: u32, stamp: u64, checksum of these 24 bytes
//!           and of the payload: u64, payload
//! ```
//!
//! Numbers are little-endian. A thread writes *records* of five `u32`, whose meaning [`RecordKind`] says; a block of records has
//! those of one thread in the order in which the thread wrote them, which is the order in which polls end. A *round* is one
//! pass of the writer over all threads. Its last block is of the kind [`BlockKind::Round`], with the time when the pass
//! began: each record of a later round is of a poll that was written after that time.
//!
//! Times are *stamps*: the CPU's counter, on x86-64 in units of about 5 ns, or nanoseconds where there is no counter. The header has
//! their scale. A record has the distance to its block's stamp in 32 bits, so a record of the kind [`RecordKind::Base`] comes
//! between two records that are further apart.
//!
//! # Cost
//! 20 bytes per poll and, at full load, less than one for the blocks.

/// The first bytes of a file.
pub const MAGIC: [u8; 8] = *b"warmrec\n";

/// The version of the format. It is raised when a reader of the version before would misread a file.
pub const VERSION: u32 = 1;

/// The first bytes of a block.
pub const BLOCK_MAGIC: [u8; 4] = *b"WRBK";

/// Bytes of the file's header before its text.
pub const HEADER_BYTES: usize = 24;

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 32;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 20;

/// The largest payload of a block.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// The longest text of a file's header.
pub const HEADER_TEXT_MAX: usize = 4 << 20;

/// A CPU that is not known, in a record.
pub const NO_CPU: u32 = CPU_MASK;

/// A duration or a delay that is not known, in a record. The largest known one is one less, and means "at least".
pub const NOT_KNOWN: u32 = u32::MAX;

const CPU_BITS: u32 = 13;
const CPU_MASK: u32 = (1 << CPU_BITS) - 1;
const KIND_SHIFT: u32 = 2 * CPU_BITS;
const KIND_MASK: u32 = 7;
const FLAGS_SHIFT: u32 = KIND_SHIFT + 3;

/// [`RecordKind::Poll`]: the task ended in this poll, by its output, a panic or a cancellation.
pub const IS_LAST: u32 = 1;

/// [`RecordKind::Poll`]: the task was woken during its poll before this one.
pub const WOKEN_IN_POLL: u32 = 2;

/// [`RecordKind::Poll`]: the thread was on another CPU when the poll ended.
pub const CHANGED_CPU: u32 = 4;

/// [`RecordKind::Worker`]: the worker is of Warmcore's runtime.
pub const OF_WARMCORE: u32 = 1;

/// What a record says. The words are `a` to `d`; the fifth holds this kind, two CPUs and three flags ([`tag`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A poll: `a` the task, `b` its start after the base, `c` its duration, `d` how long before the start the task was
    /// woken, or [`NOT_KNOWN`]. The CPUs are the poll's and the waker's; the flags [`IS_LAST`], [`WOKEN_IN_POLL`],
    /// [`CHANGED_CPU`].
    Poll = 0,
    /// A task was spawned: `a` the task, `b` when, after the base, `c` and `d` the low and high half of its location's key
    /// in a block of text. The first CPU is the spawner's.
    Spawn = 1,
    /// The name of a task: `a` the task, `b` when, after the base, `c` the name's key in a block of text.
    Name = 2,
    /// A new base: `c` and `d` are the low and high half of the stamp from which `b` of the next records counts.
    Base = 3,
    /// The thread runs another worker from `b` on: `c` its index, or [`NOT_KNOWN`] for none; `d` [`OF_WARMCORE`] if the worker is
    /// of Warmcore's runtime.
    Worker = 4,
    /// Records are missing: the thread's ring was full from `b` on for `c`, and `d` records were dropped.
    Gap = 5,
    /// A task was dropped between two polls: `a` the task, `b` when, after the base.
    Drop = 6,
}

impl RecordKind {
    fn from_bits(bits: u32) -> Option<Self> {
        [Self::Poll, Self::Spawn, Self::Name, Self::Base, Self::Worker, Self::Gap, Self::Drop]
            .get(bits as usize)
            .copied()
    }
}

/// A record as it is in a thread's ring and in the file: `a`, `b`, `c`, `d` and the tag.
pub type Record = [u32; 5];

/// Makes the fifth word of a record. A CPU from 8191 on becomes [`NO_CPU`].
#[inline]
pub const fn tag(kind: RecordKind, cpu: u32, waker_cpu: u32, flags: u32) -> u32 {
    const fn bits(cpu: u32) -> u32 {
        if cpu < CPU_MASK { cpu } else { CPU_MASK }
    }
    bits(cpu) | bits(waker_cpu) << CPU_BITS | (kind as u32) << KIND_SHIFT | flags << FLAGS_SHIFT
}

/// [`tag`] of a poll, for CPUs of which none is above [`NO_CPU`].
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn poll_tag(cpu: u32, waker_cpu: u32, flags: u32) -> u32 {
    cpu | waker_cpu << CPU_BITS | flags << FLAGS_SHIFT
}

/// The parts of a record's fifth word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// What the record says.
    pub kind: RecordKind,
    /// The first CPU.
    pub cpu: Option<u32>,
    /// The second CPU.
    pub waker_cpu: Option<u32>,
    /// Three flags.
    pub flags: u32,
}

impl Tag {
    /// Takes a fifth word apart. `None`: its kind is none of [`RecordKind`].
    #[inline]
    pub fn from_word(word: u32) -> Option<Self> {
        let cpu = |bits: u32| Some(bits & CPU_MASK).filter(|cpu| *cpu != NO_CPU);
        Some(Self {
            kind: RecordKind::from_bits(word >> KIND_SHIFT & KIND_MASK)?,
            cpu: cpu(word),
            waker_cpu: cpu(word >> CPU_BITS),
            flags: word >> FLAGS_SHIFT,
        })
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockKind {
    /// Records of one thread; the block's stamp is the base of the first one.
    Records = 1,
    /// Lines of text: what the numbers in records mean. [`TextLine`](crate::TextLine) has their forms.
    Text = 2,
    /// The end of a round; the block's stamp is the time when the round began.
    Round = 3,
    /// The end of the recording; the payload says why, as text.
    End = 4,
}

impl BlockKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Records, Self::Text, Self::Round, Self::End].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// What the block holds.
    pub kind: BlockKind,
    /// The index of the thread, in order of the threads' first records. 0 in blocks that belong to no thread.
    pub thread: u16,
    /// Bytes of the payload, at most [`PAYLOAD_MAX`].
    pub payload_bytes: u32,
    /// The base of the first record, or the time when the round began.
    pub stamp: u64,
    /// [`checksum`] of the header before it, continued over the payload.
    pub checksum: u64,
}

impl BlockHeader {
    /// Returns the header of a block with this payload.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_MAX`].
    pub fn new(kind: BlockKind, thread: u16, stamp: u64, payload: &[u8]) -> Self {
        assert!(payload.len() <= PAYLOAD_MAX, "a payload of {} bytes", payload.len());
        let header = Self { kind, thread, payload_bytes: payload.len() as u32, stamp, checksum: 0 };
        Self { checksum: header.checksum_with(payload), ..header }
    }

    /// Whether neither this header nor the payload was damaged since it was written.
    pub fn is_of(&self, payload: &[u8]) -> bool {
        self.checksum_with(payload) == self.checksum
    }

    fn checksum_with(&self, payload: &[u8]) -> u64 {
        checksum(checksum(CHECKSUM_START, &self.to_bytes()[..24]), payload)
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a header, or says what is wrong with it.
    pub fn from_bytes(bytes: &[u8; BLOCK_HEADER_BYTES]) -> Result<Self, String> {
        if bytes[0..4] != BLOCK_MAGIC {
            return Err(format!("a block begins with {:02x?}, and not with \"WRBK\"", &bytes[0..4]));
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let kind =
            BlockKind::from_byte(bytes[4]).ok_or_else(|| format!("no block has the kind {}", bytes[4]))?;
        let payload_bytes = word(8);
        if payload_bytes as usize > PAYLOAD_MAX {
            return Err(format!("a block of {payload_bytes} bytes; {PAYLOAD_MAX} is the most"));
        }
        if kind == BlockKind::Records && !(payload_bytes as usize).is_multiple_of(RECORD_BYTES) {
            return Err(format!("{payload_bytes} bytes of records, which have {RECORD_BYTES} each"));
        }
        let thread = u16::from_le_bytes([bytes[6], bytes[7]]);
        Ok(Self { kind, thread, payload_bytes, stamp: long(16), checksum: long(24) })
    }
}

/// The sum with which a [`checksum`] begins.
pub const CHECKSUM_START: u64 = 0xCBF2_9CE4_8422_2325;

/// Continues a checksum over more bytes: FNV-1a over words of four bytes, of which the last is filled with zeros. It finds
/// torn and damaged blocks; it does not protect against intent.
pub fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    let add = |sum: u64, word: u32| (sum ^ u64::from(word)).wrapping_mul(0x0100_0000_01B3);
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    let sum = words.fold(sum, |sum, word| add(sum, u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    add(sum, u32::from_le_bytes(last))
}
