package machines

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// wire is a network of one link that can be cut: then dials get no answer, and what is written goes
// nowhere, without an error.
type wire struct {
	mu     sync.Mutex
	cut    bool  // mu
	refuse error // mu
	dials  int   // mu
	ear    *Ear
	all    sync.WaitGroup
}

func (w *wire) set(cut bool, refuse error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.refuse = cut, refuse
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// leaky drops what is written while the wire is cut.
type leaky struct {
	net.Conn
	w *wire
}

func (l leaky) Write(b []byte) (int, error) {
	if l.w.isCut() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

func (w *wire) dial(ctx context.Context, _ sigma.MachineID) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	cut, refuse := w.cut, w.refuse
	w.mu.Unlock()
	switch {
	case refuse != nil:
		return nil, refuse
	case cut:
		<-ctx.Done()
		return nil, sigma.Wrap("test", "", ctx.Err())
	}
	a, b := net.Pipe()
	w.all.Go(func() { Observe(context.Background(), b, func(at time.Time) { w.ear.Hear("m2", 3, at) }) })
	return leaky{a, w}, nil
}

// Goal: beats come four times a second, soon again after a gap, and a machine whose life was ended
// learns it once; nothing is left running.
func TestBeater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{ear: NewEar()}
		var told atomic.Int32
		b := NewBeater(BeaterConfig{Controls: func() []sigma.MachineID {
			return []sigma.MachineID{"m1"}
		}, Dial: w.dial, Over: func(error) { told.Add(1) }})
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { b.Run(ctx) })
		interval := DefaultTiming().Interval
		age := func() time.Duration {
			synctest.Wait()
			es := w.ear.Evidence(time.Now(), DefaultTiming())
			if len(es) != 1 || es[0].ID != "m2" || es[0].Incarnation != 3 {
				t.Fatalf("heard is %+v", es)
			}
			return es[0].Age
		}
		for range 40 {
			time.Sleep(interval)
			if a := age(); a > interval {
				t.Fatalf("silent for %v", a)
			}
		}
		w.mu.Lock()
		if w.dials != 1 {
			t.Errorf("%d links were made", w.dials)
		}
		w.mu.Unlock()
		for gap := interval; gap < time.Minute; gap *= 2 {
			w.set(true, nil)
			time.Sleep(gap)
			w.set(false, nil)
			if time.Sleep(2 * interval); age() > interval {
				t.Errorf("after a gap of %v it is not heard %v later", gap, 2*interval)
			}
		}
		w.set(true, sigma.Errorf("test", sigma.KindPermission, "your clock is wrong"))
		if time.Sleep(10 * time.Second); told.Load() != 0 {
			t.Error("a refusal that ends no life was taken for its end")
		}
		w.set(true, sigma.Errorf("test", sigma.KindStale, "your life is over"))
		if time.Sleep(10 * time.Second); told.Load() != 1 {
			t.Errorf("it was told %d times that its life is over", told.Load())
		}
		stop()
		all.Wait()
		w.all.Wait()
	})
}

// TestTry: a machine that answers lives, one that does not is an error in time.
func TestTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a, b := net.Pipe()
		go Observe(t.Context(), b, nil)
		if err := Try(ctx, func(context.Context) (net.Conn, error) { return a, nil }); err != nil {
			t.Error(err)
		}
		c, d := net.Pipe()
		go io.Copy(io.Discard, d)
		if err := Try(ctx, func(context.Context) (net.Conn, error) { return c, nil }); err == nil {
			t.Error("a machine that does not answer lives")
		}
		d.Close()
	})
}

// TestFileStore: what was saved is there for who takes over, and who was taken over from cannot
// save.
func TestFileStore(t *testing.T) {
	ctx := t.Context()
	ns := space(t)
	first, st, err := TakeOver(ctx, ns, "/machines", "m1", "")
	if err != nil || st.Epoch != 0 || len(st.Members) != 0 {
		t.Fatal(st, err)
	}
	m := Member{ID: "m1", Incarnation: 2, Address: "10.0.0.1:7700", Labels: map[string]string{"zone": "a"},
		Joined: began, Control: true}
	m.Key[3] = 7
	if err := first.Save(ctx, []Effect{SaveEpoch{2}, SaveMember{m}, SaveToken{Token{ID: "t", Uses: 3, Made: began}},
		SaveMember{Member{ID: "m2"}}, DropMember{"m2"}}); err != nil {
		t.Fatal(err)
	}
	second, st, err := TakeOver(ctx, ns, "/machines", "m2", "")
	if err != nil || st.Epoch != 2 || len(st.Members) != 1 || len(st.Tokens) != 1 || st.Members[0].Key != m.Key ||
		st.Members[0].Labels["zone"] != "a" || !st.Members[0].Joined.Equal(began) {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := first.Save(ctx, []Effect{SaveEpoch{3}}); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the old judge saves: %v", err)
	}
	if err := second.Save(ctx, []Effect{SaveEpoch{4}}); err != nil {
		t.Error(err)
	}
	many := make([]Effect, 400)
	for i := range many {
		many[i] = SaveMember{Member{ID: sigma.MachineID("m" + string(rune('a'+i%26)) + string(rune('a'+i/26)))}}
	}
	if err := second.Save(ctx, many); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("more than fits: %v", err)
	}
}

