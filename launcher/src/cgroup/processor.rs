//! Processor time of a leaf, split into user and system time.

use super::value_of;

/// What a leaf has used since it was made, in nanoseconds.
///
/// The total is exact. v1 counts the other two by the ticks of a clock, of which a busy virtual
/// machine loses some: only their ratio is of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessorTime {
    pub total: u64,
    pub user: u64,
    pub system: u64,
}

impl ProcessorTime {
    /// From v2's cpu.stat.
    pub fn of_stat(text: &str) -> Option<Self> {
        let of = |key| Some(value_of(text, key)?.saturating_mul(1000));
        Some(Self { total: of("usage_usec ")?, user: of("user_usec ")?, system: of("system_usec ")? })
    }

    /// User and system time since `before`, in microseconds. Their sum is the difference of the
    /// totals. All of it is user time if no tick was counted.
    pub fn since(self, before: Self) -> (u64, u64) {
        let total = self.total.saturating_sub(before.total) / 1000;
        let user = self.user.saturating_sub(before.user);
        let ticks = u128::from(user) + u128::from(self.system.saturating_sub(before.system));
        if ticks == 0 {
            return (total, 0);
        }
        let user = (u128::from(total) * u128::from(user) / ticks) as u64;
        (user, total - user)
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessorTime;

    fn time(total: u64, user: u64, system: u64) -> ProcessorTime {
        ProcessorTime { total, user, system }
    }

    #[test]
    fn lost_ticks_are_charged() {
        let before = time(1_000_000, 300_000, 100_000);
        assert_eq!(time(1_300_000, 450_000, 150_000).since(before), (225, 75));
        assert_eq!(time(1_300_000, 300_000, 100_000).since(before), (300, 0));
        assert_eq!(time(1_300_000, 300_000, 200_000).since(before), (0, 300));
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(time(900, 200, 100).since(time(1000, 300, 100)), (0, 0));
        let (user, system) = time(u64::MAX, u64::MAX, u64::MAX).since(time(0, 0, 0));
        assert_eq!(user + system, u64::MAX / 1000);
    }

    #[test]
    fn a_stat_file_has_all_three() {
        let text = "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 0\n";
        assert_eq!(ProcessorTime::of_stat(text), Some(time(30_000, 20_000, 10_000)));
        assert_eq!(ProcessorTime::of_stat("usage_usec 30\nuser_usec 20\n"), None);
    }
}
