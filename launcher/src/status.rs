//! The records that inits and seeds write to the launcher's one status pipe.

use crate::error::Error;

/// Smaller than PIPE_BUF, so never mixed with another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Of the process tree or seat: neither knows which proc it serves.
    pub key: u64,
    pub news: News,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// An init's: its program has ended so.
    Ended(i32),
    /// A seed's: the START's program was contained, and executed, at these times.
    Started { contained: u64, exec: u64 },
    /// A seed's: there is no program.
    Failed(Error),
}

impl Status {
    pub const BYTES: usize = 32;

    pub fn encode(self) -> [u8; Status::BYTES] {
        let (kind, number, value, times) = match self.news {
            News::Ended(wait_status) => (0u16, 0, wait_status, [0; 2]),
            News::Started { contained, exec } => (1, 0, 0, [contained, exec]),
            News::Failed(error) => (2, error.number(), error.errno(), [0; 2]),
        };
        let mut out = [0; Status::BYTES];
        out[..8].copy_from_slice(&self.key.to_le_bytes());
        out[8..10].copy_from_slice(&kind.to_le_bytes());
        out[10..12].copy_from_slice(&number.to_le_bytes());
        out[12..16].copy_from_slice(&value.to_le_bytes());
        out[16..24].copy_from_slice(&times[0].to_le_bytes());
        out[24..].copy_from_slice(&times[1].to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; Status::BYTES]) -> Option<Status> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| word(at) as u64 | (word(at + 4) as u64) << 32;
        let (kind, number, value) = (word(8) as u16, (word(8) >> 16) as u16, word(12) as i32);
        let news = match kind {
            0 => News::Ended(value),
            1 => News::Started { contained: long(16), exec: long(24) },
            2 => News::Failed(Error::from_record(number, value)),
            _ => return None,
        };
        Some(Status { key: long(0), news })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn statuses_survive_the_pipe() {
        let started = News::Started { contained: 0x1234_5678_9abc_def0, exec: u64::MAX };
        for news in [News::Ended(-7), started, News::Failed(Error::Exec(Errno(libc::ENOEXEC)))] {
            let status = Status { key: u64::MAX - 1, news };
            assert_eq!(Status::decode(&status.encode()), Some(status));
        }
        assert_eq!(Status::decode(&[3; Status::BYTES]), None);
    }
}
