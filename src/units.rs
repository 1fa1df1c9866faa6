//! The quantities that hmkeeper computes with, each as a type of its own.
//!
//! All addresses and sizes are in **bytes**, all times in **nanoseconds**, all
//! ranges are **half-open**. A bare `u64` never crosses a module border.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod text;

/// Bytes in the smallest page that the kernel maps (x86-64 and arm64 with 4 KiB granules).
pub const PAGE_BYTES: u64 = 4096;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes that one last-level page directory entry maps: HM-Keeper's initial
/// region (§1.2) and the size of a transparent huge page on x86-64.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A process id as the kernel's `/proc` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub i32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A NUMA node of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A memory tier: an index into the [`TierTable`](crate::tiering::tier::TierTable).
/// A name for a set of nodes; its rank depends on the socket that looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TierId(pub u16);

impl TierId {
    /// The tier's place in the table.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A virtual address in some target's address space, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The first byte of the 4 KiB page that holds this address.
    #[must_use]
    pub fn page(self) -> Self {
        self.align_down(PAGE_BYTES)
    }

    /// The 4 KiB page's number: the index of its entry in `/proc/PID/pagemap`.
    pub fn page_index(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Rounded down to a multiple of `align`, a power of two in bytes.
    #[must_use]
    pub fn align_down(self, align: u64) -> Self {
        debug_assert!(align.is_power_of_two());
        Self(self.0 & !(align - 1))
    }

    /// `self + bytes`, or `None` past the end of the address space.
    pub fn checked_add(self, bytes: Bytes) -> Option<Self> {
        self.0.checked_add(bytes.0).map(Self)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` KiB.
    pub const fn from_kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn from_mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` pages of 4 KiB.
    pub const fn from_pages(n: u64) -> Self {
        Self(n << PAGE_SHIFT)
    }

    /// Whole 4 KiB pages in this many bytes, rounded up.
    pub const fn pages(self) -> u64 {
        self.0.div_ceil(PAGE_BYTES)
    }

    /// `self - other`, or nothing where that would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whether there are none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// As a floating-point number, for ratios and metrics.
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// With a binary unit and at most one decimal: `96.0 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.as_f64() / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

/// A point in time (of a monotonic clock whose zero is arbitrary) or a length
/// of time, in nanoseconds. Opaque to the engine: nothing in it reads a clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// In seconds.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From seconds; negative and absurd values saturate.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn from_secs_f64(secs: f64) -> Self {
        // `as` saturates, which is what is wanted here.
        Self((secs * 1e9) as u64)
    }

    /// `self - other`, or zero where that would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl From<Duration> for Nanos {
    fn from(d: Duration) -> Self {
        Self(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(n: Nanos) -> Self {
        Self::from_nanos(n.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}

/// Bytes per second.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bandwidth(pub u64);

impl Bandwidth {
    /// `n` units of 10^6 bytes per second, the unit of HMAT and of sysfs.
    pub const fn from_mb_per_s(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// The bytes that pass in `time`.
    pub fn over(self, time: Nanos) -> Bytes {
        let bytes = u128::from(self.0) * u128::from(time.0) / 1_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// The addresses `start..end` of some target: half-open, both ends multiples
/// of 4 KiB, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Ends")]
pub struct PageRange {
    start: VirtAddr,
    end: VirtAddr,
}

/// A range that somebody else wrote, not checked yet.
#[derive(Deserialize)]
struct Ends {
    start: VirtAddr,
    end: VirtAddr,
}

impl TryFrom<Ends> for PageRange {
    type Error = &'static str;

    fn try_from(ends: Ends) -> Result<Self, Self::Error> {
        Self::new(ends.start, ends.end).ok_or("a range is empty or not of whole pages")
    }
}

impl PageRange {
    /// The range, or `None` where it would be empty or is not page-aligned.
    pub fn new(start: VirtAddr, end: VirtAddr) -> Option<Self> {
        let aligned = start.0.is_multiple_of(PAGE_BYTES) && end.0.is_multiple_of(PAGE_BYTES);
        (start < end && aligned).then_some(Self { start, end })
    }

    /// First byte.
    pub fn start(self) -> VirtAddr {
        self.start
    }

    /// One past the last byte.
    pub fn end(self) -> VirtAddr {
        self.end
    }

    /// Length in bytes, at least one page.
    pub fn bytes(self) -> Bytes {
        Bytes(self.end.0 - self.start.0)
    }

    /// Length in pages of 4 KiB, at least one.
    pub fn pages(self) -> u64 {
        (self.end.0 - self.start.0) >> PAGE_SHIFT
    }

    /// Whether `addr` lies within.
    pub fn contains(self, addr: VirtAddr) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Whether every address of `other` lies within.
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The addresses in both.
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The parts before and after `at`; `None` where one would be empty or
    /// `at` is not page-aligned.
    pub fn split_at(self, at: VirtAddr) -> Option<(Self, Self)> {
        Some((Self::new(self.start, at)?, Self::new(at, self.end)?))
    }

    /// The range that begins here and ends where `next` ends, when `next`
    /// follows without a gap.
    pub fn join(self, next: Self) -> Option<Self> {
        (self.end == next.start).then_some(Self {
            start: self.start,
            end: next.end,
        })
    }

    /// The start of each of its pages of 4 KiB, in order.
    pub fn iter_pages(self) -> impl ExactSizeIterator<Item = VirtAddr> {
        let count = usize::try_from(self.pages()).unwrap_or(usize::MAX);
        let start = self.start.0;
        (0..count).map(move |i| VirtAddr(start + ((i as u64) << PAGE_SHIFT)))
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl Sub<VirtAddr> for VirtAddr {
    type Output = Bytes;
    /// The distance from `other` up to `self`; zero where `other` is above.
    fn sub(self, other: VirtAddr) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start), VirtAddr(end)).unwrap()
    }

    #[test]
    fn ranges_are_aligned_and_not_empty() {
        assert!(PageRange::new(VirtAddr(0x1000), VirtAddr(0x1000)).is_none());
        assert!(PageRange::new(VirtAddr(0x2000), VirtAddr(0x1000)).is_none());
        assert!(PageRange::new(VirtAddr(0x1001), VirtAddr(0x3000)).is_none());
        assert_eq!(range(0x1000, 0x4000).pages(), 3);
    }

    #[test]
    fn split_and_join_are_inverse() {
        let whole = range(0x1000, 0x9000);
        let (low, high) = whole.split_at(VirtAddr(0x3000)).unwrap();
        assert_eq!(low.join(high), Some(whole));
        assert_eq!(high.join(low), None);
        assert!(whole.split_at(VirtAddr(0x1000)).is_none());
        assert!(whole.split_at(VirtAddr(0x3004)).is_none());
    }

    #[test]
    fn bytes_print_with_binary_units() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes(96 << 20).to_string(), "96.0 MiB");
        assert_eq!(Bytes(1536 << 30).to_string(), "1.5 TiB");
    }

    #[test]
    fn bandwidth_over_time_does_not_overflow() {
        assert_eq!(Bandwidth(100).over(Nanos::from_millis(500)), Bytes(50));
        assert_eq!(
            Bandwidth(u64::MAX).over(Nanos::from_secs(9)),
            Bytes(u64::MAX)
        );
    }
}
