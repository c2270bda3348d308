//go:build system

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// writers is how many write at once (Done when 5 of the first slice).
const writers = 200

// record is what one writer was told: the last content of its file that was acknowledged, and the
// one it was writing when something broke.
type record struct {
	acked, tried int
	err          error
}

// writeUntil has writers put growing numbers into files of their own below dir until each has seen
// an error or stop is closed, and calls crash once some are acknowledged.
func writeUntil(t *testing.T, clients []*sdk.Client, dir string, crash func()) []record {
	t.Helper()
	records := make([]record, writers)
	var acks atomic.Int64
	enough := make(chan struct{})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var all sync.WaitGroup
	for w := range records {
		all.Go(func() {
			r := &records[w]
			for r.err == nil {
				r.tried++
				_, r.err = clients[w%len(clients)].Put(ctx, fmt.Sprintf("%s/%d", dir, w), fmt.Append(nil, r.tried),
					sigma.PutOptions{})
				if r.err == nil {
					r.acked = r.tried
					if acks.Add(1) == 3*writers {
						close(enough)
					}
				}
			}
		})
	}
	broken := make(chan struct{})
	go func() { all.Wait(); close(broken) }()
	select {
	case <-enough:
	case <-broken: // by the crash that others made
	}
	crash()
	// After the crash of one service the writers may get on without an error. A while of that shows
	// that the system is usable.
	more := acks.Load() + 2*writers
	testenv.Eventually(t, "the writers are through", func() error {
		select {
		case <-broken:
			return nil
		default:
		}
		if n := acks.Load(); n < more {
			return fmt.Errorf("%d writes of %d were acknowledged", n, more)
		}
		return nil
	})
	cancel()
	<-broken
	return records
}

