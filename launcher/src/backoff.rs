//! How long the next start of what died waits: not at all or almost so after an accident, longer
//! and longer if there is no end of them, never for good.

const SECOND: u64 = 1_000_000_000;
/// The pause of each of the first deaths, for each before it.
const STEP: u64 = SECOND / 20;
/// So many deaths in a row are accidents.
const ACCIDENTS: u32 = 4;
/// The pause after the first that is none; it doubles with each further one,
const FIRST: u64 = SECOND / 2;
/// up to this. A machine whose processes die all the time costs its host next to nothing, and is
/// back this soon after what was wrong is put right.
const MOST: u64 = 5 * SECOND;
/// What has lived for so long is well: earlier deaths are forgotten. Who dies once in a while is
/// started at once each time, which costs no more than the longest pause saves.
const WELL: u64 = 2 * SECOND;

/// The deaths of late. Times are nanoseconds of one clock.
#[derive(Debug, Default)]
pub struct Backoff {
    count: u32,
    forgotten_at: u64,
}

impl Backoff {
    /// Notes a death; returns how long the next start waits.
    pub fn died(&mut self, now: u64) -> u64 {
        if now >= self.forgotten_at {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        let pause = match self.count {
            n if n <= ACCIDENTS => STEP * (n - 1) as u64,
            n => (FIRST << (n - ACCIDENTS - 1).min(8)).min(MOST),
        };
        self.forgotten_at = now + pause + WELL;
        pause
    }

    /// How many deaths there were of late.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_have_a_bound_and_are_forgotten() {
        let (mut backoff, mut now, mut pauses) = (Backoff::default(), 7 * SECOND, vec![]);
        for _ in 0..12 {
            let pause = backoff.died(now);
            pauses.push(pause / 1_000_000);
            now += pause + WELL - 1; // it lives a little too short each time
        }
        assert_eq!(pauses, [0, 50, 100, 150, 500, 1000, 2000, 4000, 5000, 5000, 5000, 5000]);
        assert_eq!(backoff.count(), 12);
        assert_eq!(backoff.died(now + 1), 0, "it was well for long enough");
        assert_eq!(backoff.count(), 1);
    }
}
