package initd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// desk drives a Core and is its world: the names, which keep records, and the procs there are.
type desk struct {
	t       *testing.T
	now     time.Time
	files   map[Key]Versioned
	version sigma.Version
	procs   map[sigma.ProcID]*sigma.Status // nil = it runs
	of      map[sigma.ProcID]Key
	placed  map[sigma.ProcID]time.Time // when it left the queue
	crowded bool                       // what is spawned stays in the queue
	drawn   int
	c       *Core
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, now: time.Unix(1000, 0), files: map[Key]Versioned{}, procs: map[sigma.ProcID]*sigma.Status{},
		of: map[sigma.ProcID]Key{}, placed: map[sigma.ProcID]time.Time{}}
	d.lead()
	return d
}

// lead begins with a leader that knows nothing.
func (d *desk) lead() {
	d.c = NewCore("m1", func() sigma.ProcID { d.drawn++; return sigma.ProcID(fmt.Sprintf("p%d", d.drawn)) })
	d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
}

func (d *desk) add(name string, restart sigma.Restart, most uint32) Key {
	k := Key{"r", name}
	d.version++
	d.files[k] = Versioned{NewRecord(sigma.Registration{Name: name, Descriptor: sigma.Descriptor{Program: "/bin/x"},
		Restart: restart, Most: most}, d.now), d.version}
	d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
	return k
}

// do carries out effects as the shell does.
func (d *desk) do(fs []Effect) {
	d.t.Helper()
	for len(fs) > 0 {
		f := fs[0]
		fs = fs[1:]
		if e := d.act(f); e != nil {
			fs = append(fs, d.c.Step(d.now, e)...)
		}
	}
}

func (d *desk) act(f Effect) Event {
	d.t.Helper()
	switch f := f.(type) {
	case Save:
		if had, there := d.files[f.Key]; !there || had.Version != f.Version {
			return Dropped{f.Key}
		}
		d.version++
		d.files[f.Key] = Versioned{f.Record, d.version}
		return Saved{f.Key, d.version}
	case Forget:
		if d.files[f.Key].Version != f.Version {
			return Dropped{f.Key}
		}
		delete(d.files, f.Key)
		return Forgotten{f.Key}
	case Spawn:
		if s, there := d.procs[f.Proc]; there {
			d.t.Fatalf("%s is spawned again; it ended as %v", f.Proc, s)
		}
		for id, s := range d.procs {
			if s == nil && d.of[id] == f.Key {
				d.t.Fatalf("%s is spawned while %s of %v runs", f.Proc, id, f.Key)
			}
		}
		d.procs[f.Proc], d.of[f.Proc] = nil, f.Key
		if !d.crowded {
			d.placed[f.Proc] = d.now
		}
	case Stop:
		if s, there := d.procs[f.Proc]; there && s == nil {
			d.procs[f.Proc] = &sigma.Status{Code: sigma.StatusEvicted}
		}
	}
	return nil
}

// look shows the Core what became of the procs that it watches.
func (d *desk) look() {
	d.t.Helper()
	watched := d.c.Watched()
	for _, k := range slices.SortedFunc(maps.Keys(watched), byName) {
		e := Saw{Key: k, Proc: watched[k], Sight: Gone}
		if s, there := d.procs[e.Proc]; there && s == nil {
			e.Sight = Alive
		} else if there {
			e.Sight, e.Status = Ended, *s
		}
		if at, is := d.placed[e.Proc]; is && e.Sight != Gone {
			e.Ran = d.now.Sub(at)
		}
		d.do(d.c.Step(d.now, e))
	}
	if d.c.Stale() {
		d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
	}
}

func (d *desk) wait(w time.Duration) {
	d.t.Helper()
	d.now = d.now.Add(w)
	d.do(d.c.Step(d.now, Ticked{}))
}

// end ends the proc of a registration that runs.
func (d *desk) end(k Key, code sigma.StatusCode) {
	d.t.Helper()
	p := d.running(k)
	if p == "" {
		d.t.Fatalf("%v does not run", k)
	}
	d.procs[p] = &sigma.Status{Code: code, ExitCode: int(code)}
	d.look()
}

