package bench

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed programs/start.c
var startSource string

//go:embed programs/hello/main.go
var goSource string

//go:embed programs/python.c
var pythonSource string

//go:embed programs/python.py
var pythonModules string

// language is a way to write a program that prints the clock at its first line.
type language struct {
	name  string
	build func(r *Run, ctx context.Context) (local string, err error)
}

// languages beside C. Each program is static, so that all arms start the same file.
func languages() []language {
	return []language{{"go", (*Run).buildGo}, {"python", (*Run).buildPython}}
}

// buildStart compiles programs/start.c and returns where it is.
func (r *Run) buildStart(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "start")
	if err := os.WriteFile(local+".c", []byte(startSource), 0o644); err != nil {
		return "", err
	}
	return local, r.make(ctx, "cc", "-static", "-O2", "-o", local, local+".c")
}

func (r *Run) buildGo(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "hello-go")
	source := local + ".go"
	if err := os.WriteFile(source, []byte(goSource), 0o644); err != nil {
		return "", err
	}
	return local, r.make(ctx, "go", "build", "-trimpath", "-o", local, source)
}

// buildPython links CPython's own library statically. No Debian package has a static interpreter;
// the library is in libpython3-dev, and where Python was built from source.
func (r *Run) buildPython(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "hello-python")
	if err := os.WriteFile(local+".c", []byte(pythonSource), 0o644); err != nil {
		return "", err
	}
	var failed error
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		frozen, err := exec.CommandContext(ctx, python, "-c", pythonModules).Output()
		if err != nil {
			failed = fmt.Errorf("%s: %w", python, err)
			continue
		}
		flags := strings.Fields(string(frozen[strings.LastIndex(string(frozen), "// ")+3:]))
		if err := os.WriteFile(filepath.Join(r.dir, "frozen.h"), frozen, 0o644); err != nil {
			return "", err
		}
		args := append([]string{"-static", "-O1", "-w", flags[0], "-o", local, local + ".c"}, flags[1:]...)
		if failed = r.make(ctx, "cc", append(args, "-lm", "-ldl", "-lpthread", "-lutil", "-lz",
			"-lexpat")...); failed == nil {
			return local, nil
		}
	}
	return "", failed
}

// make runs a compiler.
func (r *Run) make(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("cannot build %s: %w: %.300s", filepath.Base(args[len(args)-1]), err, lines[len(lines)-1])
	}
	return nil
}
