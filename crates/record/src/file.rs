//! File: blocks on their way to the disk, whole or not at all.
//!
//! Blocks are collected and written together. If the system takes only a part of them, the file is cut after the last
//! block that is whole. The file has a bound, below which there is always room for the block that says why the recording
//! ended.

use crate::format::*;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Blocks of this many bytes are written together.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes below the bound that are kept for the last block.
const END_ROOM: u64 = 1 << 10;

/// The file of a recording.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: File,
    path: PathBuf,
    /// Bytes of the file, all of whole blocks.
    len: u64,
    bytes_max: u64,
    buffer: Vec<u8>,
    /// Where the blocks of the buffer end.
    ends: Vec<usize>,
}

/// Why no block can be appended.
#[derive(Debug)]
pub(crate) enum NoMore {
    /// The file has reached its bound.
    Full,
    /// The system refused to write.
    Error(io::Error),
}

impl BlockFile {
    /// Creates the file, which must not exist yet, with the header and its text. If `path` exists, another process of the
    /// same service has it, and the file is `path.PID`.
    pub(crate) fn create(path: &Path, pid: u32, bytes_max: u64, text: &str) -> io::Result<Self> {
        let create = |path: &Path| OpenOptions::new().append(true).create_new(true).open(path);
        let mut path = path.to_owned();
        let mut file = create(&path);
        if file.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            path.as_mut_os_string().push(format!(".{pid}"));
            file = create(&path);
        }
        let named = |error: io::Error| {
            let hint = match error.kind() {
                ErrorKind::AlreadyExists => "; move it away: a recording never replaces a file",
                ErrorKind::NotFound => "; its folder must exist",
                _ => "; name a file in a folder that this process may write",
            };
            io::Error::new(error.kind(), format!("can't create {}: {error}{hint}", path.display()))
        };
        let mut file = file.map_err(named)?;
        let mut header = Vec::with_capacity(HEADER_BYTES + text.len());
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((text.len() as u32).to_le_bytes());
        header.extend(checksum(CHECKSUM_START, text.as_bytes()).to_le_bytes());
        header.extend(text.as_bytes());
        file.write_all(&header).map_err(|error| {
            let _ = std::fs::remove_file(&path);
            io::Error::new(error.kind(), format!("can't write {}: {error}", path.display()))
        })?;
        let len = header.len() as u64;
        Ok(Self { file, path, len, bytes_max, buffer: Vec::new(), ends: Vec::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that were appended, with those that are not on the disk yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.len + self.buffer.len() as u64
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Appends a block.
    pub(crate) fn append(
        &mut self,
        kind: BlockKind,
        thread: u16,
        stamp: u64,
        payload: &[u8],
    ) -> Result<(), NoMore> {
        if self.bytes() + (BLOCK_HEADER_BYTES + payload.len()) as u64 + END_ROOM > self.bytes_max {
            return Err(NoMore::Full);
        }
        self.put(kind, thread, stamp, payload);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn put(&mut self, kind: BlockKind, thread: u16, stamp: u64, payload: &[u8]) {
        self.buffer.extend(BlockHeader::new(kind, thread, stamp, payload).to_bytes());
        self.buffer.extend(payload);
        self.ends.push(self.buffer.len());
    }

    /// Writes what was collected. After an error the file ends with the last block that is whole.
    pub(crate) fn flush(&mut self) -> Result<(), NoMore> {
        let mut written = 0;
        let result = loop {
            match self.file.write(&self.buffer[written..]) {
                _ if written == self.buffer.len() => break Ok(()),
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let whole = self.ends.iter().copied().take_while(|end| *end <= written).last().unwrap_or(0);
        self.len += whole as u64;
        self.buffer.clear();
        self.ends.clear();
        if whole < written {
            // Where this fails too, the reader finds a block that is cut.
            let _ = self.file.set_len(self.len);
        }
        result.map_err(NoMore::Error)
    }

    /// Writes the last block, which says why the recording ended, if the system takes it.
    pub(crate) fn end(&mut self, stamp: u64, why: &str) -> Result<(), NoMore> {
        self.flush()?;
        // The text is bounded, so that it fits into what is kept for it.
        let end = why.floor_char_boundary(END_ROOM as usize / 2);
        self.put(BlockKind::End, 0, stamp, &why.as_bytes()[..end]);
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Recording};

    fn header() -> String {
        crate::Header { ns_per_stamp_q32: 1 << 32, ..crate::Header::default() }.to_string()
    }

    #[test]
    fn a_file_that_exists_is_kept_and_another_name_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        std::fs::write(&path, "precious").unwrap();
        let file = BlockFile::create(&path, 77, 1 << 20, &header()).unwrap();
        assert_eq!(file.path(), folder.path().join("a.rec.77"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let again = BlockFile::create(&path, 77, 1 << 20, &header()).unwrap_err().to_string();
        assert!(again.contains("a.rec.77") && again.contains("move it away"), "{again}");
        let lost = BlockFile::create(&folder.path().join("no/a.rec"), 1, 1 << 20, "").unwrap_err();
        assert!(lost.to_string().contains("its folder must exist"), "{lost}");
    }

    #[test]
    fn a_file_ends_below_its_bound_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let bytes_max = 10_000;
        let mut file = BlockFile::create(&path, 1, bytes_max, &header()).unwrap();
        let line = crate::TextLine::Thread(0, 1, "thread".to_owned()).to_string();
        file.append(BlockKind::Text, 0, 0, line.as_bytes()).unwrap();
        let payload = [0; 50 * RECORD_BYTES];
        let mut blocks = 0;
        while file.append(BlockKind::Records, 0, 5, &payload).is_ok() {
            blocks += 1;
        }
        file.end(9, &"why ".repeat(1000)).unwrap();
        assert!(blocks > 5 && std::fs::metadata(&path).unwrap().len() <= bytes_max, "{blocks} blocks");
        let mut recording = Recording::open(&path).unwrap();
        let (mut polls, mut why) = (0, String::new());
        while let Some(event) = recording.next_event().unwrap() {
            match event {
                Event::Poll(_) => polls += 1,
                Event::End { why: text } => why = text,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((polls, recording.cut()), (50 * blocks, None));
        assert!(why.starts_with("why why"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_disk_that_takes_nothing_is_an_error_and_not_a_panic() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (path, buffer, ends) = (PathBuf::new(), Vec::new(), Vec::new());
        let mut file = BlockFile { file: full, path, len: 0, bytes_max: 1 << 20, buffer, ends };
        file.append(BlockKind::Text, 0, 0, b"line").unwrap();
        assert!(matches!(file.flush(), Err(NoMore::Error(error)) if error.kind() == ErrorKind::StorageFull));
        assert_eq!(file.bytes(), 0);
    }
}