func (d *desk) running(k Key) (p sigma.ProcID) {
	for id, s := range d.procs {
		if s == nil && d.of[id] == k {
			p = id
		}
	}
	return p
}

func (d *desk) state(k Key, want string) {
	d.t.Helper()
	f := d.files[k]
	if got := f.Record.State(); got != want {
		d.t.Errorf("%v is %s, want %s: %+v", k, got, want, f.Record.History)
	}
}

// A proc that ends is started again after a pause, which grows while it fails and is short again
// after it lasted.
func TestPausesGrowAndAreForgotten(t *testing.T) {
	d := newDesk(t)
	k := d.add("web", sigma.RestartAlways, 0)
	pause := pauseMin
	for range 12 {
		d.state(k, "running")
		d.end(k, sigma.StatusError)
		d.state(k, "waiting")
		if at := d.c.Wakes(); !at.Equal(d.now.Add(pause)) {
			t.Fatalf("the next is due in %v, want %v", at.Sub(d.now), pause)
		}
		d.wait(pause - 1)
		d.state(k, "waiting")
		d.wait(1)
		pause = min(2*pause, pauseMax)
	}
	d.wait(healthy)
	d.end(k, sigma.StatusOK)
	if at := d.c.Wakes(); !at.Equal(d.now.Add(pauseMin)) {
		t.Errorf("after it lasted the next is due in %v", at.Sub(d.now))
	}
	if h := d.files[k].Record.History; len(h) != 13 || h[12].Status.Code != sigma.StatusOK ||
		h[0].Status.Code != sigma.StatusError {
		t.Errorf("history: %+v", h)
	}
}

// The time that an instance waited in a queue is none in which it lasted: pauses go on growing, and
// its history does not count it.
func TestPausesGrowInQueues(t *testing.T) {
	d := newDesk(t)
	d.crowded = true
	k := d.add("web", sigma.RestartAlways, 0)
	for pause := pauseMin; pause < pauseMax; pause *= 2 {
		d.wait(2 * healthy)
		d.look()
		d.placed[d.running(k)] = d.now
		d.wait(9 * time.Millisecond)
		d.end(k, sigma.StatusError)
		h := d.files[k].Record.History
		if i := h[len(h)-1]; i.Ended.Sub(i.Begun) != 9*time.Millisecond {
			t.Fatalf("it lasted %v by its history", i.Ended.Sub(i.Begun))
		}
		if at := d.c.Wakes(); !at.Equal(d.now.Add(pause)) {
			t.Fatalf("the next is due in %v, want %v", at.Sub(d.now), pause)
		}
		d.wait(pause)
	}
}

// change has somebody else change a record.
func (d *desk) change(k Key, change func(r *Record)) {
	d.t.Helper()
	v := d.files[k]
	change(&v.Record)
	d.version++
	d.files[k] = Versioned{v.Record, d.version}
	d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
	d.look()
}

