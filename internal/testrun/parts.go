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

// packageTimeout is what one package's tests may take; the go command then prints where every goroutine stands.
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

func runVet(ctx context.Context, r *recorder) {
	vets := [][]string{{"go", "vet", "./..."}}
	if hasGoFiles("test") {
		vets = append(vets, []string{"go", "vet", "-tags", "system", "./test/..."})
	}
	for _, argv := range vets {
		name := strings.Join(argv, " ")
		if out, err := (command{argv: argv}).output(ctx); err != nil {
			r.fail(name, out+err.Error())
		} else {
			r.pass(name, 0)
		}
	}
}

func hasGoFiles(dir string) bool {
	files, err := goFiles(dir)
	return err == nil && len(files) > 0
}

// waitFirst are packages whose tests take longest and mostly wait. They are started first, so that others have the processors meanwhile.
var waitFirst = []string{"./named", "./kernel", "./s3/remote"}

func runUnit(ctx context.Context, r *recorder) {
	runGoTest(ctx, r, slices.Concat([]string{"-timeout", packageTimeout}, waitFirst, []string{"./..."})...)
}

// runGoTest runs go test -json with args and records its tests. It does not vet: the part of that name does so for all packages, with more checks.
func runGoTest(ctx context.Context, r *recorder, args ...string) {
	before := r.tally.count()
	err := command{argv: append([]string{"go", "test", "-json", "-vet=off"}, args...)}.run(ctx, newGoParser(r, goModule).parse)
	// The go command exits with 1 for what was counted already; anything else must not pass in silence.
	if err != nil && ctx.Err() == nil && r.tally.count().Failed == before.Failed {
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
	err := cargoTest("--no-fail-fast").run(ctx, func(in io.Reader) { output, failed = parseCargo(r, in) })
	switch {
	case err != nil && failed == 0:
		r.fail("cargo test", output+err.Error())
	case failed > 0:
		r.say("output of cargo test:\n%s", output)
	}
}

// buildRust compiles what runRust runs.
func buildRust(ctx context.Context) { cargoTest("--no-run").output(ctx) }

func cargoTest(flag string) command {
	return command{argv: []string{"cargo", "test", "--release", "--locked", "--color", "never", flag}, dir: "launcher"}
}

// runSystem runs the tests that make procs. As root they run directly; else they are compiled as this user and only the test programs are run by sudo, so that
// no build cache gets files of root.
func runSystem(ctx context.Context, r *recorder) {
	if !hasGoFiles("test") {
		r.fail("system tests", "there are no tests in test/")
		return
	}
	args := []string{"-tags", "system", "-count", "1", "-p", "1", "-parallel", "2", "-timeout", systemTimeout}
	if os.Geteuid() != 0 {
		if err := askSudo(ctx); err != nil {
			r.fail("system tests", "could not run: "+err.Error())
			return
		}
		args = append(args, "-exec", "sudo -n -E env PATH="+os.Getenv("PATH"))
	}
	runGoTest(ctx, r, append(args, "./test/...")...)
}

// askSudo makes sudo ready to be used without a question; it may ask for a password now, at a terminal.
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
