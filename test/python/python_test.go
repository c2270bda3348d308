// Package python tests the Python SDK (sdk/python): its unit tests here, and all of it against a
// running system with the build tag system.
package python

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// interpreter is that of Debian's package python3, which scripts/setup installs.
const interpreter = "python3"

var ran = regexp.MustCompile(`(?m)^Ran (\d+) tests? in .*\n\nOK$`)

// Goal: the unit tests of the SDK pass, and none is skipped.
func TestUnits(t *testing.T) {
	cmd := exec.Command(interpreter, "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
	cmd.Dir = "../../sdk/python"
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !ran.Match(out) || ran.FindSubmatch(out)[1][0] == '0' {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Goal: a Go client calls a server in Python: small and long arguments, many at a time, errors.
func TestCallsFromGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(interpreter, "testdata/answer.py", path)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1")
	in, ierr := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	c := call.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}, call.Config{})
	defer c.Close()
	echo := &call.Method{Name: "kv/Echo"}
	for _, n := range []int{0, 1, 128 << 10, 128<<10 + 1, 4 << 20} {
		for range 10 {
			arg := bytes.Repeat([]byte{byte(n), 7}, n/2)
			if got, err := c.Call(t.Context(), echo, arg, nil); err != nil || !bytes.Equal(got, arg) {
				t.Fatalf("%d bytes came back as %d: %v", len(arg), len(got), err)
			}
		}
	}
	args := make([][]byte, 500)
	for i := range args {
		args[i] = []byte{byte(i), byte(i >> 8)}
	}
	for i, a := range c.CallMany(t.Context(), echo, args) {
		if a.Err != nil || !bytes.Equal(a.Reply, args[i]) {
			t.Fatal(i, a)
		}
	}
	_, err := c.Call(t.Context(), &call.Method{Name: "kv/Fail"}, nil, nil)
	if sigma.KindOf(err) != sigma.KindNoSpace || sigma.HintOf(err) != "buy more" {
		t.Error(err)
	}
	_, err = c.Call(t.Context(), &call.Method{Name: "kv/None"}, nil, nil)
	if sigma.KindOf(err) != sigma.KindUnsupported {
		t.Error(err)
	}
}

// blocks gives the Python code of a page.
func blocks(t *testing.T, page string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```") {
		if code, is := strings.CutPrefix(block, "python\n"); is && i%2 == 1 {
			out = append(out, code)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s shows no code", page)
	}
	return out
}
