//go:build system

package mount

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hugelgupf/p9/p9"

	"sigmaos.dev/internal/testenv"
)

// listening runs sigma serve 9p until the test ends and gives where it serves, and the token.
func listening(t *testing.T, s *testenv.System, address string, path ...string) (addr, token string) {
	t.Helper()
	cmd := s.Command(testContext(t), append([]string{"--json", "serve", "9p", "--listen", address}, path...)...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	var said struct{ Address, Token string }
	must(t, json.NewDecoder(bufio.NewReader(out)).Decode(&said))
	return said.Address, said.Token
}

// Goal: diod's tools, of Debian, list and read the tree, through the object store's endpoint too;
// without the token they do not.
func TestDiod(t *testing.T) {
	need(t, "diodls", "diodcat")
	s := shared.Get(t)
	s.Must(t, "mkdir", "/s3/diod")
	defer s.Must(t, "rm", "-r", "/s3/diod")
	local := filepath.Join(t.TempDir(), "o")
	must(t, os.WriteFile(local, bytes.Repeat([]byte("0123456789"), 50_000), 0o644))
	s.Must(t, "put", local, "/s3/diod/o")
	addr, token := listening(t, s, "127.0.0.1:0")
	if got := run(t, "/", "diodls", "-s", addr, "-a", token, "s3/diod"); got != "o\n" {
		t.Errorf("diodls prints %q", got)
	}
	if got := run(t, "/", "diodcat", "-s", addr, "-a", token, "s3/diod/o"); len(got) != 500_000 {
		t.Errorf("diodcat prints %d bytes", len(got))
	}
	for _, wrong := range []string{"default", "/", token[1:], token + "x", ""} {
		if out, err := exec.CommandContext(testContext(t), "diodls", "-s", addr, "-a", wrong, "-u", "0",
			"s3").CombinedOutput(); err == nil {
			t.Errorf("without the token, as %q, it prints %q", wrong, out)
		}
	}
}

// attached connects with the client library of another project.
func attached(t *testing.T, network, addr, aname string) (p9.File, error) {
	t.Helper()
	c, err := net.Dial(network, addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	client, err := p9.NewClient(c)
	if err != nil {
		return nil, err
	}
	return client.Attach(aname)
}

// Goal: a stock client library lists, reads and writes. What name it attaches by means nothing on
// the socket, which is its owner's alone; a path that is served bounds what is seen; and hostile
// clients end alone.
func TestClientLibrary(t *testing.T) {
	s := shared.Get(t)
	s.Must(t, "mkdir", "-p", "/ux/~local/served")
	defer s.Must(t, "rm", "-r", "/ux/~local/served")
	socket := filepath.Join(t.TempDir(), "9p.sock")
	listening(t, s, "unix:"+socket, "/ux/~local/served")
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", st.Mode(), err)
	}
	root, err := attached(t, "unix", socket, "some/realm")
	must(t, err)
	_, f, err := root.Walk(nil)
	must(t, err)
	_, _, _, err = f.Create("f", p9.ReadWrite, 0o600, 0, 0)
	must(t, err)
	data := bytes.Repeat([]byte("abcdefgh"), 40_000)
	for off := 0; off < len(data); {
		n, err := f.WriteAt(data[off:], int64(off))
		must(t, err)
		off += n
	}
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v, wrote %d", len(got), err, len(data))
	}
	must(t, f.Close())
	if out := s.Must(t, "cat", "/ux/~local/served/f"); out != string(data) {
		t.Errorf("the realm has %d bytes", len(out))
	}
	_, d, err := root.Walk(nil)
	must(t, err)
	_, _, err = d.Open(p9.ReadOnly)
	must(t, err)
	es, err := d.Readdir(0, 1<<16)
	if err != nil || len(es) != 1 || es[0].Name != "f" {
		t.Errorf("listed %v, %v", es, err)
	}
	for _, up := range [][]string{{".."}, {"..", ".."}, {"/etc"}} {
		if _, f, err := root.Walk(up); err == nil {
			t.Errorf("walked %q to %v", up, f)
		}
	}
	for _, junk := range []string{"\xff\xff\xff\xff", "\x07\x00\x00\x00\x64\x00\x00",
		strings.Repeat("GET / HTTP/1.1\r\n", 100)} {
		c, err := net.Dial("unix", socket)
		must(t, err)
		_, err = io.WriteString(c, junk)
		must(t, err)
		io.Copy(io.Discard, c) // it is hung up on
		c.Close()
	}
	if _, _, _, err := root.GetAttr(p9.AttrMaskAll); err != nil {
		t.Errorf("after others' junk: %v", err)
	}
}

// Goal: strangers keep no client of the token out, nor reach sigmad: not by more silent connections
// than are served at once, nor by ones that begin and do not attach. Who has attached goes on.
func TestStrangersOfServe(t *testing.T) {
	s := shared.Get(t)
	addr, token := listening(t, s, "127.0.0.1:0")
	first, err := attached(t, "tcp", addr, token)
	must(t, err)
	for i := range 200 {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		if i%2 == 0 {
			_, err = io.WriteString(c, "\x13\x00\x00\x00\x64\xff\xff")
			must(t, err)
		}
	}
	for range 3 {
		if _, err := attached(t, "tcp", addr, token); err != nil {
			t.Errorf("beside 200 strangers: %v", err)
		}
	}
	if _, err := attached(t, "tcp", addr, token+"x"); err == nil {
		t.Error("a stranger attaches")
	}
	if _, _, _, err := first.GetAttr(p9.AttrMaskAll); err != nil {
		t.Errorf("who had attached: %v", err)
	}
}
