//! The crate's one error type: a variant, a number and a name for every step that may fail.

use std::fmt;

/// A number of the kernel's, printed as the C library words it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// What the calling thread's last failed system call left.
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(err: std::io::Error) -> Errno {
        Errno(err.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Numbers and names are part of the FAILED record: append, never renumber.
macro_rules! steps {
    ($($number:literal $variant:ident $name:literal $message:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        pub enum Error {
            /// The command line is not one that `sigma up` writes.
            #[error("bad command line: {0}")]
            Usage(&'static str),
            /// sigmad sent a record that no correct sigmad sends.
            #[error("malformed message: {0}")]
            Malformed(&'static str),
            $(#[error($message)] $variant(#[source] Errno),)*
        }

        impl Error {
            /// The step's number in records; 0 for what never travels.
            pub fn number(self) -> u16 {
                match self {
                    Error::Usage(_) | Error::Malformed(_) => 0,
                    $(Error::$variant(_) => $number,)*
                }
            }

            /// The step's name in FAILED records.
            pub fn step(self) -> &'static str {
                match self {
                    Error::Usage(_) => "usage",
                    Error::Malformed(_) => "malformed",
                    $(Error::$variant(_) => $name,)*
                }
            }

            pub fn errno(self) -> i32 {
                match self {
                    Error::Usage(_) | Error::Malformed(_) => libc::EINVAL,
                    $(Error::$variant(errno) => errno.0,)*
                }
            }

            /// Rebuilds what a child reported over its pipe.
            pub fn from_record(number: u16, errno: i32) -> Error {
                match number {
                    $($number => Error::$variant(Errno(errno)),)*
                    _ => Error::Child(Errno(errno)),
                }
            }
        }
    };
}

steps! {
    1 Weaken "weaken" "the asked weakening is not allowed";
    2 Plan "plan" "the START message asks for what the launcher does not do";
    3 Cgroup "cgroup" "cannot make the cgroups";
    4 Pipe "pipe" "cannot make the child's report socket";
    5 Clone "clone" "cannot clone the init process";
    6 Init "init" "the init process died before the program started";
    7 Child "child" "the program's process died before the program started";
    8 EnterCgroup "cgroup-enter" "cannot enter the cgroups";
    9 DataTree "data-tree" "cannot clone the data directory's mount";
    10 Namespaces "namespaces" "cannot enter the template namespaces";
    11 Mounts "mounts" "cannot mount the private root";
    12 DeathSignal "death-signal" "cannot arrange to die with the parent";
    13 Fork "fork" "cannot fork the program's process";
    14 Session "session" "cannot start a session";
    15 Descriptors "descriptors" "cannot place the descriptors";
    16 Directory "directory" "cannot change to the root directory";
    17 Signals "signals" "cannot reset the signals";
    18 Limits "limits" "cannot set the resource limits";
    19 Groups "groups" "cannot drop the supplementary groups";
    20 Bounding "bounding" "cannot drop the bounding set";
    21 Securebits "securebits" "cannot lock the securebits";
    22 Gid "gid" "cannot change the group";
    23 Uid "uid" "cannot change the user";
    24 Capabilities "capabilities" "cannot empty the capability sets";
    25 NoNewPrivs "no-new-privs" "cannot set NO_NEW_PRIVS";
    26 Dumpable "dumpable" "cannot become non-dumpable";
    27 LandlockRules "landlock-rules" "cannot make the Landlock rules";
    28 Landlock "landlock" "cannot enter the Landlock domain";
    29 Seccomp "seccomp" "cannot install the system call filter";
    30 Exec "exec" "cannot execute the program";
    31 InitConfine "init-confine" "cannot confine the init process";
    32 Data "data" "cannot prepare the data directory";
    33 Program "program" "cannot open a program";
    34 Template "template" "cannot make the template namespaces";
    35 Sweep "sweep" "cannot remove what a dead instance left";
    36 Loop "loop" "the event loop failed";
    37 UserNamespace "user-namespace" "cannot make a user namespace";
    38 Space "space" "cannot make the PID namespace of procs";
    39 Listen "listen" "cannot listen for other machines";
}

/// One line with the whole chain of causes.
pub fn chain(err: &dyn std::error::Error) -> String {
    let mut line = err.to_string();
    let mut source = err.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}

/// Writes one plain line to stderr; a broken stderr must never end the launcher.
pub fn log(line: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("launcher: {line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_rebuild_the_same_error() {
        for number in 1..=39 {
            let err = Error::from_record(number, libc::EPERM);
            assert_eq!(err.number(), number);
            assert_eq!(err.errno(), libc::EPERM);
        }
        let err = Error::Exec(Errno(libc::ENOEXEC));
        assert_eq!(chain(&err), "cannot execute the program: Exec format error (os error 8)");
    }
}
