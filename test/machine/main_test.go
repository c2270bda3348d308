//go:build system

// Package machine tests one machine from outside, as its users and its enemies find it: a real
// system, booted as root, with real procs. It needs what README lists for make test, and skips with
// the reason where there is no root. The tests share one system (shared) unless they crash it.
package machine

import (
	"context"
	"os"
	"testing"
	"time"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(s3server.Or(func() int { return shared.Main(m) })) }

// testMax bounds one test's dealings with the system.
const testMax = 3 * time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

// program compiles a program of testdata once: "hello.c", "probe.c", "hello.rs", or the directory
// of a Go program.
func program(t *testing.T, source string) string {
	t.Helper()
	return shared.Program(t, "testdata/"+source)
}

const defaultRealm = sigma.DefaultRealm
