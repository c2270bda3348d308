//go:build system

package machine

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// How a program ends is how its proc ends, and nothing of it is left.
func TestEnds(t *testing.T) {
	r := connect(t, defaultRealm)
	r.descriptor("probe.c")
	r.run("probe.c", "exit", "0")
	before := r.s.Census()
	for _, c := range []struct {
		args   string
		code   sigma.StatusCode
		exit   int
		output string
	}{
		{"exit 0", sigma.StatusOK, 0, ""},
		{"exit 7", sigma.StatusError, 7, ""},
		{"exit 255", sigma.StatusError, 255, ""},
		{"abort", sigma.StatusCrashed, 134, ""},
		{"crash", sigma.StatusCrashed, 139, ""},
		{"raise 9", sigma.StatusCrashed, 137, ""},
		{"raise 15", sigma.StatusCrashed, 143, ""},
		{"self", sigma.StatusOK, 0, "signals work\n"},
		{"forks", sigma.StatusOK, 0, "sum 45, then no child\n"},
		{"threads", sigma.StatusOK, 0, "counted 8000\n"},
		// The grandchild sees init as its parent, and is gone with the main process: NoLeaks below
		// counts it.
		{"orphan", sigma.StatusOK, 0, "parent 1\n"},
		{"streams", sigma.StatusOK, 0, "to stdout\nto stderr\n"},
		{"eat 20", sigma.StatusOK, 0, "eaten\n"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := *r
			r.t = t
			st, out := r.run("probe.c", strings.Fields(c.args)...)
			if st.Code != c.code || st.ExitCode != c.exit || out != c.output {
				t.Errorf("got %v %d %q (%s), want %v %d %q", st.Code, st.ExitCode, out, st.Msg, c.code, c.exit,
					c.output)
			}
		})
	}
	r.s.NoLeaks(t, before)
}

// A proc that takes more memory than it may ends as oom; another one beside it does not notice.
func TestOutOfMemory(t *testing.T) {
	shared.Get(t).RequireLimits(t)
	r := connect(t, defaultRealm)
	neighbour := r.spawn(r.descriptor("probe.c", "leave"))[0]
	r.wrote(neighbour, "ready")
	st, _ := r.run("probe.c", "eat")
	if st.Code != sigma.StatusOOM || st.ExitCode != 137 {
		t.Errorf("got %v %d (%s), want oom 137", st.Code, st.ExitCode, st.Msg)
	}
	if p := r.info(neighbour); p.State != sigma.ProcRunning {
		t.Errorf("the neighbour is %v %v", p.State, p.Status)
	}
	if err := r.Evict(r.ctx, neighbour, 0); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(neighbour); st.ExitCode != 3 || r.output(neighbour) != "ready\ntold to go\n" {
		t.Errorf("the neighbour: %+v, %q", st, r.output(neighbour))
	}
}

// Evict gives notice, by signal or by the answer to WaitEvict, and kills who does not go.
func TestEvict(t *testing.T) {
	r := connect(t, defaultRealm)
	go_ := r.descriptor("goprobe", "notice")
	go_.Start = sigma.StartedByCall
	late := r.descriptor("goprobe", "late")
	late.Start = sigma.StartedByCall
	for _, c := range []struct {
		name   string
		d      sigma.Descriptor
		grace  time.Duration
		ready  string
		exit   int
		output string
	}{
		{"signal", r.descriptor("probe.c", "leave"), time.Minute, "ready", 3, "ready\ntold to go\n"},
		{"ignored", r.descriptor("probe.c", "ignore"), 100 * time.Millisecond, "ready", 137, "ready\n"},
		{"WaitEvict", go_, time.Minute, "", 0, "noticed\n"},
		// Who calls WaitEvict after the notice was given is told at once.
		{"WaitEvict after the notice", late, time.Minute, "", 0, "noticed late\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := *r
			r.t = t
			id := r.spawn(c.d)[0]
			r.started(id)
			r.wrote(id, c.ready)
			if c.name == "WaitEvict" {
				// it has called Started; whether it waits already does not matter to it, but to the
				// test
				r.settled(id)
			}
			if err := r.Evict(r.ctx, id, c.grace); err != nil {
				t.Fatal(err)
			}
			st := r.wait(id)
			if out := r.output(id); st.Code != sigma.StatusEvicted || st.ExitCode != c.exit || out != c.output {
				t.Errorf("got %v %d %q, want evicted %d %q", st.Code, st.ExitCode, out, c.exit, c.output)
			}
		})
	}
}

