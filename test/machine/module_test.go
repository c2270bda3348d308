//go:build system

package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// outside is a program of somebody else's module: it stores a file, runs a program and reads its
// output.
const outside = `package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err, sigma.HintOf(err))
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := sdk.Connect(ctx, os.Args[1], "default")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Put(ctx, "/from-outside", []byte("kept"), sigma.PutOptions{}); err != nil {
		return err
	}
	defer c.Remove(ctx, "/from-outside")
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: os.Args[2]})
	if err != nil {
		return err
	}
	st, err := c.WaitExit(ctx, ids[0])
	if err != nil {
		return err
	}
	out, _, err := c.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	if err != nil {
		return err
	}
	kept, _, err := c.Get(ctx, "/from-outside")
	fmt.Printf("%v %d %q %q\n", st.Code, st.ExitCode, out, kept)
	return err
}
`

// The SDK is used from a module that is not ours, as docs/guide says: with a replace directive,
// needing nothing that go.sum of this repository does not have.
func TestSDKFromOutside(t *testing.T) {
	r := connect(t, defaultRealm)
	hello := r.descriptor("hello.c").Program
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	version, sys := "", ""
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		switch f := strings.Fields(line); {
		case len(f) < 2:
		case f[0] == "go":
			version = f[1]
		case f[0] == "golang.org/x/sys":
			sys = f[1]
		}
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main.go": outside,
		"go.sum":  string(sum),
		"go.mod": fmt.Sprintf(
			"module example.com/outside\n\ngo %s\n\nrequire sigmaos.dev v0.0.0\n\nrequire golang.org/x/sys %s // "+
				"indirect\n\nreplace sigmaos.dev => %s\n",
			version, sys, root),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := testenv.BuildGo(t, t.TempDir(), dir)
	got := testenv.Output(t, out, r.s.Socket(), hello)
	if want := "ok 0 \"hello\\n\" \"kept\"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || strings.Count(string(got), "require") != 2 {
		t.Errorf("the module needed more: %s", got)
	}
}