// What is registered again, in place of another or after that was removed and before its proc has
// ended, and what is restarted, has its proc told to go, and another started at once, whatever it
// waited for, and whoever leads. There never are two.
func TestReplaceAndRestart(t *testing.T) {
	other := sigma.Registration{Name: "web", Descriptor: sigma.Descriptor{Program: "/bin/other"},
		Restart: sigma.RestartOnFailure, Most: 2}
	acts := map[string]func(d *desk, k Key){
		"replace": func(d *desk, k Key) { d.change(k, func(r *Record) { r.Replace(other, d.now) }) },
		"removed, then added": func(d *desk, k Key) {
			v := d.files[k]
			v.Record.Removed = true
			d.files[k] = v // the leader has not looked yet
			d.change(k, func(r *Record) { r.Replace(other, d.now) })
		},
		"restart": func(d *desk, k Key) { d.change(k, (*Record).Again) },
	}
	befores := map[string]func(d *desk, k Key){
		"running":    func(*desk, Key) {},
		"in a pause": func(d *desk, k Key) { d.end(k, sigma.StatusError) },
		"ended":      func(d *desk, k Key) { d.end(k, sigma.StatusOK) },
		"given up": func(d *desk, k Key) {
			d.end(k, sigma.StatusError)
			d.wait(pauseMax)
			d.end(k, sigma.StatusError)
		},
		"a new leader": func(d *desk, k Key) { d.c = NewCore("m2", d.c.draw) },
	}
	for before, prepare := range befores {
		for what, act := range acts {
			t.Run(what+" when "+before, func(t *testing.T) {
				d := newDesk(t)
				k := d.add("web", sigma.RestartOnFailure, 2)
				was := d.running(k)
				prepare(d, k)
				act(d, k)
				d.wait(0)
				d.state(k, "running")
				if now := d.running(k); now == "" || now == was {
					t.Errorf("%q runs, before it was %q", now, was)
				}
				r := d.files[k].Record
				if want := what != "restart"; r.Anew || r.Removed ||
					(r.Registration.Descriptor.Program == "/bin/other") != want {
					t.Errorf("the record is %+v", r)
				}
			})
		}
	}
}

// Pauses outlive the leader: the next one waits as long as the last would have, goes on from there,
// and starts at once what had run well under the one before.
func TestPausesOutliveTheLeader(t *testing.T) {
	d := newDesk(t)
	k := d.add("web", sigma.RestartAlways, 0)
	for pause := pauseMin; pause < 8*pauseMin; pause *= 2 {
		d.end(k, sigma.StatusError)
		d.wait(pause)
	}
	d.end(k, sigma.StatusError)
	d.lead()
	if at := d.c.Wakes(); !at.Equal(d.now.Add(8 * pauseMin)) {
		t.Errorf("under the next leader it is due in %v", at.Sub(d.now))
	}
	d.wait(8 * pauseMin)
	d.state(k, "running")
	d.lead()
	d.end(k, sigma.StatusError)
	if at := d.c.Wakes(); !at.Equal(d.now.Add(16 * pauseMin)) {
		t.Errorf("when it has failed under the next leader it is due in %v", at.Sub(d.now))
	}
	d.wait(16 * pauseMin)
	d.wait(healthy)
	d.look()
	d.lead()
	delete(d.procs, d.running(k)) // with its machine
	d.look()
	d.state(k, "running")
	if p := d.files[k].Record.Pause; p != 0 {
		t.Errorf("a proc that was lost after it had run well waited %v", p)
	}
	d.wait(healthy)
	d.procs[d.running(k)] = &sigma.Status{Code: sigma.StatusEvicted,
		Kind: sigma.KindUnavailable} // its machine is stopped
	d.look()
	d.state(k, "running")
	if p := d.files[k].Record.Pause; p != 0 {
		t.Errorf("a proc whose machine was stopped after it had run well waited %v", p)
	}
}

// Policies: on-failure ends with ok and not before; most bounds the starts; the history is bounded.
func TestPolicies(t *testing.T) {
	d := newDesk(t)
	k := d.add("migrate", sigma.RestartOnFailure, 0)
	d.end(k, sigma.StatusCrashed)
	d.wait(pauseMax)
	d.end(k, sigma.StatusOK)
	d.wait(time.Hour)
	d.state(k, "ended")
	most := d.add("thrice", sigma.RestartAlways, 3)
	for range 3 {
		d.end(most, sigma.StatusOK)
		d.wait(pauseMax)
	}
	d.state(most, "given-up")
	for range 2 * HistoryMax {
		d.wait(pauseMax)
	}
	long := d.add("long", sigma.RestartAlways, 0)
	for range 2 * HistoryMax {
		d.end(long, sigma.StatusOK)
		d.wait(pauseMax)
	}
	if r := d.files[long].Record; len(r.History) != HistoryMax || r.Starts != 2*HistoryMax+1 {
		t.Errorf("%d starts, %d remembered", r.Starts, len(r.History))
	}
}

