//go:build system

package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/sigma"
)

// Nobody gets what no machine has: the request is refused at once, with a reason, and nothing is
// queued for ever.
func TestAbsurdDescriptors(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s)
	x := newTenant(t, s)
	for what, c := range map[string]struct {
		d    sigma.Descriptor
		kind sigma.Kind
	}{
		"a TiB of memory":         {sigma.Descriptor{Memory: 1 << 40}, sigma.KindInvalid},
		"all memory there can be": {sigma.Descriptor{Memory: 1<<64 - 1}, sigma.KindInvalid},
		"memory that is negative": {sigma.Descriptor{Memory: 1 << 63}, sigma.KindInvalid},
		"a byte of memory":        {sigma.Descriptor{Memory: 1}, sigma.KindInvalid},
		"cores for best effort":   {sigma.Descriptor{CPU: 1000}, sigma.KindInvalid},
		"a million cores":         {sigma.Descriptor{CPU: 1_000_000_000}, sigma.KindInvalid},
		"a million reserved cores": {sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 1_000_000_000},
			sigma.KindInvalid},
		"a reservation of nothing": {sigma.Descriptor{Class: sigma.LatencyCritical}, sigma.KindInvalid},
		"a class that is none":     {sigma.Descriptor{Class: 200}, sigma.KindInvalid},
		"a profile that is none":   {sigma.Descriptor{Profile: "root"}, sigma.KindInvalid},
		"the services' profile":    {sigma.Descriptor{Profile: "system"}, sigma.KindPermission},
	} {
		c.d.Program = x.probe
		ids, err := x.Spawn(x.ctx, c.d)
		clear(t, what, err, c.kind)
		if len(ids) > 0 {
			t.Errorf("%s: it is %s", what, ids)
		}
		if _, err := x.Spawn(x.ctx, x.descriptor("exit", "0"), c.d); err == nil {
			t.Errorf("%s: was taken beside another", what)
		}
	}
	for _, flag := range []string{"--memory=-1", "--memory=-64M", "--memory=1e99", "--memory=99999999999T",
		"--memory=NaN", "--memory=0x"} {
		if _, stderr, code := s.CLI(t, "run", flag, shared.Program(t, hello)); code == 0 ||
			!strings.HasPrefix(stderr, "sigma: ") {
			t.Errorf("run %s: code %d, %q", flag, code, stderr)
		}
	}
	if list, err := x.List(x.ctx, false); err != nil || len(list) > 0 {
		t.Errorf("procs of refused requests: %+v, %v", list, err)
	}
	x.works()
}

// A program that is removed or replaced while its proc waits for memory is looked up when the proc
// starts: it is not found, or it is the new one, whole.
func TestProgramChangesBeforeExec(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s)
	x := newTenant(t, s)
	capacity := x.metric("sigma_schedd_memory_capacity_bytes")
	x.running()
	full := x.spawn(sigma.Descriptor{Program: x.probe, Args: []string{"stay"},
		Memory: sigma.Bytes(capacity-16<<20) &^ 0xfffff})[0]
	if err := x.WaitStart(x.ctx, full); err != nil {
		t.Fatal(err)
	}
	first, second := x.read(shared.Program(t, hello)), x.read(shared.Program(t, probe))
	var waiting [3]sigma.ProcID
	for i, name := range []string{"/bin/removed", "/bin/replaced", "/bin/spoilt"} {
		x.put(name, first)
		waiting[i] = x.spawn(sigma.Descriptor{Program: name, Args: []string{"exit", "9"}, Memory: 32 * sigma.MiB})[0]
	}
	if err := x.Remove(x.ctx, "/bin/removed"); err != nil {
		t.Fatal(err)
	}
	x.put("/bin/replaced", second)
	x.put("/bin/spoilt", first[:len(first)/3])
	if err := x.Kill(x.ctx, full); err != nil {
		t.Fatal(err)
	}
	if st := x.wait(waiting[0]); st.Code != sigma.StatusError || st.ExitCode != 127 || st.Kind != sigma.KindNotFound {
		t.Errorf("the removed program: %+v, want 127 and not found", st)
	}
	if st := x.wait(waiting[1]); st.ExitCode != 9 {
		t.Errorf("the replaced program: %+v, want the new one's code 9", st)
	}
	if st := x.wait(waiting[2]); st.Code != sigma.StatusError || st.ExitCode != 126 || st.Kind != sigma.KindNoExec {
		t.Errorf("a third of a program: %+v, want 126 and no program", st)
	}
	x.works()
}