// check reads what is there. A write that was not acknowledged may have taken effect or not;
// nothing else may be there.
func check(t *testing.T, c *sdk.Client, dir string, records []record) {
	t.Helper()
	lost := 0
	for w, r := range records {
		b, _, err := c.Get(t.Context(), fmt.Sprintf("%s/%d", dir, w))
		got := string(b)
		ok := err == nil && (got == fmt.Sprint(r.acked) || got == fmt.Sprint(r.tried))
		if r.acked == 0 && errors.Is(err, fs.ErrNotExist) {
			ok = true
		}
		if !ok {
			if lost++; lost <= 5 {
				t.Errorf("%s/%d: acknowledged %d, tried %d (%v); there is %q, %v", dir, w, r.acked, r.tried, r.err, got,
					err)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d files are wrong", lost, len(records))
	}
}

// Every acknowledged write is there after the keeper, and with it the whole system, was killed;
// nothing of the dead instance's is.
func TestKillKeeper(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	ctx := testContext(t)
	var clients []*sdk.Client
	for range 8 {
		clients = append(clients, s.Connect(ctx, t, defaultRealm))
	}
	c := clients[0]
	probe := s.Install(ctx, t, c, program(t, "probe.c"))
	procs, err := c.Spawn(ctx, sigma.Descriptor{Program: probe, Args: []string{"ignore"}},
		sigma.Descriptor{Program: probe, Args: []string{"orphan"}},
		sigma.Descriptor{Program: probe, Args: []string{"stay"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range procs {
		if err := c.WaitStart(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/n", "/s3/b"} {
		if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lease, _, err := c.Lease(ctx, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "/ephemeral", nil, sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	var objects []record
	var both sync.WaitGroup
	kill := sync.OnceFunc(func() { s.Kill9(t, "keeper") })
	both.Go(func() { objects = writeUntil(t, clients[4:], "/s3/b", kill) })
	names := writeUntil(t, clients[:4], "/n", kill)
	both.Wait()
	s.WaitStopped(t)
	if out, stderr, code := s.CLI(t, "ls", "/"); code != 1 || !strings.Contains(stderr, "sigma up") {
		t.Errorf("ls on a dead system: %d %q %q", code, out, stderr)
	}
	testenv.Eventually(t, "the dead instance's processes and mounts are gone", func() error {
		for what := range s.Census() {
			if strings.HasPrefix(what, "process") || strings.HasPrefix(what, "mount") {
				return errors.New(what)
			}
		}
		return nil
	})
	if _, stderr, code := s.CLI(t, "down"); code != 1 || !strings.Contains(stderr, "no sigmaOS is running") {
		t.Errorf("down of a dead system: %d %q", code, stderr)
	}
	for what := range s.Census() {
		if !strings.HasPrefix(what, "socket") &&
			!strings.HasPrefix(what, "temporary") { // files in DATA; the next instance writes over them
			t.Errorf("down of a dead system leaves %s", what)
		}
	}
	s.Restart(t)
	for what := range s.Census() {
		if strings.Contains(what, "rest/be/default") {
			t.Errorf("the dead instance has left %s", what)
		}
	}
	c = s.Connect(ctx, t, defaultRealm)
	testenv.Eventually(t, "the dead instance's ephemeral file vanishes", func() error {
		if _, err := c.Stat(ctx, "/ephemeral"); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	check(t, c, "/n", names)
	check(t, c, "/s3/b", objects)
	if out := s.Must(t, "run", program(t, "hello.c")); out != "hello\n" {
		t.Errorf("run after the restart: %q", out)
	}
}

// Everything that the launcher runs dies with it, and everybody who waits hears so; names, objects
// and new procs go on with the next one, and nothing is left of the dead one's.
func TestKillLauncher(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, dir := range []string{"/kept", "/s3/kept"} {
		if err := r.MkdirAll(r.ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sigmad, keeper := r.s.PID("sigmad"), r.s.PID("keeper")
	r.s.Must(t, "run", program(t, "hello.c"))
	before := services(r.s.Census())
	for range 2 {
		var ds []sigma.Descriptor
		for _, args := range [][]string{{"ignore"}, {"stay"}, {"leave"}} {
			ds = append(ds, r.descriptor("probe.c", args...))
		}
		large := r.descriptor("probe.c", "stay")
		large.Memory = sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes")) &^ 0xffff
		running := r.spawn(ds...)
		queued := r.spawn(large)[0]
		for _, id := range running {
			if err := r.WaitStart(r.ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		waiters := make(chan sigma.Status, len(running))
		for _, id := range running {
			go func() {
				st, err := r.WaitExit(r.ctx, id)
				if err != nil {
					t.Errorf("wait for %s: %v", id, err)
				}
				waiters <- st
			}()
		}
		r.s.Kill9(t, "launcher")
		for range running {
			if st := <-waiters; st.Code != sigma.StatusCrashed || !strings.Contains(st.Msg, "launcher") {
				t.Errorf("a proc that ran: %+v, want crashed", st)
			}
		}
		if err := r.WaitStart(r.ctx, queued); err != nil {
			t.Errorf("a queued proc was not started by the next launcher: %v", err)
		}
		if err := r.Kill(r.ctx, queued); err != nil {
			t.Error(err)
		}
		if st := r.wait(queued); st.Code != sigma.StatusEvicted {
			t.Errorf("a queued proc, killed: %+v", st)
		}
		for _, dir := range []string{"/kept", "/s3/kept"} {
			testenv.Eventually(t, dir+" can be written", func() error {
				_, err := r.Put(r.ctx, dir+"/file", nil, sigma.PutOptions{})
				return err
			})
		}
		testenv.Eventually(t, "a proc runs", func() error {
			ids, err := r.Spawn(r.ctx, r.descriptor("probe.c", "exit", "5"))
			if err != nil {
				return err
			}
			if st, err := r.WaitExit(r.ctx, ids[0]); err != nil || st.ExitCode != 5 {
				return fmt.Errorf("%+v: %w", st, err)
			}
			return nil
		})
	}
	if s, k := r.s.PID("sigmad"), r.s.PID("keeper"); s != sigmad || k != keeper {
		t.Errorf("sigmad was %d and is %d, the keeper was %d and is %d", sigmad, s, keeper, k)
	}
	testenv.Eventually(t, "nothing is left of the dead launchers'", func() error {
		if more := services(r.s.Census()).Beyond(before); len(more) > 0 {
			return fmt.Errorf("%q", more)
		}
		return nil
	})
	if err := errors.Join(r.RemoveAll(r.ctx, "/kept"), r.RemoveAll(r.ctx, "/s3/kept")); err != nil {
		t.Error(err)
	}
}

// services is a census in which a service that was started again is the same.
func services(c testenv.Census) testenv.Census {
	out := testenv.Census{}
	for what, n := range c {
		out[regexp.MustCompile(`(system/[a-z0-9]+)/[0-9]+`).ReplaceAllString(what, "$1/N")] += n
	}
	return out
}

// The same for the services alone, which sigmad starts again. Who wrote meanwhile gets an error, or
// waits and gets on.
func TestKillStores(t *testing.T) {
	for victim, dir := range map[string]string{"named": "/stored", "s3d": "/s3/stored"} {
		t.Run(victim, func(t *testing.T) {
			r := connect(t, defaultRealm)
			neighbour := r.spawn(r.descriptor("probe.c", "leave"))[0]
			r.wrote(neighbour, "ready")
			if err := r.MkdirAll(r.ctx, dir, 0o755); err != nil {
				t.Fatal(err)
			}
			records := writeUntil(t, []*sdk.Client{r.Client}, dir, func() { r.s.Kill9(t, victim) })
			testenv.Eventually(t, victim+" serves again", func() error {
				_, err := r.Put(r.ctx, dir+"/again", nil, sigma.PutOptions{})
				return err
			})
			check(t, r.Client, dir, records)
			for w, rec := range records {
				if victim == "named" && rec.err != nil &&
					sigma.KindOf(rec.err) != sigma.KindCanceled {
					// sigmad sends again what was under way, and named remembers
					t.Errorf("writer %d: %v", w, rec.err)
				}
			}
			if err := r.Evict(r.ctx, neighbour, 0); err != nil {
				t.Fatal(err)
			}
			if st := r.wait(neighbour); st.ExitCode != 3 {
				t.Errorf("a proc that had nothing to do with it: %+v", st)
			}
			if out := r.s.Must(t, "run", program(t, "hello.c")); out != "hello\n" {
				t.Errorf("run: %q", out)
			}
			if err := r.RemoveAll(r.ctx, dir); err != nil {
				t.Error(err)
			}
			r.restarted(victim)
		})
	}
}

// restarted checks that a service runs and says that it was started again.
func (r *realm) restarted(name string) { r.t.Helper(); runsAfter(r.t, r.Client, name, 1) }

// runsAfter waits until a service runs and was started again so often at least, and returns what is
// told of it.
func runsAfter(t *testing.T, c *sdk.Client, name string, restarts uint32) (out sigmap.Service) {
	t.Helper()
	testenv.Eventually(t, name+" runs again", func() error {
		list, err := c.Services(t.Context())
		for _, s := range list {
			if out = s; s.Name == name && s.State == "running" && s.Restarts >= restarts {
				return nil
			}
		}
		return fmt.Errorf("%+v, %w", list, err)
	})
	return out
}

// RESTARTS of the launcher counts its deaths, one that no sigmad saw too, and no death of sigmad.
func TestLauncherIsCounted(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	c := s.Connect(testContext(t), t, sigma.DefaultRealm)
	s.Kill9(t, "launcher")
	was := runsAfter(t, c, "launcher", 1)
	s.Kill9(t, "sigmad")
	runsAfter(t, c, "sigmad", 1)
	if is := runsAfter(t, c, "launcher", 1); is.Restarts != 1 || is.Since.Sub(was.Since).Abs() > 2*time.Second {
		t.Errorf("the launcher had %d restarts and runs since %v; after a death of sigmad %+v", was.Restarts, was.Since,
			is)
	}
	if err := syscall.Kill(s.PID("sigmad"), syscall.SIGSTOP); err != nil { // so that it does not see it
		t.Fatal(err)
	}
	s.Kill9(t, "launcher")
	s.Kill9(t, "sigmad")
	runsAfter(t, c, "sigmad", 2)
	if is := runsAfter(t, c, "launcher", 2); is.Restarts != 2 {
		t.Errorf("after two deaths of the launcher, one with sigmad, %+v", is)
	}
	runsAfter(t, c, "named", 2)
}

// The queue dies with besched, and what was in it is queued again, in order; what runs goes on.
func TestKillBesched(t *testing.T) {
	r := connect(t, defaultRealm)
	d := r.descriptor("probe.c", "leave")
	d.Memory = sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes")) &^ 0xffff
	running := r.spawn(d)[0]
	r.wrote(running, "ready")
	queued := r.spawn(d, d)
	r.s.Kill9(t, "besched")
	again := r.spawn(r.descriptor("probe.c", "exit", "5"))[0] // waits for room
	if p := r.info(running); p.State != sigma.ProcRunning {
		t.Errorf("the running one is %v %+v", p.State, p.Status)
	}
	for _, id := range append([]sigma.ProcID{running}, queued...) {
		r.wrote(id, "ready")
		if err := r.Evict(r.ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		if st := r.wait(id); st.ExitCode != 3 {
			t.Errorf("%s: %+v", id, st)
		}
	}
	if st := r.wait(again); st.ExitCode != 5 {
		t.Errorf("one spawned after the crash: %+v", st)
	}
	r.restarted("besched")
}

// Taking the system down ends running jobs; what is stored stays.
func TestDownWithJobs(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	if _, stderr, code := s.CLI(t, "up", "--detach"); code != 1 || !strings.Contains(stderr, "already running") ||
		!strings.Contains(stderr, "hint:") {
		t.Errorf("a second up: %d %q", code, stderr)
	}
	s.Must(t, "mkdir", "/kept")
	run := s.Command(testContext(t), "run", program(t, "probe.c"), "ignore")
	out := &lines{seen: make(chan string, 10)}
	run.Stdout = out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	if line := <-out.seen; line != "ready\n" {
		t.Fatalf("the job says %q", line)
	}
	for range 20 {
		s.Must(t, "run", "-d", program(t, "probe.c"), "doze", "100")
	}
	s.Down(t)
	if err := run.Wait(); err == nil || run.ProcessState.ExitCode() != 137 { // it ignores that it shall go
		t.Errorf("the run ended with %v, want code 137", err)
	}
	if err := s.Gone(); err != nil {
		t.Errorf("after down: %v", err)
	}
	if _, stderr, code := s.CLI(t, "down"); code != 1 || !strings.Contains(stderr, "no sigmaOS is running") {
		t.Errorf("a second down: %d %q", code, stderr)
	}
	if _, stderr, code := s.CLI(t, "status"); code != 1 || !strings.Contains(stderr, "hint:") {
		t.Errorf("status when down: %d %q", code, stderr)
	}
	s.Up(t)
	if got := s.Must(t, "ls", "/"); !strings.Contains(got, "kept") {
		t.Errorf("ls after the restart: %q", got)
	}
}

// A system that is up in the foreground goes down in good order when it is interrupted, and tells
// when it dies.
func TestUpInForeground(t *testing.T) {
	for _, c := range []struct {
		name, says string
		end        func(s *testenv.System, up *os.Process)
		code       int
	}{
		{"SIGINT", "stopping", func(_ *testenv.System, up *os.Process) { up.Signal(syscall.SIGINT) }, 0},
		{"SIGTERM", "stopping", func(_ *testenv.System, up *os.Process) { up.Signal(syscall.SIGTERM) }, 0},
		{"down", "was stopped", func(s *testenv.System, _ *os.Process) { s.Must(t, "down") }, 0},
		{"kill -9 of the keeper", "unexpectedly", func(s *testenv.System, _ *os.Process) {
			s.Kill9(t, "keeper")
			s.WaitStopped(t)
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testenv.New(t, testenv.Options{Machine: "front"})
			up := s.Command(testContext(t), "up", "--machine", "front")
			out, errs := &lines{seen: make(chan string, 10)}, &bytes.Buffer{}
			up.Stdout, up.Stderr = out, errs
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			if line := <-out.seen; !strings.Contains(line, "^C stops it") {
				t.Fatalf("up says %q", line)
			}
			s.Booted(t)
			s.Must(t, "run", "-d", program(t, "probe.c"), "ignore")
			c.end(s, up.Process)
			up.Wait()
			if up.ProcessState.ExitCode() != c.code || !strings.Contains(errs.String(), c.says) {
				t.Errorf("up ended with code %d, %q, want %d, %q", up.ProcessState.ExitCode(), errs, c.code, c.says)
			}
			if c.code == 0 {
				if err := s.Gone(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// lines hands on what is written to it.
type lines struct{ seen chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.seen <- string(p)
	return len(p), nil
}
