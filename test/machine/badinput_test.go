//go:build system

package machine

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// unharmed runs f and checks that no daemon died of it and nothing is left.
func unharmed(t *testing.T, s *testenv.System, f func()) {
	t.Helper()
	// The first proc of each class brings sigmad's session to that class's scheduler, which may be
	// made after `up` has returned, and the one to the object store.
	s.Must(t, "run", program(t, "hello.c"))
	s.Must(t, "run", "--lc", "0.01", program(t, "hello.c"))
	before, pids := s.Census(), map[string]int{}
	for _, d := range testenv.Daemons() {
		pids[d] = s.PID(d)
	}
	f()
	for _, d := range testenv.Daemons() {
		if pid := s.PID(d); pid != pids[d] || pid == 0 {
			t.Errorf("%s died: its pid was %d and is %d", d, pids[d], pid)
		}
	}
	if out := s.Must(t, "run", program(t, "hello.c")); out != "hello\n" {
		t.Errorf("run afterwards: %q", out)
	}
	s.NoLeaks(t, before)
}

// Each mistake at the command line is answered by what is wrong and what to do next.
func TestMistakes(t *testing.T) {
	s := shared.Get(t)
	long := strings.Repeat("/x", 10_000)
	for _, c := range []struct {
		args string
		code int
		says string
		hint bool
	}{
		{"nosuchcommand", 2, "unknown command", true},
		{"rnu ./x", 2, "unknown command", true},
		{"ls --nosuchflag", 2, "unknown flag", true},
		{"run --memmory 5 x", 2, "unknown flag", true},
		{"run", 2, "missing", true},
		{"run --lc 0 x", 2, "no number of cores", true},
		{"run --lc -1 x", 2, "no number of cores", true},
		{"run --lc 1e9 x", 2, "no number of cores", true},
		{"init add web", 2, "missing", true},
		{"init add ../web /bin/x", 2, "cannot be the name", true},
		{"init add --restart sometimes web /bin/x", 2, "when to start again", true},
		{"init rm nosuchname", 1, "no registered proc", true},
		{"events --cursor-file /dev/stdin/x", 1, "", false},
		{"-r nosuchrealm ls /", 1, "no realm", true},
		{"-r BAD_REALM ls /", 2, "not a realm name", true},
		{"realm create 9lives", 2, "not a realm name", true},
		{"realm create system", 1, "already", true},
		{"realm create default", 1, "already", true},
		{"realm rm default", 1, "belongs to every system", true},
		{"realm rm nosuchrealm", 1, "no realm", true},
		{"ls /no/such/dir", 1, "not found", false},
		{"cat /no/such/file", 1, "not found", false},
		{"cat /ux", 1, "is a directory", false},
		{"get /no/such /tmp/x", 1, "not found", false},
		{"put /no/such/local /x", 1, "no such file", false},
		{"rm /proc", 1, "", false},
		{"rm -r /", 1, "", false},
		{"mkdir /sys/new", 1, "", false},
		{"mkdir /a/../b", 2, "..", true},
		{"cat /a/./b", 2, ".", true},
		{"cat " + long, 2, "longer than", false},
		{"cat /" + strings.Repeat("n", 300), 2, "255", false},
		{"wait nosuchproc", 1, "no proc", true},
		{"kill 1", 1, "", true},
		{"logs nosuchproc", 1, "no proc", true},
		{"evict --grace -5s x", 2, "negative", true},
		{"--addr /tmp/no-such.sock ls /", 1, "no sigmaOS answers", true},
		{"--data /no/such/dir ls /", 1, "no sigmaOS answers", true},
		{"up --data /dev/null", 1, "is a file", true},
		{"up --data /etc", 1, "not sigmaOS's", true},
		{"up --machine BAD", 2, "machine", true},
	} {
		name := strings.ReplaceAll(c.args[:min(len(c.args), 40)], "/", "_")
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := s.CLI(t, strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(stderr, c.says) || !strings.HasPrefix(stderr, "sigma: ") || c.hint &&
				!strings.Contains(stderr, "hint: ") || len(stderr) > 1000 {
				t.Errorf("got code %d, %q %.1200q; want %d, %q, a hint: %v", code, stdout, stderr, c.code, c.says,
					c.hint)
			}
		})
	}
	unharmed(t, s, func() {})
}

