package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// goModule is the prefix of our packages, as in go.mod.
const goModule = "sigmaos.dev"

// packageTimeout is what one package's tests may take; the go command then prints where every
// goroutine stands.
const (
	packageTimeout = "5m"
	systemTimeout  = "20m"
)

func runGofmt(ctx context.Context, r *recorder) {
	files, err := goFiles(".")
	if err != nil {
		r.fail("gofmt", err.Error())
		return
	}
	out, err := command{argv: append([]string{"gofmt", "-l"}, files...)}.output(ctx)
	switch {
	case err != nil:
		r.fail("gofmt", out+err.Error())
	case out != "":
		r.fail("gofmt", "these files want gofmt -w:\n"+out)
	default:
		r.pass("gofmt", 0)
	}
}

// goFiles lists our Go files; testdata holds bad examples on purpose.
func goFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && (name == "testdata" || name == "target" || name == "bin" || len(name) > 1 && name[0] == '.'):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".go"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// goBuild says how our Go packages are compiled: as make build does, so that nothing is compiled
// twice, and nothing again for another clone.
var (
	goEnv   = []string{"CGO_ENABLED=0"}
	goFlags = []string{"-trimpath"}
)

// runVet vets all files, those of the system tests too: no file is left out by that build tag.
func runVet(ctx context.Context, r *recorder) {
	argv := slices.Concat([]string{"go", "vet"}, goFlags, []string{"-tags", "system", "./..."})
	if out, err := (command{argv: argv, env: goEnv, charge: r.charge}).output(ctx); err != nil {
		r.fail("go vet", out+err.Error())
	} else {
		r.pass("go vet", 0)
	}
}

func hasGoFiles(dir string) bool {
	files, err := goFiles(dir)
	return err == nil && len(files) > 0
}

// waitFirst are packages whose tests take longest and mostly wait. They are started first, so that
// others have the processors meanwhile.
var waitFirst = []string{"./kernel", "./trees/named/member", "./trees/s3/remote", "./apps/mr"}

// unitPackages is how many packages are compiled and tested at a time. It is more than there are
// processors, because some tests wait.
const unitPackages = "4"

func runUnit(ctx context.Context, r *recorder) {
	runGoTest(ctx, r, slices.Concat([]string{"-p", unitPackages, "-timeout", packageTimeout}, waitFirst,
		[]string{"./..."})...)
}

// runGoTest runs go test -json with args and records its tests. It does not vet: the part of that
// name does so for all packages, with more checks.
func runGoTest(ctx context.Context, r *recorder, args ...string) {
	before := r.count()
	argv := slices.Concat([]string{"go", "test", "-json", "-vet=off"}, goFlags, args)
	err := command{argv: argv, env: goEnv, charge: r.charge}.run(ctx, newGoParser(r, goModule).parse)
	// The go command exits with 1 for what was counted already; anything else must not pass in
	// silence.
	if err != nil && ctx.Err() == nil && r.count().Failed == before.Failed {
		r.fail("go test", err.Error())
	}
}

func runRust(ctx context.Context, r *recorder) {
	if _, err := os.Stat("launcher/Cargo.toml"); err != nil {
		r.fail("cargo test", "launcher/Cargo.toml is missing")
		return
	}
	var output string
	var failed int
	err := cargoTest("--no-fail-fast", r.charge).run(ctx, func(in io.Reader) { output, failed = parseCargo(r, in) })
	switch {
	case err != nil && failed == 0:
		r.fail("cargo test", output+err.Error())
	case failed > 0:
		r.say("output of cargo test:\n%s", output)
	}
}

// buildRust compiles what runRust runs.
func buildRust(ctx context.Context) { cargoTest("--no-run", nil).output(ctx) }

func cargoTest(flag string, charge func(time.Duration)) command {
	return command{argv: []string{"cargo", "test", "--release", "--locked", "--color", "never", flag}, dir: "launcher",
		charge: charge}
}

// systemPackages are those of test/, in the order in which they are started: those that take
// longest first. What is not named comes after them.
var systemPackages = []string{"./test/cluster", "./test/machine", "./test/walks", "./test/reference", "./test/mount",
	"./test/..."}

// How many system packages are tested at a time, and how many tests of one that say so. All mostly
// wait.
const (
	systemAtOnce = "3"
	testsAtOnce  = "2"
)

// testsAlone are the system tests that compare times or shares of processors, all in packagesAlone.
// They run when nothing else does.
var (
	testsAlone = []string{"TestBestEffortStandsAside", "TestChaos", "TestLatencyCriticalWeighsItsReservation",
		"TestMoveInterruption", "TestPaperBestEffortUsesReservedProcessorsThatAreIdle",
		"TestOutagesAreTold", "TestPaperNetworkPriority", "TestPolicyEverywhere", "TestSharesAndLatencyBesideLoad",
		"TestSimPredictsWaits"}
	packagesAlone = []string{"./test/cluster", "./test/fleet", "./test/kv", "./test/machine"}
)

func namesAlone() string { return "^(" + strings.Join(testsAlone, "|") + ")$" }

// runSystem runs the tests that make procs, but those of testsAlone.
func runSystem(ctx context.Context, r *recorder) {
	if !hasGoFiles("test") {
		r.fail("system tests", "there are no tests in test/")
		return
	}
	runAsRoot(ctx, r, slices.Concat([]string{"-p", systemAtOnce, "-skip", namesAlone()}, systemPackages)...)
}

// runAlone runs testsAlone, one after the other.
func runAlone(ctx context.Context, r *recorder) {
	runAsRoot(ctx, r, slices.Concat([]string{"-p", "1", "-run", namesAlone()}, packagesAlone)...)
}

// runAsRoot runs system tests. As root they run directly; else they are compiled as this user and
// only the test programs are run by sudo, so that no build cache gets files of root.
func runAsRoot(ctx context.Context, r *recorder, args ...string) {
	all := []string{"-tags", "system", "-count", "1", "-parallel", testsAtOnce, "-timeout", systemTimeout}
	if os.Geteuid() != 0 {
		if err := askSudo(ctx); err != nil {
			r.fail("system tests", "could not run: "+err.Error())
			return
		}
		all = append(all, "-exec", "sudo -n -E env PATH="+os.Getenv("PATH"))
	}
	runGoTest(ctx, r, append(all, args...)...)
}

// askSudo makes sudo ready to be used without a question; it may ask for a password now, at a
// terminal.
func askSudo(ctx context.Context) error {
	sudo, err := exec.LookPath("sudo")
	if err != nil {
		return errors.New("these tests make procs, which needs root: run make test as root, or install sudo")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := []string{"-n", "true"}
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("CI") == "" {
		args = []string{"-v"}
	}
	cmd := exec.CommandContext(ctx, sudo, args...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	if err := cmd.Run(); err != nil {
		return errors.New("these tests make procs, which needs root, and sudo refused: run make test as root")
	}
	return nil
}
