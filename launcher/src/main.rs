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
mod init;
mod keeper;
mod landlock;
mod namespaces;
mod notes;
mod parking;
mod placer;
mod placing;
mod plan;
mod proc;
mod protocol;
mod rootless;
mod seats;
mod seed;
mod sockets;
mod space;
mod status;
mod supervisor;
mod sys;
mod uids;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let result = match std::env::args_os().nth(1).is_some_and(|flag| flag == placing::FLAG) {
        true => placer::run(args.nth(1)),
        false => config::Config::parse(args).and_then(|config| keeper::run(&config)),
    };
    let code = result.unwrap_or_else(|error| {
        error::log(&error::chain(&error));
        match error {
            error::Error::Usage(_) => 64,
            _ => 71,
        }
    });
    // Exit handlers of Rust's library make system calls that the placer's filter does not allow.
    sys::exit(code);
}
