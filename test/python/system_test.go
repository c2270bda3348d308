//go:build system

package python

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// most is how long all of the script takes at most.
const most = 2 * time.Minute

// Goal: the Python SDK does against a running system what its reference says, plain and by asyncio:
// files, watches, leases, elections with fences, procs, endpoints, calls. It goes on when sigmad is
// killed, and makes each change once.
func TestWhole(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{}) // epochs that it leaves would be in its own way
	ctx, cancel := context.WithTimeout(t.Context(), most*testenv.Slow())
	defer cancel()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	args := []string{"testdata/whole.py", s.Socket()}
	for _, source := range []string{"testdata/kv", "../../examples/server", "../../examples/function"} {
		args = append(args, s.Install(ctx, t, c, shared.Program(t, source)))
	}
	cmd := script(ctx, t, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); line {
		case "KILL":
			s.Kill9(t, "sigmad")
			fmt.Fprintln(in, "killed")
		case "DONE":
			done = true
		default:
			t.Log(line)
		}
	}
	if err := cmd.Wait(); err != nil || !done {
		t.Fatalf("%v\n%s", err, errs.String())
	}
}

// Goal: sigmaos.open() works by descriptor 3, as in a proc.
func TestOpen(t *testing.T) {
	s := shared.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), most*testenv.Slow())
	defer cancel()
	conn, err := sdk.Dial(ctx, s.Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := script(ctx, t, "-c", "import sigmaos\nc = sigmaos.open()\nc.put('/opened', 'x')\n"+
		"print(c.get('/opened').decode())\nc.remove('/opened')")
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "x\n" {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Goal: the code of the guide runs as it stands there.
func TestGuide(t *testing.T) {
	s := shared.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), most*testenv.Slow())
	defer cancel()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	s.Install(ctx, t, c, shared.Program(t, "../../examples/function"))
	server := s.Install(ctx, t, c, shared.Program(t, "../../examples/server"))
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: server, Args: []string{"/web"}, Start: sigma.StartedByCall})
	if err == nil {
		err = c.WaitStart(ctx, ids[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill(ctx, ids[0])
	var code strings.Builder
	for _, block := range blocks(t, "../../docs/guide/python.md") {
		code.WriteString(block + "\n")
	}
	cmd := script(ctx, t, "-c", code.String())
	cmd.Env = append(cmd.Env, "SIGMA_DATA="+s.DataDir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// script prepares Python with the SDK on its path. It writes no compiled files.
func script(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, interpreter, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1", "SIGMA_DATA=",
		"SIGMA_CREDENTIAL=", "SIGMA_REALM=", "SIGMA_ADDR=")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