// Goal: an answer that is lost is no doubt: the file tells whether it was written.
func TestFileStoreLostAnswer(t *testing.T) {
	for _, applied := range []bool{true, false} {
		ns := &lossy{Namespace: space(t)}
		s, _, err := TakeOver(t.Context(), ns, "/machines", "m1", "")
		if err != nil {
			t.Fatal(err)
		}
		ns.lose, ns.apply = true, applied
		if err := s.Save(t.Context(), []Effect{SaveEpoch{5}}); err != nil {
			t.Errorf("applied %t: %v", applied, err)
		}
		if _, st, err := TakeOver(t.Context(), ns, "/machines", "m1", ""); err != nil || st.Epoch != 5 {
			t.Errorf("applied %t: %+v, %v", applied, st, err)
		}
	}
}

// lossy loses the answer of one Put.
type lossy struct {
	sigma.Namespace
	lose, apply bool
}

func (l *lossy) Put(ctx context.Context, path string, data []byte, o sigma.PutOptions) (sigma.FileID, error) {
	if !l.lose {
		return l.Namespace.Put(ctx, path, data, o)
	}
	l.lose = false
	if l.apply {
		l.Namespace.Put(ctx, path, data, o)
	}
	return sigma.FileID{}, sigma.Errorf("test", sigma.KindLost, "the answer is lost")
}

func space(t *testing.T) sigma.Namespace {
	t.Helper()
	return resolve.New(resolve.Config{Root: root(t)})
}

func root(t *testing.T) sigma.File {
	t.Helper()
	f, err := memfs.New(memfs.Config{}).Attach(t.Context(), sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"Format":1,"Judge":"m1","Epoch":2,"Members":[{"ID":"m1","Incarnation":2}],"Tokens":[]}`))
	f.Add([]byte(`{"Format":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		st, err := ParseState(text)
		if err != nil {
			return
		}
		c, err := New(began, Config{Self: "m1", State: st})
		if err != nil {
			t.Fatal(err)
		}
		c.Step(began.Add(time.Second), Tick{})
		c.Roster()
	})
}

func FuzzCodeEvidence(f *testing.F) {
	payload, err := CallReport.Payload([]Evidence{{"m1", 2, time.Second}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		es, err := CallReport.Parse(payload)
		if err != nil {
			return
		}
		if again, err := CallReport.Payload(es); err != nil || !bytes.Equal(again, payload) {
			t.Errorf("%x became %x, %v", payload, again, err)
		}
	})
}

// Goal: whoever decided when a snapshot was taken, the machine that begins with it decides alone,
// in lives with numbers that nobody has had, and neither other control machines nor old tokens come
// in.
func TestSucceed(t *testing.T) {
	ns := space(t)
	store, _, err := TakeOver(t.Context(), ns, "/machines", "m3", "")
	if err != nil {
		t.Fatal(err)
	}
	effects := []Effect{SaveEpoch{7}, SaveToken{Token{ID: "t"}}, SaveMember{Member{ID: "m4", Incarnation: 6}}}
	for _, m := range []sigma.MachineID{"m1", "m2", "m3"} {
		effects = append(effects, SaveMember{Member{ID: m, Control: true, Incarnation: 5}})
	}
	if err := store.Save(t.Context(), effects); err != nil {
		t.Fatal(err)
	}
	text, _, err := ns.Get(t.Context(), "/machines")
	if err != nil {
		t.Fatal(err)
	}
	for _, self := range []sigma.MachineID{"m1", "m3", "m4"} {
		after, err := Succeed(text, self)
		if err != nil {
			t.Fatal(err)
		}
		st, judge, err := parseRecord(after)
		if err != nil || judge != self || st.Epoch <= 7 || len(st.Tokens) > 0 {
			t.Errorf("%s: %s decides, %+v, %v", self, judge, st, err)
		}
		for _, m := range st.Members {
			if m.Control != (m.ID == self) || m.ID != self && m.ID != "m4" {
				t.Errorf("%s: machine %+v", self, m)
			}
		}
	}
	if _, err := Succeed(text, "m9"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a machine that the snapshot does not know: %v", err)
	}
}
