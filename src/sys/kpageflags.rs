//! Which folio a page frame belongs to: `/proc/kpageflags`.
//!
//! A folio is what the kernel ages, maps and moves as one: a page, or a
//! naturally aligned block of `1 << order` of them. Its flags lie on its first
//! frame, the head, so the idle bit of every other frame, a tail, means nothing.
//!
//! The kernel tells heads from tails but not where a tail's head is, nor how
//! long a folio is. Both follow from the alignment:
//!
//! - The frame before `p` aligned to each order in turn lies in `p`'s own folio
//!   until it *is* the head; so the first such frame with `HEAD` is the head.
//! - With the head at `h`, frame `h + (1 << k)` is a tail for every `k` below
//!   the folio's order, and never at the order itself: there another folio begins.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::pagemap::Pfn;
use super::root::Root;

/// The largest folio looked for: 1 GiB of pages of 4 KiB.
const MAX_ORDER: u8 = 18;

/// The order of a transparent huge page on x86-64 and on arm64 with 4 KiB pages.
const HUGE_ORDER: u8 = 9;

/// The flags of one frame (`include/uapi/linux/kernel-page-flags.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    /// On one of the kernel's lists for ageing; only such pages have an idle bit.
    pub fn lru(self) -> bool {
        self.bit(5)
    }

    /// The first frame of a folio of several.
    pub fn head(self) -> bool {
        self.bit(15)
    }

    /// A further frame of a folio.
    pub fn tail(self) -> bool {
        self.bit(16)
    }

    /// From the hugetlb pool.
    pub fn hugetlb(self) -> bool {
        self.bit(17)
    }

    /// What untouched memory reads from: nobody's, however many map it.
    pub fn zero_page(self) -> bool {
        self.bit(24)
    }

    /// Marked idle, and not seen accessed since. Unlike the idle bitmap this
    /// tells the mark alone and does not look at the page tables.
    pub fn idle(self) -> bool {
        self.bit(25)
    }

    fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }
}

/// A frame's folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folio {
    /// Its first frame, which carries the idle bit.
    pub head: Pfn,
    /// log2 of its frames.
    pub order: u8,
}

/// The flags of all frames, held open.
#[derive(Debug)]
pub struct KpageFlags {
    file: File,
}

impl KpageFlags {
    /// Opens the flags below `root`.
    ///
    /// # Errors
    /// `PermissionDenied` for anyone but root, `NotFound` without
    /// `CONFIG_PROC_PAGE_MONITOR`.
    pub fn open(root: &Root) -> io::Result<Self> {
        let file = File::open(root.proc("kpageflags"))?;
        Ok(Self { file })
    }

    /// The flags of one frame; none set where there is no such frame.
    ///
    /// # Errors
    /// What `pread` says.
    pub fn get(&self, pfn: Pfn) -> io::Result<Flags> {
        let mut one = [Flags::default()];
        self.read(pfn, &mut one)?;
        Ok(one[0])
    }