// Programs that cannot run are refused before they are stored, and by the machine if they were
// stored in another way.
func TestBadPrograms(t *testing.T) {
	s := shared.Get(t)
	r := connect(t, defaultRealm)
	good, err := os.ReadFile(program(t, "hello.c"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	dynamic := filepath.Join(dir, "dynamic")
	source, _ := filepath.Abs("testdata/hello.c")
	testenv.BuildDynamicC(t, dynamic, source)
	dynamicBytes, err := os.ReadFile(dynamic)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int, v uint16) []byte {
		b := append([]byte(nil), good...)
		binary.LittleEndian.PutUint16(b[at:], v)
		return b
	}
	if _, err := r.Stat(r.ctx, "/s3/bin"); err != nil { // from here on the client is connected to the object store
		t.Fatal(err)
	}
	unharmed(t, s, func() {
		for _, c := range []struct {
			name string
			data []byte
			says string // by the machine
		}{
			{"empty", nil, "not a program"},
			{"text", []byte("just some words, and a few more of them"), "ELF"},
			{"script", []byte("#!/bin/sh\necho hello\n"), "script"},
			{"arm64", changed(18, 183), "built for"},
			{"i386", changed(18, 3), "built for"},
			{"object", changed(16, 1), "not an executable"},
			{"truncated", good[:200], ""},
			{"headonly", good[:4], "damaged"},
			{"garbage", append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 5000)...), ""},
			{"dynamic", dynamicBytes, "dynamically linked"},
			{"nocode", append(append([]byte(nil), good[:4096]...), make([]byte, 4096)...), ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				path := filepath.Join(dir, "bad-"+c.name)
				if err := os.WriteFile(path, c.data, 0o755); err != nil {
					t.Fatal(err)
				}
				if c.name != "nocode" { // what is inside its segments only the kernel sees
					_, stderr, code := s.CLI(t, "run", path)
					if code != 126 || !strings.HasPrefix(stderr, "sigma: ") {
						t.Errorf("run: code %d, %q, want 126", code, stderr)
					}
				}
				r := *r
				r.t = t
				if _, err := r.Put(r.ctx, "/bin/bad-"+c.name, c.data, sigma.PutOptions{Perm: 0o755}); err != nil {
					t.Fatal(err)
				}
				defer r.Remove(r.ctx, "/bin/bad-"+c.name)
				id := r.spawn(sigma.Descriptor{Program: "/bin/bad-" + c.name})[0]
				st := r.wait(id)
				if c.name == "nocode" {
					if st.OK() {
						t.Errorf("status %+v", st)
					}
					return
				}
				if st.Code != sigma.StatusError || st.ExitCode != 126 || st.Kind != sigma.KindNoExec ||
					!strings.Contains(st.Msg, c.says) {
					t.Errorf("status %+v, want 126 with %q", st, c.says)
				}
			})
		}
	})
}

// Descriptors and paths that the CLI would not make.
func TestBadRequests(t *testing.T) {
	r := connect(t, defaultRealm)
	program := r.descriptor("probe.c").Program
	huge := strings.Repeat("/0123456789", 1_000_000)
	unharmed(t, r.s, func() {
		for _, path := range []string{"", "relative", "/a\x00b", "/a//b", "/a/../b", "/a/./b", huge,
			"/" + strings.Repeat("n", 256)} {
			_, _, err := r.Get(r.ctx, path)
			kindIs(t, "Get", err, sigma.KindInvalid)
			_, err = r.Put(r.ctx, path, nil, sigma.PutOptions{})
			kindIs(t, "Put", err, sigma.KindInvalid)
			_, err = r.Spawn(r.ctx, sigma.Descriptor{Program: path})
			kindIs(t, "Spawn", err, sigma.KindInvalid)
		}
		for what, d := range map[string]sigma.Descriptor{
			"a NUL in an argument":  {Program: program, Args: []string{"a\x00b"}},
			"too little memory":     {Program: program, Memory: 5},
			"too much memory":       {Program: program, Memory: 1 << 62},
			"a long name":           {Program: program, Name: strings.Repeat("n", 65)},
			"a program's directory": {Program: "/bin/../bin/probe"},
		} {
			_, err := r.Spawn(r.ctx, d)
			kindIs(t, what, err, sigma.KindInvalid)
		}
		for what, d := range map[string]sigma.Descriptor{
			"too many arguments":      {Program: program, Args: make([]string, 5000)},
			"too much environment":    {Program: program, Env: []string{"X=" + strings.Repeat("x", sigma.ArgsMax)}},
			"too many bytes of words": {Program: program, Args: []string{strings.Repeat("x", sigma.ArgsMax)}},
		} {
			_, err := r.Spawn(r.ctx, d)
			kindIs(t, what, err, sigma.KindTooBig)
		}
		_, err := r.Spawn(r.ctx, make([]sigma.Descriptor, 2000)...)
		if err == nil {
			t.Error("2000 empty descriptors were accepted")
		}
		for _, path := range []string{"/bin", "/", "/nothing", "/s3", "/proc", "/ux/~local", "/sys/procs",
			"/nothing/in/here"} {
			id := r.spawn(sigma.Descriptor{Program: path})[0]
			if st := r.wait(id); st.Code != sigma.StatusError || st.ExitCode != 126 && st.ExitCode != 127 {
				t.Errorf("program %s: %+v, want 126 or 127", path, st)
			}
		}
		// As much as is allowed goes through.
		id := r.spawn(sigma.Descriptor{Program: program,
			Args: []string{"exit", "9", strings.Repeat("x", sigma.ArgsMax-100)}})[0]
		if st := r.wait(id); st.ExitCode != 9 {
			t.Errorf("large arguments: %+v", st)
		}
	})
}