// A restart of the whole system: no machine knows the procs, and all but those that have ended for
// good are started again, at once.
func TestWholeSystemRestarts(t *testing.T) {
	d := newDesk(t)
	always, done := d.add("web", sigma.RestartAlways, 0), d.add("done", sigma.RestartOnFailure, 0)
	failing := d.add("job", sigma.RestartOnFailure, 0)
	d.end(done, sigma.StatusOK)
	before := d.running(always)
	clear(d.procs)
	d.lead()
	d.state(always, "running") // as far as is known
	d.look()
	d.wait(0)
	for _, k := range []Key{always, failing} {
		if p := d.running(k); p == "" || p == before {
			t.Errorf("%v was not started again", k)
		}
	}
	d.state(done, "ended")
	if h := d.files[always].Record.History; len(h) != 2 || h[0].Status.Code != sigma.StatusLost {
		t.Errorf("history: %+v", h)
	}
}

// While a machine has not answered, nothing is started. A new leader goes on with what runs.
func TestUnsureIsNotGone(t *testing.T) {
	d := newDesk(t)
	k := d.add("web", sigma.RestartAlways, 0)
	p := d.running(k)
	d.lead()
	for range 100 {
		d.now = d.now.Add(time.Minute)
		d.do(d.c.Step(d.now, Saw{Key: k, Proc: p, Sight: Unsure}))
	}
	d.look()
	if d.running(k) != p || d.files[k].Record.Starts != 1 {
		t.Error("the proc that runs was replaced")
	}
}

// A registration that is removed has its proc stopped, and is gone then; one that is removed behind
// the leader's back is forgotten.
func TestRemoval(t *testing.T) {
	d := newDesk(t)
	k := d.add("web", sigma.RestartAlways, 0)
	v := d.files[k]
	d.version++
	v.Record.Removed, v.Version = true, d.version
	d.files[k] = v
	d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
	d.state(k, "removing")
	d.look()
	if len(d.files) != 0 || d.running(k) != "" {
		t.Errorf("files %v, procs %v", d.files, d.procs)
	}
	k = d.add("web", sigma.RestartAlways, 0)
	delete(d.files, k)
	d.end(k, sigma.StatusOK)
	d.wait(time.Hour)
	if d.running(k) != "" || len(d.c.entries) != 0 {
		t.Error("it is started again though its record is gone")
	}
}

// Goal: whatever ends, is lost, refused, saved or not, and whoever leads, never do two instances
// run, no id is spawned twice (see act), and when all is well again one of each runs.
func TestCoreRandom(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 27))
		d := newDesk(t)
		var keys []Key
		for i := range 3 {
			keys = append(keys, d.add(fmt.Sprint("n", i), sigma.RestartAlways, 0))
		}
		for range 200 {
			k := keys[r.IntN(len(keys))]
			switch n := r.IntN(10); {
			case n < 3:
				if p := d.running(k); p != "" {
					d.procs[p] = &sigma.Status{Code: sigma.StatusCode(1 + r.IntN(6))}
				}
			case n < 4: // the leader dies, maybe between a Save and its Spawn
				d.now = d.now.Add(time.Second)
				fs := d.c.Step(d.now, Ticked{})
				for _, f := range fs {
					if s, ok := f.(Save); ok && r.IntN(2) == 0 {
						d.act(s)
					}
				}
				d.lead()
			case n < 5: // somebody else writes the record
				v := d.files[k]
				d.version++
				v.Version = d.version
				d.files[k] = v
			case n < 6:
				if p := d.running(k); p != "" {
					delete(d.procs, p) // lost with its machine
				}
			default:
				d.look()
			}
			d.wait(time.Duration(r.IntN(1000)) * time.Millisecond)
		}
		for range 4 {
			d.look()
			d.wait(pauseMax)
		}
		for _, k := range keys {
			if d.running(k) == "" {
				t.Errorf("seed %d: %v does not run: %+v", seed, k, d.files[k].Record)
			}
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	r := NewRecord(sigma.Registration{Name: "web", Descriptor: sigma.Descriptor{Program: "/bin/x",
		Args: []string{"\x01\xff<&>"}, View: []sigma.ViewEntry{}}, Restart: sigma.RestartAlways}, time.Unix(5, 0))
	r.begin("p", "m1", time.Unix(6, 0))
	r.end(sigma.Status{Code: sigma.StatusError, Msg: string(make([]byte, 2*messageMax)), Data: []byte("x")},
		time.Unix(7, 0))
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("web", b)
	if err != nil || got.Registration.Descriptor.View == nil || len(got.History) != 1 ||
		len(got.History[0].Status.Msg) > messageMax || got.History[0].Status.Data != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for _, wrong := range []struct {
		name string
		data []byte
	}{{"other", b}, {"web", b[:len(b)-1]}, {"web", make([]byte, recordMax+1)}, {"web", []byte(`{"Format":2}`)}} {
		if _, err := Parse(wrong.name, wrong.data); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s, %d bytes: %v", wrong.name, len(wrong.data), err)
		}
	}
}