    /// The flags of up to 64 adjacent frames from `first` on.
    ///
    /// # Errors
    /// What `pread` says.
    ///
    /// # Panics
    /// When more are asked for.
    pub fn read(&self, first: Pfn, out: &mut [Flags]) -> io::Result<()> {
        let mut bytes = [0; 64 * 8];
        let bytes = &mut bytes[..out.len() * 8];
        let mut filled = 0;
        while filled < bytes.len() {
            match self
                .file
                .read_at(&mut bytes[filled..], first.0 * 8 + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        for (flags, chunk) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *flags = Flags(u64::from_ne_bytes(*chunk));
        }
        Ok(())
    }

    /// The folio that holds `pfn` at this moment; `None` where it changed
    /// while being looked at.
    ///
    /// # Errors
    /// What `pread` says.
    pub fn folio(&self, pfn: Pfn) -> io::Result<Option<Folio>> {
        let flags = self.get(pfn)?;
        if flags.tail() {
            // Most tails belong to huge pages: worth three reads before up to nine.
            let huge = Folio {
                head: pfn.align_down(HUGE_ORDER),
                order: HUGE_ORDER,
            };
            if self.is_still(huge)? {
                return Ok(Some(huge));
            }
            for order in 1..=MAX_ORDER {
                let head = pfn.align_down(order);
                let head_flags = self.get(head)?;
                if head_flags.head() {
                    return self.sized(head, order).map(Some);
                }
                if !head_flags.tail() {
                    return Ok(None);
                }
            }
            return Ok(None);
        }
        if flags.head() {
            return self.sized(pfn, 0).map(Some);
        }
        Ok(Some(Folio {
            head: pfn,
            order: 0,
        }))
    }

    /// Whether `folio`, of several frames, is still whole and as long.
    ///
    /// # Errors
    /// What `pread` says.
    pub fn is_still(&self, folio: Folio) -> io::Result<bool> {
        let Folio { head, order } = folio;
        debug_assert!(order > 0);
        Ok(self.get(head)?.head()
            && self.get(Pfn(head.0 + (1 << (order - 1))))?.tail()
            && !self.get(Pfn(head.0 + (1 << order)))?.tail())
    }

    /// The folio at `head`, known to be of at least `order`.
    fn sized(&self, head: Pfn, mut order: u8) -> io::Result<Folio> {
        while order < MAX_ORDER && self.get(Pfn(head.0 + (1 << order)))?.tail() {
            order += 1;
        }
        Ok(Folio { head, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const HEAD: u64 = 1 << 15;
    const TAIL: u64 = 1 << 16;

    /// Flags of adjacent folios of these orders, each naturally aligned.
    fn flags_of(orders: &[u8]) -> (tempfile::TempDir, KpageFlags, Vec<Folio>) {
        let mut flags = Vec::new();
        let mut folios = Vec::new();
        for &order in orders {
            // Single pages fill the way up to the next aligned frame.
            while flags.len() % (1 << order) != 0 {
                folios.push(Folio {
                    head: Pfn(flags.len() as u64),
                    order: 0,
                });
                flags.push(0);
            }
            let head = Pfn(flags.len() as u64);
            folios.extend((0..1 << order).map(|_| Folio { head, order }));
            flags.push(if order > 0 { HEAD } else { 0 });
            flags.extend((1..1 << order).map(|_| TAIL));
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        let bytes: Vec<u8> = flags.iter().flat_map(|f: &u64| f.to_ne_bytes()).collect();
        fs::write(dir.path().join("proc/kpageflags"), bytes).unwrap();
        let open = KpageFlags::open(&Root::at(dir.path())).unwrap();
        (dir, open, folios)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn every_frame_finds_its_folio(orders in prop::collection::vec(0_u8..=10, 1..12)) {
            let (_dir, flags, folios) = flags_of(&orders);
            for (pfn, &folio) in folios.iter().enumerate() {
                prop_assert_eq!(flags.folio(Pfn(pfn as u64)).unwrap(), Some(folio));
                if folio.order > 0 {
                    prop_assert!(flags.is_still(folio).unwrap());
                    let longer = Folio { order: folio.order + 1, ..folio };
                    prop_assert!(!flags.is_still(longer).unwrap());
                }
            }
        }
    }

    #[test]
    fn a_tail_without_a_head_has_no_folio() {
        let (dir, _, _) = flags_of(&[3]);
        let mut bytes = Vec::new();
        for flag in [0, TAIL, TAIL, TAIL] {
            bytes.extend(u64::to_ne_bytes(flag));
        }
        fs::write(dir.path().join("proc/kpageflags"), bytes).unwrap();
        let flags = KpageFlags::open(&Root::at(dir.path())).unwrap();
        assert_eq!(flags.folio(Pfn(3)).unwrap(), None);
    }
}
