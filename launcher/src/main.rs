//! The sigmaOS launcher: flags in, exit code out. See docs/internals/launcher-protocol.md.

mod backoff;
mod boot;
mod calls;
mod cgroup;
mod child;
mod config;
mod error;
mod factory;
mod filter;
mod fuse;
mod homes;
mod init;
mod keeper;
mod landlock;
mod namespaces;
mod parking;
mod parts;
mod plan;
mod proc;
mod protocol;
mod room;
mod rootless;
mod seats;
mod seed;
mod sockets;
mod space;
mod status;
mod supervisor;
mod sys;
mod uids;
mod yielding;

fn main() {
    let config = config::Config::parse(std::env::args_os().skip(1));
    let code = config.and_then(|config| keeper::run(&config)).unwrap_or_else(|error| {
        error::log(&error::chain(&error));
        match error {
            error::Error::Usage(_) => 64,
            _ => 71,
        }
    });
    std::process::exit(code);
}
