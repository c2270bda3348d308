package testenv

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// BuildC compiles a C source file into a static program in dir and returns its path. flags come
// after the defaults.
func BuildC(tb testing.TB, dir, source string, flags ...string) string {
	tb.Helper()
	out := filepath.Join(dir, strings.TrimSuffix(filepath.Base(source), ".c")+"-c")
	if prebuilt(tb, out) {
		return out
	}
	build(tb, dir, nil, "gcc", append([]string{"-static", "-O1", "-g0", "-pthread", "-Wall", "-o", out, source},
		flags...)...)
	return out
}

// BuildGo compiles the Go package in the directory source into dir and returns the program's path.
// It links no debug information, which takes as long as the rest and is for debuggers only.
func BuildGo(tb testing.TB, dir, source string) string {
	tb.Helper()
	out := filepath.Join(dir, filepath.Base(source))
	if prebuilt(tb, out) {
		return out
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := []string{"-C", abs, "build", "-trimpath", "-ldflags=-w", "-o", out, "."}
	build(tb, dir, []string{"CGO_ENABLED=0"}, "go", cmd...)
	return out
}

// RunGo runs the go command, which may write into dir.
func RunGo(tb testing.TB, dir string, args ...string) {
	tb.Helper()
	build(tb, dir, []string{"CGO_ENABLED=0"}, "go", args...)
}

// BuildRust compiles a Rust source file into a static program in dir and returns its path.
func BuildRust(tb testing.TB, dir, source string) string {
	tb.Helper()
	out := filepath.Join(dir, strings.TrimSuffix(filepath.Base(source), ".rs")+"-rs")
	build(tb, dir, nil, "rustc", "--target", "x86_64-unknown-linux-gnu", "-C", "target-feature=+crt-static", "-C",
		"opt-level=1", "-o", out, source)
	return out
}

// build runs a compiler; if the tests were started with sudo as the user who did that, so that no
// cache gets files of root.
func build(tb testing.TB, dir string, env []string, name string, args ...string) {
	tb.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	uid, uerr := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, gerr := strconv.Atoi(os.Getenv("SUDO_GID"))
	if uerr == nil && gerr == nil && uid != 0 {
		if err := os.Chown(dir, uid, gid); err != nil {
			tb.Fatal(err)
		}
		if u, err := user.LookupId(os.Getenv("SUDO_UID")); err == nil {
			cmd.Env = append(cmd.Env, "HOME="+u.HomeDir)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// BuildDynamicC compiles a C source file into a program that needs shared libraries.
func BuildDynamicC(tb testing.TB, out, source string) {
	tb.Helper()
	build(tb, filepath.Dir(out), nil, "gcc", "-o", out, source)
}

// Output runs a program that must succeed and returns what it writes to standard output.
func Output(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	cmd := exec.Command(name, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%s: %v\n%s%s", name, err, out, errs.String())
	}
	return string(out)
}
