//! Compiles lists of system calls to seccomp programs (classic BPF), once, at launcher start.
//!
//! The usual compilers emit one comparison per call in a row. The kernel walks the program for each
//! of the ~460 call numbers when it is installed (to fill its cache of calls that are always
//! allowed), so a row of a hundred comparisons is paid for at every start of a proc. Here the call
//! numbers are cut into intervals of equal verdict and found by bisection: eight comparisons.

use libc::sock_filter;

/// AUDIT_ARCH_X86_64.
const ARCH: u32 = 0xc000_003e;
/// Numbers with this bit are of the x32 ABI, whose calls slip past lists of plain numbers.
const X32_FIRST: u32 = 0x4000_0000;
const X32_END: u32 = 0x8000_0000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Errno(i32),
    Kill,
}

/// A question about one argument. The kernel ignores the upper half of `int` arguments, so must we.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// The lower 32 bits equal the value.
    Is(u8, u32),
    /// The lower 32 bits under the mask equal the value.
    Masked(u8, u32, u32),
    /// All 64 bits are zero: a null pointer.
    Null(u8),
    /// All 64 bits are the key with which the list is compiled: see calls.rs.
    Key(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Always(Verdict),
    /// Allowed when all tests of one alternative hold; otherwise the verdict.
    When(&'static [&'static [Test]], Verdict),
}

pub type Entry = (libc::c_long, Rule);

// Opcodes: class | size or operation | source.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

fn insn(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn finish(verdict: Verdict) -> sock_filter {
    let action = match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
        Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    insn(RETURN, action, 0, 0)
}

/// Compiles a list; calls that are not in it get `default`. Entries must be distinct.
pub fn compile(entries: &[Entry], default: Verdict, key: u64) -> Vec<sock_filter> {
    let mut sorted: Vec<Entry> = entries.to_vec();
    sorted.sort_by_key(|entry| entry.0);
    let mut intervals: Vec<(u32, Rule)> = vec![(0, Rule::Always(default))];
    let mut put = |start: u32, rule: Rule| {
        let last = intervals.last_mut().expect("never empty");
        if last.0 == start {
            last.1 = rule;
        } else if last.1 != rule {
            intervals.push((start, rule));
        }
    };
    for (nr, rule) in sorted {
        put(nr as u32, rule);
        put(nr as u32 + 1, Rule::Always(default));
    }
    put(X32_FIRST, Rule::Always(Verdict::Kill));
    put(X32_END, Rule::Always(default));

    let mut program = vec![
        insn(LOAD, OFFSET_ARCH, 0, 0),
        insn(IF_EQUAL, ARCH, 1, 0),
        finish(Verdict::Kill),
        insn(LOAD, OFFSET_NR, 0, 0),
    ];
    program.extend(bisect(&intervals, key));
    assert!(program.len() <= 4096, "the kernel takes no longer program");
    program
}

fn bisect(intervals: &[(u32, Rule)], key: u64) -> Vec<sock_filter> {
    if let [(_, rule)] = intervals {
        return leaf(*rule, key);
    }
    let (low, high) = intervals.split_at(intervals.len() / 2);
    let pivot = high[0].0;
    let low = bisect(low, key);
    // Conditional jumps reach 255 instructions; a plain one reaches everything.
    let mut out = match u8::try_from(low.len()) {
        Ok(distance) => vec![insn(IF_AT_LEAST, pivot, distance, 0)],
        Err(_) => vec![insn(IF_AT_LEAST, pivot, 0, 1), insn(JUMP, low.len() as u32, 0, 0)],
    };
    out.extend(low);
    out.extend(bisect(high, key));
    out
}

fn leaf(rule: Rule, key: u64) -> Vec<sock_filter> {
    match rule {
        Rule::Always(verdict) => vec![finish(verdict)],
        Rule::When(alternatives, otherwise) => choose(alternatives, otherwise, key),
    }
}

/// Allows what passes all tests of one alternative. Lists of values of one argument, which most
/// rules are, load it once and share the verdict; other rules ask one alternative after the other.
fn choose(alternatives: &[&[Test]], otherwise: Verdict, key: u64) -> Vec<sock_filter> {
    let value_of = |tests: &&[Test]| match tests {
        [Test::Is(arg, value), ..] => Some((*arg, *value)),
        _ => None,
    };
    let values: Option<Vec<(u8, u32)>> = alternatives.iter().map(value_of).collect();
    match values {
        Some(values) if values.iter().all(|(arg, _)| *arg == values[0].0) => {
            by_value(&values, alternatives, otherwise, key)
        }
        _ => one_by_one(alternatives, otherwise, key),
    }
}

fn by_value(values: &[(u8, u32)], alternatives: &[&[Test]], otherwise: Verdict, key: u64) -> Vec<sock_filter> {
    let mut out = vec![load(values[0].0)];
    // Jumps to the shared verdict at the end, to be completed when it is known where that is.
    let mut allowed = Vec::new();
    let mut seen = Vec::new();
    for (_, value) in values {
        if seen.contains(value) {
            continue;
        }
        seen.push(*value);
        let same = values.iter().zip(alternatives).filter(|((_, other), _)| other == value);
        let rests: Vec<&[Test]> = same.map(|(_, tests)| &tests[1..]).collect();
        if rests.iter().any(|rest| rest.is_empty()) {
            allowed.push(out.len());
            out.push(insn(IF_EQUAL, *value, 0, 0));
        } else {
            let body = choose(&rests, otherwise, key);
            out.push(insn(IF_EQUAL, *value, 0, body.len() as u8));
            out.extend(body);
        }
    }
    out.push(finish(otherwise));
    for at in allowed {
        out[at].jt = (out.len() - at - 1) as u8;
    }
    out.push(finish(Verdict::Allow));
    out
}

fn one_by_one(alternatives: &[&[Test]], otherwise: Verdict, key: u64) -> Vec<sock_filter> {
    let mut out = Vec::new();
    for tests in alternatives {
        let mut code: Vec<sock_filter> = tests.iter().flat_map(|test| question(*test, key)).collect();
        code.push(finish(Verdict::Allow));
        let len = code.len();
        for (at, op) in code.iter_mut().enumerate() {
            if op.code == IF_EQUAL {
                // A test that fails skips the rest of its alternative.
                op.jf = (len - at - 1) as u8;
            }
        }
        out.extend(code);
    }
    out.push(finish(otherwise));
    out
}

/// Loads the lower half of an argument.
fn load(arg: u8) -> sock_filter {
    insn(LOAD, OFFSET_ARGS + 8 * arg as u32, 0, 0)
}

fn question(test: Test, key: u64) -> Vec<sock_filter> {
    let high = |arg: u8| insn(LOAD, OFFSET_ARGS + 8 * arg as u32 + 4, 0, 0);
    let equal = |value: u32| insn(IF_EQUAL, value, 0, 0);
    match test {
        Test::Is(arg, value) => vec![load(arg), equal(value)],
        Test::Masked(arg, mask, value) => vec![load(arg), insn(AND, mask, 0, 0), equal(value)],
        Test::Null(arg) => vec![load(arg), equal(0), high(arg), equal(0)],
        Test::Key(arg) => vec![load(arg), equal(key as u32), high(arg), equal((key >> 32) as u32)],
    }
}

#[cfg(test)]
#[path = "filter_test.rs"]
mod tests;
