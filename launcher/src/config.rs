//! The command line, as `sigma up` writes it.

use crate::error::Error;
use crate::plan::{PROC_FIRST, UIDS};
use crate::rootless::Rootless;
use std::ffi::{CString, OsString};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

/// Two descriptors each from 5 on must fit below 64, sigmad apart.
const PROGRAMS_MAX: usize = 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub path: CString,
}

/// What of the host the whole instance may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// None: as much as any other cgroup may.
    pub milli_cpu: Option<u64>,
    /// In bytes. None: no limit.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub data: CString,
    pub machine: CString,
    /// Eight lower-case hexadecimal digits.
    pub instance: String,
    pub instance_number: u32,
    pub lock_fd: RawFd,
    pub ready_fd: RawFd,
    pub weaken: bool,
    pub rootless: Option<Rootless>,
    /// Where other machines connect to this one.
    pub listen: Option<SocketAddr>,
    /// What sigmad is told as it is: the machine's address, share and labels, and whether it
    /// encrypts.
    pub told: Vec<CString>,
    pub share: Share,
    /// Kept open, so that what it is the last handle of lives as long as the system.
    pub hold_fd: Option<RawFd>,
    /// A listening socket for programs that have a credential of a realm, which sigmad is handed.
    pub realm_fd: Option<RawFd>,
    pub programs: Vec<Program>,
}

impl Config {
    /// Reads the arguments after the program's own name.
    pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Config, Error> {
        let mut config = Config {
            data: CString::default(),
            machine: CString::default(),
            instance: String::new(),
            instance_number: 0,
            lock_fd: -1,
            ready_fd: -1,
            weaken: false,
            rootless: None,
            listen: None,
            told: Vec::new(),
            share: Share::default(),
            hold_fd: None,
            realm_fd: None,
            programs: Vec::new(),
        };
        let mut args = args.map(OsString::into_vec);
        while let Some(flag) = args.next() {
            if flag == b"--weaken" {
                config.weaken = true;
                continue;
            }
            let value = args.next().ok_or(Error::Usage("a flag lacks its value"))?;
            let value = CString::new(value).map_err(|_| Error::Usage("a value contains a zero byte"))?;
            match flag.as_slice() {
                b"--data" => config.data = value,
                b"--machine" => config.machine = value,
                b"--instance" => config.set_instance(&value)?,
                b"--lock-fd" => config.lock_fd = descriptor(&value)?,
                b"--ready-fd" => config.ready_fd = descriptor(&value)?,
                b"--rootless" => config.rootless = Some(rootless(&value)?),
                b"--listen" => config.listen = Some(socket_address(&value)?),
                b"--address" | b"--encrypt" | b"--labels" => config.tell(&flag, value),
                b"--cpu" => {
                    config.share.milli_cpu = Some(amount(&value)?);
                    config.tell(&flag, value);
                }
                b"--memory" => {
                    config.share.memory = Some(amount(&value)?);
                    config.tell(&flag, value);
                }
                b"--hold-fd" => config.hold_fd = Some(descriptor(&value)?),
                b"--realm-fd" => config.realm_fd = Some(descriptor(&value)?),
                b"--program" => config.programs.push(program(&value)?),
                _ => return Err(Error::Usage("unknown flag")),
            }
        }
        config.check()
    }

    /// The place of sigmad among the programs.
    pub fn sigmad(&self) -> usize {
        self.programs.iter().position(|p| p.name == "sigmad").expect("checked by parse")
    }

    fn tell(&mut self, flag: &[u8], value: CString) {
        self.told.extend([CString::new(flag).unwrap_or_default(), value]);
    }

    fn set_instance(&mut self, value: &CString) -> Result<(), Error> {
        let wrong = Error::Usage("--instance wants eight lower-case hexadecimal digits");
        let text = value.to_str().map_err(|_| wrong)?;
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 8 || !text.bytes().all(digit) {
            return Err(wrong);
        }
        self.instance = text.to_string();
        self.instance_number = u32::from_str_radix(text, 16).map_err(|_| wrong)?;
        Ok(())
    }

    fn check(self) -> Result<Config, Error> {
        let given = !self.machine.is_empty() && !self.instance.is_empty();
        if !given || self.data.is_empty() || self.lock_fd < 0 || self.ready_fd < 0 {
            return Err(Error::Usage("--data, --machine, --instance, --lock-fd and --ready-fd are needed"));
        }
        let mut names: Vec<&str> = self.programs.iter().map(|p| p.name.as_str()).collect();
        names.sort();
        names.dedup();
        if names.len() != self.programs.len() || names.len() > PROGRAMS_MAX || !names.contains(&"sigmad") {
            return Err(Error::Usage("--program wants distinct names, at most 30, sigmad among them"));
        }
        Ok(self)
    }
}

fn socket_address(value: &CString) -> Result<SocketAddr, Error> {
    let address = value.to_str().ok().and_then(|text| text.parse().ok());
    address.ok_or(Error::Usage("--listen wants IP:PORT"))
}

fn amount(value: &CString) -> Result<u64, Error> {
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number > 0).ok_or(Error::Usage("an amount is a number from 1 on"))
}

