package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// staticProgram makes a file that run takes for a program.
func staticProgram(t *testing.T, name string) string {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, elfImage(elfOptions{}), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

type elfOptions struct {
	machine, kind uint16 // default: EM_X86_64, ET_EXEC
	interp        bool
}

// elfImage makes an ELF file with one or two program headers, enough for all that run looks at.
func elfImage(o elfOptions) []byte {
	if o.machine == 0 {
		o.machine = 62
	}
	if o.kind == 0 {
		o.kind = 2
	}
	phnum := 1
	if o.interp {
		phnum = 2
	}
	b := make([]byte, 64+56*2+16)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], o.kind)
	le.PutUint16(b[18:], o.machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], 0x400000)
	le.PutUint64(b[32:], 64)
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], uint16(phnum))
	le.PutUint16(b[58:], 64)
	le.PutUint32(b[64:], 1) // PT_LOAD
	le.PutUint32(b[64+56:], 3)
	copy(b[64+112:], "/lib/ld.so\x00")
	le.PutUint64(b[64+56+8:], 64+112)
	le.PutUint64(b[64+56+32:], 11)
	return b
}

func want(t *testing.T, got result, code int, out, errPart string) {
	t.Helper()
	if got.code != code || got.out != out || !strings.Contains(got.err, errPart) || errPart == "" && got.err != "" {
		t.Errorf("got code %d, stdout %q, stderr %q; want %d, %q, and stderr with %q", got.code, got.out, got.err, code,
			out, errPart)
	}
}

// A run stores the program once, passes what was asked for, shows both streams and ends with the
// proc's code.
func TestRun(t *testing.T) {
	f := newFake(t)
	program := staticProgram(t, "hello")
	f.behave(func(_ context.Context, p *fakeProc) sigma.Status {
		p.write("stdout", strings.Join(p.Args, " "))
		p.write("stderr", strings.Join(p.Env, " "))
		return sigma.Status{Code: sigma.StatusError, ExitCode: 7}
	})
	want(t, f.sigma("run", "--name", "n", "-e", "A=1", "--env", "B=", "-m", "128M", program, "-x", "--json"), 7,
		"-x --json", "A=1 B=")
	p := f.spawned()[0]
	if p.Name != "n" || p.Memory != 128*sigma.MiB || !strings.HasPrefix(p.Program, "/bin/hello-") ||
		len(p.Program) != len("/bin/hello-")+12 {
		t.Errorf("spawned %+v", p.Descriptor)
	}
	got := f.sigma("cat", p.Program)
	if image, _ := os.ReadFile(program); got.out != string(image) {
		t.Errorf("stored %d bytes, the program has %d", len(got.out), len(image))
	}
	before := f.sigma("stat", "--json", p.Program)
	f.behave(func(context.Context, *fakeProc) sigma.Status { return sigma.Status{Code: sigma.StatusOK} })
	want(t, f.sigma("run", program), 0, "", "")
	if after := f.sigma("stat", "--json", p.Program); after != before {
		t.Errorf("the program was stored again: %v, then %v", before.out, after.out)
	}
	want(t, f.sigma("run", p.Program), 0, "", "")
	want(t, f.sigma("run", strings.TrimPrefix(p.Program, "/bin/")), 0, "", "")
}

// Output that comes bit by bit is shown while the proc runs, and all of it.
func TestRunStreams(t *testing.T) {
	f := newFake(t)
	shown := make(shownBytes, 1000)
	f.behave(func(ctx context.Context, p *fakeProc) sigma.Status {
		for i := range 5 {
			p.write("stdout", strings.Repeat(string(rune('a'+i)), 70_000))
			for n := 0; n < 70_000; n += <-shown { // a run that does not show it makes the test time out here
			}
		}
		p.write("stdout", "the end")
		return sigma.Status{Code: sigma.StatusOK}
	})
	a := &cli.App{Groups: groups, Out: shown, Err: shown, Getenv: func(string) string { return "" }}
	if code := a.Execute(t.Context(), []string{"--addr", f.addr, "run", staticProgram(t, "p")}); code != 0 ||
		len(shown) != 1 {
		t.Errorf("code %d, %d writes after the last that was waited for", code, len(shown))
	}
}

// shownBytes is a writer that tells how much was written.
type shownBytes chan int

func (s shownBytes) Write(p []byte) (int, error) {
	s <- len(p)
	return len(p), nil
}

// How a proc ended decides the exit code (docs/reference/sigma.md).
func TestRunCodes(t *testing.T) {
	f := newFake(t)
	program := staticProgram(t, "p")
	for _, c := range []struct {
		st   sigma.Status
		code int
		err  string
	}{
		{sigma.Status{Code: sigma.StatusOK, ExitCode: 3}, 0, ""},
		{sigma.Status{Code: sigma.StatusError, ExitCode: 3}, 3, ""},
		{sigma.Status{Code: sigma.StatusError, Msg: "the answer is wrong"}, 1, "the answer is wrong"},
		{sigma.Status{Code: sigma.StatusError, Kind: sigma.KindNoExec, Msg: "bad magic"}, 126, "bad magic"},
		{sigma.Status{Code: sigma.StatusError, Kind: sigma.KindNotFound}, 127, "not found"},
		{sigma.Status{Code: sigma.StatusError, Kind: sigma.KindNoSpace}, 125, "no space"},
		{sigma.Status{Code: sigma.StatusEvicted, ExitCode: 143}, 143, "evicted (terminated)"},
		{sigma.Status{Code: sigma.StatusCrashed, ExitCode: 134}, 134, "crashed (aborted)"},
		{sigma.Status{Code: sigma.StatusOOM, ExitCode: 137}, 137, "memory"},
		{sigma.Status{Code: sigma.StatusLost}, 125, "lost"},
	} {
		f.behave(func(context.Context, *fakeProc) sigma.Status { return c.st })
		want(t, f.sigma("run", program), c.code, "", c.err)
	}
}

