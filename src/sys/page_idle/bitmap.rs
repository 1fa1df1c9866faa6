//! The bitmap's file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use super::super::pagemap::Pfn;
use super::super::root::Root;

/// Frames per word of the bitmap.
pub(super) const WORD_FRAMES: u64 = 64;
/// Words per call: sysfs passes one page at most.
pub(super) const CALL_WORDS: usize = 512;

/// Below `/sys`.
pub(super) const BITMAP: &str = "kernel/mm/page_idle/bitmap";

/// The bitmap, held open.
#[derive(Debug)]
pub(super) struct Bitmap {
    file: File,
}

impl Bitmap {
    pub(super) fn open(root: &Root) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(root.sys(BITMAP))?;
        Ok(Self { file })
    }

    /// Reads words from `first` on, at most [`CALL_WORDS`]; those past the last
    /// frame read as 0.
    pub(super) fn read(&self, first: u64, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = [0; CALL_WORDS * 8];
        let bytes = &mut bytes[..words.len() * 8];
        let mut filled = 0;
        while filled < bytes.len() {
            match self
                .file
                .read_at(&mut bytes[filled..], first * 8 + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*chunk);
        }
        Ok(())
    }

    /// Sets the marks in `words`, at most [`CALL_WORDS`], from `first` on.
    /// Frames that do not exist are passed over.
    pub(super) fn write(&self, first: u64, words: &[u64]) -> io::Result<()> {
        let mut bytes = [0; CALL_WORDS * 8];
        let bytes = &mut bytes[..words.len() * 8];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_ne_bytes();
        }
        let mut done = 0;
        while done < bytes.len() {
            match self.file.write_at(&bytes[done..], first * 8 + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sets the mark of one folio's head.
    pub(super) fn mark(&self, head: Pfn) -> io::Result<()> {
        self.write(head.0 / WORD_FRAMES, &[1 << (head.0 % WORD_FRAMES)])
    }

    /// Whether a head's mark is set and its page not touched since.
    pub(super) fn is_marked(&self, head: Pfn) -> io::Result<bool> {
        let mut word = [0];
        self.read(head.0 / WORD_FRAMES, &mut word)?;
        Ok(word[0] >> (head.0 % WORD_FRAMES) & 1 == 1)
    }
}