fn descriptor(value: &CString) -> Result<RawFd, Error> {
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.filter(|fd| *fd >= 3).ok_or(Error::Usage("a descriptor is a number from 3 on"))
}

/// FD:UIDS:CGROUP. FD is 0 where the namespace has been made; CGROUP is a path or empty.
fn rootless(value: &CString) -> Result<Rootless, Error> {
    let wrong = Error::Usage("--rootless wants FD:UIDS:CGROUP");
    let text = value.to_str().map_err(|_| wrong)?;
    let mut parts = text.splitn(3, ':');
    let mut next = || parts.next().ok_or(wrong);
    let fd = Some(next()?)
        .filter(|fd| *fd != "0")
        .map(|fd| descriptor(&CString::new(fd).map_err(|_| wrong)?))
        .transpose()?;
    // Below are init and the programs; the upper half is for the realms' gids.
    let uids = next()?.parse().ok().filter(|uids| (4 * PROC_FIRST..=UIDS).contains(uids)).ok_or(wrong)?;
    let cgroup = Some(next()?).filter(|path| !path.is_empty()).map(CString::new).transpose().map_err(|_| wrong)?;
    if cgroup.as_ref().is_some_and(|path| path.as_bytes()[0] != b'/') {
        return Err(wrong);
    }
    Ok(Rootless { fd, uids, cgroup })
}

fn program(value: &CString) -> Result<Program, Error> {
    let wrong = Error::Usage("--program wants NAME=PATH, the name of a-z, 0-9 and -");
    let text = value.to_str().map_err(|_| wrong)?;
    let (name, path) = text.split_once('=').ok_or(wrong)?;
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(legal) || path.is_empty() {
        return Err(wrong);
    }
    let path = CString::new(path).map_err(|_| wrong)?;
    Ok(Program { name: name.to_string(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Config, Error> {
        Config::parse(line.split_whitespace().map(OsString::from))
    }

    const GOOD: &str = "--data /d --machine m --instance 0000040a --lock-fd 3 --ready-fd 4";

    #[test]
    fn a_whole_line() {
        let config = parse(&format!("{GOOD} --program named=/n --program sigmad=/s --weaken")).unwrap();
        assert_eq!(config.instance_number, 0x40a);
        assert_eq!(config.sigmad(), 1);
        assert!(config.weaken);
    }

    #[test]
    fn other_machines() {
        let config = parse(&format!(
            "{GOOD} --program sigmad=/s --listen [::]:7000 --address 10.0.0.1:7000 --cpu 500 --memory 1048576"
        ))
        .unwrap();
        assert_eq!(config.listen, "[::]:7000".parse().ok());
        let told = [c"--address", c"10.0.0.1:7000", c"--cpu", c"500", c"--memory", c"1048576"];
        assert_eq!(config.told, told.map(CString::from));
        assert_eq!(config.share, Share { milli_cpu: Some(500), memory: Some(1 << 20) });
        let alone = parse(&format!("{GOOD} --program sigmad=/s")).unwrap();
        assert_eq!((alone.listen, alone.realm_fd), (None, None));
        assert_eq!(parse(&format!("{GOOD} --program sigmad=/s --realm-fd 6")).unwrap().realm_fd, Some(6));
    }

    #[test]
    fn rootless_is_told_uids_and_cgroup() {
        let rootless =
            |value: &str| parse(&format!("{GOOD} --program sigmad=/s --rootless {value}")).map(|c| c.rootless);
        let got = rootless("5:65536:/sys/fs/cgroup/a:b").unwrap().unwrap();
        assert_eq!((got.fd, got.uids, got.cgroup.as_deref()), (Some(5), 65536, Some(c"/sys/fs/cgroup/a:b")));
        assert_eq!(rootless("0:65536:").unwrap().unwrap().fd, None);
        assert_eq!(rootless("5:65536:").unwrap().unwrap().cgroup, None);
        for value in ["5", "5:65536", "x:65536:", "5:1024:", "5:1048577:", "5:65536:relative"] {
            assert!(matches!(rootless(value), Err(Error::Usage(_))), "{value}");
        }
    }

    #[test]
    fn faults_are_named() {
        let faults = [
            format!("{GOOD} --program named=/n"),
            format!("{GOOD} --program sigmad=/s --program sigmad=/s"),
            format!("{GOOD} --program ../x=/s --program sigmad=/s"),
            format!("{GOOD} --program sigmad=/s --what 1"),
            format!("{GOOD} --program sigmad=/s --listen host:7000"),
            format!("{GOOD} --program sigmad=/s --cpu 0"),
            format!("{GOOD} --program sigmad=/s --memory 1G"),
            format!("{GOOD} --program sigmad=/s --instance 0000040A"),
            format!("{GOOD} --program sigmad=/s --lock-fd 2"),
            format!("{GOOD} --program sigmad=/s --realm-fd x"),
            "--program sigmad=/s".to_string(),
            format!("{GOOD} --program"),
        ];
        for line in faults {
            assert!(matches!(parse(&line), Err(Error::Usage(_))), "{line}");
        }
    }
}