// What is wrong with a program is said with what to do, before anything is stored, with docker's
// codes.
func TestRunBadPrograms(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	file := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o755); err != nil {
		t.Fatal(err)
	}
	good := elfImage(elfOptions{})
	for _, c := range []struct {
		program string
		code    int
		err     string
	}{
		{filepath.Join(dir, "missing"), 127, "no such file"},
		{"missing-word", 127, "/bin"},
		{"./missing/x", 127, "no such file"},
		{"", 2, "empty"},
		{"./" + strings.Repeat("x", 10<<20), 127, "file name too long"},
		{"/" + strings.Repeat("x/", 5<<20), 127, "longer than 4096"},
		{strings.Repeat("x", 10<<20), 127, "longer than 255"},
		{"/bin/../x", 127, `contains ".."`},
		{file("plain", good, 0o644), 126, "hint: if it is a program: chmod +x"},
		{file("empty", nil, 0o755), 126, "empty"},
		{file("text", []byte("hello"), 0o755), 126, "not an ELF"},
		{file("script", []byte("#!/bin/sh\n"), 0o755), 126, "script"},
		{file("cut", good[:40], 0o755), 126, "damaged"},
		{file("arm", elfImage(elfOptions{machine: 183}), 0o755), 126, "arm64"},
		{file("dynamic", elfImage(elfOptions{interp: true}), 0o755), 126, "hint: link it statically"},
		{file("object", elfImage(elfOptions{kind: 1}), 0o755), 126, "not an executable"},
		{fifo, 126, "not a regular file"},
		{"./.", 126, "directory"},
	} {
		got := f.sigma("run", c.program)
		got.err = strings.ReplaceAll(got.err, dir, "DIR")
		if got.code != c.code || !strings.Contains(got.err, c.err) || len(got.err) > 1000 {
			t.Errorf("run %.50q: code %d, stderr %.300q; want %d and %q", c.program, got.code, got.err, c.code, c.err)
		}
	}
	want(t, f.sigma("run", "--near", "ux", file("hello", good, 0o755)), 2, "", "does not start with /")
	want(t, f.sigma("run", "--near", "/ux/nosuch/x", file("hello", good, 0o755)), 125, "",
		`there is no machine "nosuch"`)
	want(t, f.sigma("ls", "/bin"), 0, "", "")
	if n := len(f.spawned()); n != 0 {
		t.Errorf("%d procs were spawned", n)
	}
}

// The first ^C gives notice with a second of grace, the second one kills; the exit code is the
// signal's.
func TestRunInterrupted(t *testing.T) {
	f := newFake(t)
	program := staticProgram(t, "p")
	graces := make(chan time.Duration, 1)
	f.behave(func(ctx context.Context, p *fakeProc) sigma.Status {
		interrupt(t, syscall.SIGINT)
		graces <- <-p.notice
		interrupt(t, syscall.SIGTERM)
		<-ctx.Done()
		p.write("stdout", "bye")
		return sigma.Status{Code: sigma.StatusEvicted, ExitCode: 137}
	})
	want(t, f.sigma("run", program), 130, "bye", "")
	if g := <-graces; g != time.Second {
		t.Errorf("grace %v", g)
	}
}

func TestRunDetached(t *testing.T) {
	f := newFake(t)
	f.behave(func(ctx context.Context, p *fakeProc) sigma.Status {
		p.write("stdout", "out")
		p.write("stderr", "err")
		select {
		case g := <-p.notice:
			return sigma.Status{Code: sigma.StatusEvicted, ExitCode: 143, Msg: g.String()}
		case <-ctx.Done():
			return sigma.Status{Code: sigma.StatusEvicted, ExitCode: 137}
		}
	})
	program := staticProgram(t, "p")
	first := strings.TrimSpace(f.sigma("run", "-d", "--name", "first", program).out)
	var second struct{ ID string }
	if err := json.Unmarshal([]byte(f.sigma("run", "-d", "--name", "second", "--json", program).out),
		&second); err != nil {
		t.Fatal(err)
	}
	want(t, f.sigma("ps", "-q"), 0, first+"\n"+second.ID+"\n", "")
	want(t, f.sigma("logs", "first"), 0, "out", "err")
	want(t, f.sigma("logs", "--stdout", first[:8]), 0, "out", "")
	want(t, f.sigma("kill", "nobody"), 1, "", "no proc has the id or name")
	want(t, f.sigma("evict", "--grace", "5s", "first"), 0, first+"\n", "")
	want(t, f.sigma("wait", "first"), 143, first+" evicted (terminated)\n", "")
	want(t, f.sigma("kill", second.ID[:6]), 0, second.ID+"\n", "")
	want(t, f.sigma("wait", second.ID), 137, second.ID+" evicted (killed)\n", "")
	want(t, f.sigma("logs", "-f", "--stderr", "second"), 0, "", "err")
	want(t, f.sigma("ps", "-q"), 0, "", "")
	var list []report.Proc
	if err := json.Unmarshal([]byte(f.sigma("ps", "-a", "--json").out), &list); err != nil || len(list) != 2 ||
		list[0].Status.ExitCode != 143 || list[0].Status.Message != "5s" {
		t.Errorf("ps -a --json: %v %+v", err, list)
	}
	if got := f.sigma("inspect", "first"); !strings.Contains(got.out, "evicted (terminated)") {
		t.Errorf("inspect: %+v", got)
	}
	if got := f.sigma("ps", "-a"); strings.Count(got.out, "\n") != 3 || !strings.Contains(got.out, "evicted (143)") {
		t.Errorf("ps -a: %+v", got)
	}
}