// A program that is replaced again and again while procs of it are spawned is one of its versions
// for each.
func TestProgramReplacedAtOnce(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s)
	x := newTenant(t, s)
	versions := [2][]byte{x.read(shared.Program(t, hello)), x.read(shared.Program(t, probe))}
	const path, rounds, each = "/bin/changing", 20, 3
	var ids []sigma.ProcID
	for i := range rounds {
		x.put(path, versions[i%2])
		ids = append(ids, x.spawn(sigma.Descriptor{Program: path, Args: []string{"exit", "9"}, Memory: 8 * sigma.MiB},
			sigma.Descriptor{Program: path, Args: []string{"exit", "9"}, Memory: 8 * sigma.MiB},
			sigma.Descriptor{Program: path, Args: []string{"exit", "9"}, Memory: 8 * sigma.MiB})...)
	}
	for _, id := range ids {
		switch st := x.wait(id); {
		case st.OK(): // hello
		case st.ExitCode == 9 && st.Kind == 0: // the probe
		default:
			t.Errorf("%s ended as %+v, neither version's way", id, st)
		}
	}
	x.works()
}

// A store that stands still delays who needs it, and nobody else.
func TestStoreStandsStill(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s)
	x := newTenant(t, s)
	x.running()
	x.put("/bin/late", x.read(shared.Program(t, hello)))
	pid := s.PID("s3d")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	late := x.spawn(sigma.Descriptor{Program: "/bin/late", Memory: 8 * sigma.MiB},
		sigma.Descriptor{Program: "/bin/late", Memory: 8 * sigma.MiB})
	// Names and scratch files work meanwhile, and who waits can be told to stop.
	for _, path := range []string{"/still", "/ux/~local/still"} {
		if _, err := x.Put(x.ctx, path, []byte("x"), sigma.PutOptions{}); err != nil {
			t.Errorf("%s while the store stands still: %v", path, err)
		}
		x.Remove(x.ctx, path)
	}
	if err := x.Kill(x.ctx, late[1]); err != nil {
		t.Errorf("kill of a proc whose program has not come: %v", err)
	}
	if st := x.wait(late[1]); st.Code != sigma.StatusEvicted {
		t.Errorf("the killed one ended as %+v", st)
	}
	syscall.Kill(pid, syscall.SIGCONT)
	if st := x.wait(late[0]); !st.OK() {
		t.Errorf("the one that waited ended as %+v", st)
	}
	x.works()
}

// A store that dies while programs are fetched costs those spawns at most, which are told; it comes
// back by itself.
func TestStoreDies(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s, "s3d")
	x := newTenant(t, s)
	x.running()
	program := x.read(shared.Program(t, hello))
	for i := range 3 {
		path := fmt.Sprintf("/bin/dying-%d", i)
		x.put(path, program)
		ids := x.spawn(sigma.Descriptor{Program: path, Memory: 8 * sigma.MiB}, sigma.Descriptor{Program: path,
			Memory: 8 * sigma.MiB})
		s.Kill9(t, "s3d")
		for _, id := range ids {
			if st := x.wait(id); !st.OK() && (!st.Kind.Retryable() && st.Kind != sigma.KindLost || st.Msg == "") {
				t.Errorf("a proc ended as %+v, want well or an error that says to try again", st)
			}
		}
		x.works()
	}
}

// An object of which the disk has lost half is no program, and who spawns it is told; put again it
// runs.
func TestStoreLosesHalf(t *testing.T) {
	s := shared.Get(t)
	unharmed(t, s)
	x := newTenant(t, s)
	x.running()
	program := x.read(shared.Program(t, hello))
	program = append(program, strings.Repeat("the mark of this object", 10)...) // beyond what is executed
	x.put("/bin/halved", program)
	file := find(t, filepath.Join(s.DataDir, "s3d"), int64(len(program)))
	if err := os.Truncate(file, int64(len(program)/2)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if st := x.wait(x.spawn(sigma.Descriptor{Program: "/bin/halved",
			Memory: 8 * sigma.MiB})[0]); st.Code != sigma.StatusError || st.Msg == "" {
			t.Errorf("half a program ended as %+v, want an error", st)
		}
	}
	x.put("/bin/halved", program)
	if st := x.wait(x.spawn(sigma.Descriptor{Program: "/bin/halved", Memory: 8 * sigma.MiB})[0]); !st.OK() {
		t.Errorf("put again it ended as %+v", st)
	}
	x.works()
}

// find finds the one file of a size.
func find(t *testing.T, dir string, size int64) (path string) {
	t.Helper()
	filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && info.Size() == size {
			path = name
		}
		return nil
	})
	if path == "" {
		t.Fatalf("no file of %d bytes is below %s", size, dir)
	}
	return path
}

func (x *tenant) read(local string) []byte {
	x.t.Helper()
	b, err := os.ReadFile(local)
	if err != nil {
		x.t.Fatal(err)
	}
	return b
}

// put stores a program.
func (x *tenant) put(path string, data []byte) {
	x.t.Helper()
	f, err := x.Create(x.ctx, path, sigma.OpenWrite|sigma.OpenTruncate, 0o755)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		x.t.Fatalf("put %s: %v", path, err)
	}
}

// metric reads one number of the machine.
func (x *tenant) metric(name string) (value uint64) {
	x.t.Helper()
	text, _, err := x.Get(x.ctx, "/sys/metrics")
	if err != nil {
		x.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, err := fmt.Sscanf(line, name+" %d", &value); err == nil && n == 1 {
			return value
		}
	}
	x.t.Fatalf("no %s in the metrics", name)
	return 0
}
