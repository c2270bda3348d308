package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Shared is one system for all tests of a package, booted when the first asks. Its zero value boots
// with default options.
//
//	var machine testenv.Shared
//
//	func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }
//
//	func TestSomething(t *testing.T) { s := machine.Get(t); ... }
type Shared struct {
	Options Options

	mu     sync.Mutex
	system *System           // mu
	err    error             // mu
	up     bool              // mu
	built  map[string]string // mu; by source
}

// Get returns the system, in a running state. The test must leave it as it found it.
func (x *Shared) Get(tb testing.TB) *System {
	tb.Helper()
	RequireRoot(tb)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.makeLocked()
	if x.err == nil && !x.up {
		x.err = x.system.up()
		x.up = true
	}
	if x.err != nil {
		tb.Fatal(x.err)
	}
	if !x.system.Running() {
		tb.Fatalf("the shared system has died in an earlier test; end of its log:\n%s", x.system.LogTail(40))
	}
	return x.system
}

// Program compiles a source at its first use and returns the program's path: a .c or .rs file, or
// the directory of a Go program. The programs live as long as the tests.
func (x *Shared) Program(tb testing.TB, source string) string {
	tb.Helper()
	RequireRoot(tb)
	x.mu.Lock()
	defer x.mu.Unlock()
	if path := x.built[source]; path != "" {
		return path
	}
	x.makeLocked()
	if x.err != nil {
		tb.Fatal(x.err)
	}
	dir := filepath.Join(filepath.Dir(x.system.DataDir), "programs") // where the guardian removes it too
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	var path string
	switch filepath.Ext(source) {
	case ".c":
		path = BuildC(tb, dir, source)
	case ".rs":
		path = BuildRust(tb, dir, source)
	default:
		path = BuildGo(tb, dir, source)
	}
	x.built[source] = path
	return path
}

// makeLocked prepares the system without booting it.
func (x *Shared) makeLocked() {
	if x.system == nil && x.err == nil {
		x.system, x.err = newSystem(x.Options)
		x.built = map[string]string{}
	}
}

// Main runs the tests, takes the system down, counts what is left on the host and returns the exit
// code.
func (x *Shared) Main(m *testing.M) int {
	code := m.Run()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.system == nil {
		return code
	}
	if code != 0 && x.up {
		fmt.Fprintf(os.Stderr, "end of %s:\n%s\n", filepath.Join(x.system.DataDir, "sigma.log"), x.system.LogTail(60))
	}
	if err := x.system.close(); err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: after all tests: %v\n", err)
		code = max(code, 1)
	}
	return code
}