// Goal: a record that was admitted can be written whatever becomes of its proc, with its latest
// history; one that leaves no room for that is not admitted.
func TestRecordSize(t *testing.T) {
	of := func(arg string) Record {
		return NewRecord(sigma.Registration{Name: "web", Descriptor: sigma.Descriptor{Program: "/bin/x",
			Args: []string{arg}}, Restart: sigma.RestartAlways}, time.Unix(5, 0))
	}
	wide := of(strings.Repeat("\x01", sigma.RegistrationMax/2))
	if err := wide.Fits(); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("a registration that has six times its size as JSON: %v", err)
	}
	r := of(strings.Repeat("<", sigma.RegistrationMax/2) + strings.Repeat("\x01", 5000))
	if err := r.Fits(); err != nil {
		t.Fatal(err)
	}
	for range 2 * HistoryMax {
		r.begin("p", "m1", time.Unix(6, 0))
		r.end(sigma.Status{Code: sigma.StatusError, Msg: strings.Repeat("\x01", messageMax)}, time.Unix(7, 0))
	}
	r.begin("last", "m1", time.Unix(8, 0))
	b, err := r.Encode()
	if err != nil || len(b) > recordFull {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got, err := Parse("web", b)
	if err != nil || len(got.History) < 4 || got.Starts != 2*HistoryMax+1 || got.Present() == nil ||
		got.Present().Proc != "last" {
		t.Errorf("%d of history, present %+v, %v", len(got.History), got.Present(), err)
	}
}

func FuzzParse(f *testing.F) {
	r := NewRecord(sigma.Registration{Name: "a", Descriptor: sigma.Descriptor{Program: "/bin/x"}}, time.Unix(0, 0))
	r.begin("p", "m", time.Unix(1, 0))
	b, _ := r.Encode()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := Parse("a", b); err == nil {
			_ = r.State()
			if again, err := r.Encode(); err != nil {
				t.Errorf("%v cannot be written: %v", again, err)
			}
		}
	})
}

// What is registered between the leader's decision to forget a record and the removal stays, and is
// started.
func TestForgetTakesNothingNewer(t *testing.T) {
	d := newDesk(t)
	k := d.add("web", sigma.RestartAlways, 0)
	was := d.running(k)
	d.end(k, sigma.StatusOK)
	v := d.files[k]
	v.Record.Removed = true
	d.version++
	v.Version = d.version
	d.files[k] = v
	decided := d.c.Step(d.now, Listed{maps.Clone(d.files)})
	if len(decided) != 1 || decided[0] != (Forget{k, v.Version}) {
		t.Fatalf("a removed record without an instance leads to %+v", decided)
	}
	v.Record.Replace(v.Record.Registration, d.now) // as init add does
	d.version++
	v.Version = d.version
	d.files[k] = v
	d.do(decided)
	if !d.c.Stale() {
		t.Error("the leader does not look again")
	}
	d.do(d.c.Step(d.now, Listed{maps.Clone(d.files)}))
	if now := d.running(k); now == "" || now == was {
		t.Errorf("%q runs, before it was %q", now, was)
	}
}