// settled waits until the proc sleeps in its call of WaitEvict: it uses no more CPU time.
func (r *realm) settled(id sigma.ProcID) {
	r.t.Helper()
	last, same := "", 0
	testenv.Eventually(r.t, "the proc waits", func() error {
		now := r.s.CPUTime("goprobe")
		if now == last {
			same++
		} else {
			last, same = now, 0
		}
		if same < 20 {
			return fmt.Errorf("it works: %s", now)
		}
		return nil
	})
}

// Kill needs no grace and works in every state.
func TestKill(t *testing.T) {
	r := connect(t, defaultRealm)
	id := r.spawn(r.descriptor("probe.c", "ignore"))[0]
	r.wrote(id, "ready")
	if err := r.Kill(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(id); st.Code != sigma.StatusEvicted || st.ExitCode != 137 {
		t.Errorf("got %+v, want evicted 137", st)
	}
	if err := r.Kill(r.ctx, id); err != nil {
		t.Errorf("killing an ended proc: %v", err)
	}
	// Killed right after the spawn, whatever it was doing.
	for range 20 {
		id := r.spawn(r.descriptor("probe.c", "stay"))[0]
		if err := r.Kill(r.ctx, id); err != nil {
			t.Fatal(err)
		}
		if st := r.wait(id); st.Code != sigma.StatusEvicted {
			t.Errorf("killed at once: got %+v, want evicted", st)
		}
	}
}

// A proc that was to call Started has not started before it does.
func TestStartedByCall(t *testing.T) {
	r := connect(t, defaultRealm)
	d := r.descriptor("goprobe", "start", "/start-gate")
	d.Start = sigma.StartedByCall
	id := r.spawn(d)[0]
	r.wrote(id, "before")
	if p := r.info(id); p.State != sigma.ProcRunning || !p.Times.Started.IsZero() {
		t.Errorf("before the call: %v, started %v", p.State, p.Times.Started)
	}
	if _, err := r.Put(r.ctx, "/start-gate", nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	defer r.Remove(r.ctx, "/start-gate")
	r.started(id)
	r.wait(id)
	p := r.info(id)
	times := []time.Time{p.Times.Spawned, p.Times.Placed, p.Times.Contained, p.Times.Executed, p.Times.Started,
		p.Times.Ended}
	if !slices.IsSortedFunc(times, time.Time.Compare) || times[0].IsZero() {
		t.Errorf("the times of the start are not in order: %v", times)
	}
	// One that ends without the call never started.
	d = r.descriptor("probe.c", "exit", "4")
	d.Start = sigma.StartedByCall
	id = r.spawn(d)[0]
	if err := r.WaitStart(r.ctx, id); err == nil {
		t.Error("WaitStart of a proc that ended without Started succeeded")
	}
	if st := r.wait(id); st.ExitCode != 4 {
		t.Errorf("got %+v, want exit code 4", st)
	}
}

// What a proc says by Exited reaches everybody who waits, byte for byte.
func TestExited(t *testing.T) {
	r := connect(t, defaultRealm)
	id := r.spawn(r.descriptor("goprobe", "exit"))[0]
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			st, err := r.WaitExit(r.ctx, id)
			if err != nil || st.Code != sigma.StatusError || st.ExitCode != 3 || st.Msg != "the sum does not add up" ||
				string(st.Data) != "\x00\x01\x02\xff" {
				t.Errorf("got %+v, %v", st, err)
			}
		})
	}
	all.Wait()
}

func TestUnknownProc(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, id := range []sigma.ProcID{"nosuchproc", sigma.NewProcID(), ""} {
		_, err := r.WaitExit(r.ctx, id)
		kindIs(t, fmt.Sprintf("WaitExit(%q)", id), err, sigma.KindNotFound)
		kindIs(t, fmt.Sprintf("WaitStart(%q)", id), r.WaitStart(r.ctx, id), sigma.KindNotFound)
		kindIs(t, fmt.Sprintf("Kill(%q)", id), r.Kill(r.ctx, id), sigma.KindNotFound)
		kindIs(t, fmt.Sprintf("Evict(%q)", id), r.Evict(r.ctx, id, 0), sigma.KindNotFound)
	}
}

// A child is its realm's, not its parent's (001 §3.1).
func TestChildOutlivesParent(t *testing.T) {
	r := connect(t, defaultRealm)
	child := r.descriptor("probe.c", "leave")
	st, out := r.run("goprobe", "parent", child.Program, "leave")
	if !st.OK() {
		t.Fatalf("the parent: %+v %s", st, out)
	}
	id := sigma.ProcID(out)
	r.wrote(id, "ready")
	if p := r.info(id); p.State != sigma.ProcRunning || p.Parent == "" {
		t.Errorf("the child: %v, parent %q", p.State, p.Parent)
	}
	if err := r.Evict(r.ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
}

func TestSpawnBurst(t *testing.T) {
	r := connect(t, defaultRealm)
	r.run("probe.c", "exit", "0")
	before := r.s.Census()
	ds := make([]sigma.Descriptor, 200)
	for i := range ds {
		ds[i] = r.descriptor("probe.c", "exit", fmt.Sprint(i%100))
	}
	ids := r.spawn(ds...)
	if len(ids) != len(ds) {
		t.Fatalf("got %d ids, want %d", len(ids), len(ds))
	}
	for i, id := range ids {
		if st := r.wait(id); st.ExitCode != i%100 {
			t.Errorf("proc %d: %+v", i, st)
		}
	}
	// All or none: one bad descriptor spoils the burst.
	ds[150].Program = "not a path"
	_, err := r.Spawn(r.ctx, ds...)
	kindIs(t, "a burst with a bad descriptor", err, sigma.KindInvalid)
	r.s.NoLeaks(t, before)
}

// More procs than there is memory for run one after another; killing one that waits needs no
// machine.
func TestMemoryAdmission(t *testing.T) {
	r := connect(t, defaultRealm)
	capacity := r.metric("sigma_schedd_memory_capacity_bytes")
	d := r.descriptor("probe.c", "doze", "20")
	d.Memory = sigma.Bytes(capacity/10*4) &^ 0xffff // two at a time
	ds := make([]sigma.Descriptor, 9)
	for i := range ds {
		ds[i] = d
	}
	holder := d
	holder.Args = []string{"stay"}
	holders := r.spawn(holder, holder)
	for _, id := range holders {
		r.started(id)
	}
	ids := r.spawn(ds...)
	for _, id := range ids {
		if p := r.info(id); p.State != sigma.ProcQueued {
			t.Errorf("proc %s is %v, want queued", id, p.State)
		}
	}
	// A small one does not wait for the large ones before it in another realm, nor behind them for
	// ever in this.
	if err := r.Kill(r.ctx, ids[4]); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(ids[4]); st.Code != sigma.StatusEvicted {
		t.Errorf("the one killed in the queue: %+v", st)
	}
	for _, id := range holders {
		if err := r.Kill(r.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	var spans []sigma.Times
	for i, id := range ids {
		if st := r.wait(id); i != 4 {
			if !st.OK() {
				t.Errorf("proc %d: %+v", i, st)
			}
			spans = append(spans, r.info(id).Times)
		}
	}
	for i, a := range spans {
		with := 0
		for _, b := range spans {
			if !b.Placed.After(a.Placed) && b.Ended.After(a.Placed) {
				with++
			}
		}
		if with > 2 {
			t.Errorf("%d procs were admitted when proc %d was, there is room for 2", with, i)
		}
	}
	if free := r.metric("sigma_schedd_memory_free_bytes"); free != capacity {
		t.Errorf("%d bytes are free after all have ended, want %d", free, capacity)
	}
	d.Memory = sigma.Bytes(capacity) + 1
	_, err := r.Spawn(r.ctx, d)
	kindIs(t, "a proc that can never be admitted", err, sigma.KindInvalid)
}

// metric reads one number of the machine.
func (r *realm) metric(name string) (value uint64) {
	r.t.Helper()
	b, _, err := r.Get(r.ctx, "/sys/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, err := fmt.Sscanf(line, name+" %d", &value); err == nil && n == 1 {
			return value
		}
	}
	r.t.Fatalf("no metric %s in %s", name, b)
	return 0
}
