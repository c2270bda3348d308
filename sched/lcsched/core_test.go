package lcsched

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

var start = time.Unix(1000, 0)

// desk is a core at a time.
type desk struct {
	t   *testing.T
	c   *Core
	now time.Time
}

func newDesk(t *testing.T) *desk { return &desk{t, NewCore(), start} }

func life(m string) sigma.Life { return sigma.Life{Machine: sigma.MachineID(m), Incarnation: 1} }

// attend offers machines of 4 cores and 4 GiB, with labels after a colon, as in "m1:zone=a".
func (d *desk) attend(ms ...string) {
	for _, m := range ms {
		name, labels, _ := strings.Cut(m, ":")
		of := map[string]string{}
		for _, l := range strings.Fields(labels) {
			k, v, _ := strings.Cut(l, "=")
			of[k] = v
		}
		d.step(Attended{Life: life(name), CPU: 4000, Memory: 4 * sigma.GiB, Labels: of})
	}
}

func job(id string, cpu sigma.MilliCPU, memory sigma.Bytes, change ...func(*Job)) Job {
	j := Job{ID: sigma.ProcID(id), Realm: "r", Name: id, CPU: cpu, Memory: memory, Home: life("m1")}
	for _, f := range change {
		f(&j)
	}
	return j
}

func named(name string) func(*Job)       { return func(j *Job) { j.Name = name } }
func spread(label string) func(*Job)     { return func(j *Job) { j.Spread = label } }
func where(labels ...string) func(*Job)  { return func(j *Job) { j.Where = labels } }
func (d *desk) wait(t time.Duration)     { d.now = d.now.Add(t) }
func (d *desk) step(e Event) string      { return said(d.c.Step(d.now, e)) }
func (d *desk) enqueue(js ...Job) string { return d.step(Enqueued{js}) }
func (d *desk) release(m, id string) string {
	return d.step(Released{life(m), []sigma.ProcID{sigma.ProcID(id)}})
}

// said is effects in short: "a>m1" or "a!why".
func said(fs []Effect) string {
	var out []string
	for _, f := range fs {
		switch f := f.(type) {
		case Grant:
			out = append(out, fmt.Sprintf("%s>%s", f.Job.ID, f.To.Machine))
		case Refuse:
			out = append(out, fmt.Sprintf("%s!%s", f.Job.ID, f.Why))
		}
	}
	return strings.Join(out, " ")
}

func (d *desk) want(what, got, want string) {
	d.t.Helper()
	if got != want {
		d.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// 001 §4.3: lcsched chooses a machine with sufficient unreserved resources, if there is one;
// otherwise it queues the proc until a machine becomes available.
func TestPaperLCQueuesUntilAMachineHasRoom(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("the first", d.enqueue(job("a", 3000, sigma.GiB)), "a>m1")
	d.want("the second", d.enqueue(job("b", 3000, sigma.GiB)), "")
	if w := d.c.Waiting(); len(w) != 1 ||
		w[0].Why != "what is reserved leaves no machine with 3 cores and 1GiB of memory" {
		t.Errorf("waiting: %+v", w)
	}
	d.want("its end", d.release("m1", "a"), "b>m1")
}

// 001 §4.3: the sum of LC reservations on each machine is at most its capacity, in cores and in
// memory.
func TestPaperLCReservationsNeverExceedCapacity(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("cores", d.enqueue(job("a", 4000, sigma.MiB), job("b", 1, sigma.MiB)), "a>m1")
	d.want("its end", d.release("m1", "a"), "b>m1")
	d.want("memory", d.enqueue(job("c", 1, 4*sigma.GiB)), "")
	d.want("a proc without cores", d.enqueue(job("d", 0, sigma.GiB)), "d>m1")
}

// What never fits is refused at once, and told what is missing.
func TestRefusesWhatCanNeverFit(t *testing.T) {
	d := newDesk(t)
	d.attend("m1:zone=a")
	d.step(Attended{Life: life("m2"), CPU: 1000, Memory: 64 * sigma.GiB})
	d.wait(settle)
	for _, c := range []struct {
		j    Job
		want string
	}{
		{job("a", 5000, sigma.GiB), "a!it reserves 5 cores; no machine has more than 4"},
		{job("b", 1000, 65*sigma.GiB), "b!it reserves 65GiB of memory; no machine has more than 64GiB"},
		{job("c", 2000, 8*sigma.GiB), "c!it reserves 2 cores and 8GiB of memory; no single machine has both"},
		{job("d", 1, 1, where("zone=b")), "d!there is no machine with zone=b"},
		{job("e", 1, 5*sigma.GiB, where("zone=a")),
			"e!it reserves 5GiB of memory; no machine with zone=a has more than 4GiB"},
		{job("f", 1<<31, 1<<63), "f!it reserves 2.15e+06 cores; no machine has more than 4"},
	} {
		d.want(string(c.j.ID), d.enqueue(c.j), c.want)
	}
}

// A leader that has just begun, or a machine that flaps, makes nobody be refused.
func TestRefusesNothingBeforeMachinesHaveSpoken(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("at first", d.enqueue(job("a", 5000, 1)), "")
	d.step(Attended{Life: life("m2"), CPU: 8000, Memory: sigma.GiB})
	d.want("the larger machine has it", d.release("m2", "a"), "")
	d.step(Left{life("m2")})
	d.wait(time.Hour / 100)
	d.want("while it is away for short", d.enqueue(job("b", 8000, 1)), "")
	if at := d.c.Wakes(d.now); at.IsZero() {
		t.Error("nobody wakes the core")
	}
	d.wait(absence)
	d.want("when it stays away", d.step(Ticked{}), "b!it reserves 8 cores; no machine has more than 4")
}

// Procs of a name are spread over the values of a label, or over machines; a named domain is kept
// to.
func TestSpreadsOverFailureDomains(t *testing.T) {
	d := newDesk(t)
	d.attend("m1:zone=a", "m2:zone=a", "m3:zone=b")
	z := func(id string) Job { return job(id, 500, sigma.MiB, named("kv"), spread("zone")) }
	d.want("zones", d.enqueue(z("1"), z("2"), z("3"), z("4")), "1>m1 2>m3 3>m1 4>m3")
	m := func(id string) Job { return job(id, 500, sigma.MiB, named("web")) }
	d.want("machines", d.enqueue(m("5"), m("6"), m("7")), "5>m1 6>m3 7>m2")
	d.want("a named domain", d.enqueue(job("8", 500, sigma.MiB, named("web"), where("zone=b"))), "8>m3")
}

// A leader that was restarted learns from each machine what is reserved there, and over-commits
// none.
func TestPaperLCRelearnsEveryMachineAfterRestart(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.enqueue(job("a", 3000, sigma.GiB), job("b", 3000, sigma.GiB))
	d.c = NewCore()
	d.want("before any machine spoke", d.enqueue(job("b", 3000, sigma.GiB)),
		"") // its home attends not yet, and will send it again
	d.step(Attended{Life: life("m1"), CPU: 4000, Memory: 4 * sigma.GiB,
		Held: []Held{{ID: "a", Realm: "r", CPU: 3000, Memory: sigma.GiB}}})
	d.want("after", d.enqueue(job("a", 3000, sigma.GiB), job("b", 3000, sigma.GiB)), "")
	if cpu, memory := d.c.Held("m1"); cpu != 3000 || memory != sigma.GiB {
		t.Errorf("held: %v, %v", cpu, memory)
	}
	d.want("its end", d.release("m1", "a"), "b>m1")
}

// Who waits for long is not overtaken for ever.
func TestLargeJobIsNotStarved(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("small", d.enqueue(job("s0", 2000, 1), job("s1", 2000, 1)), "s0>m1 s1>m1")
	d.want("large", d.enqueue(job("l", 4000, 1)), "")
	d.release("m1", "s0")
	d.want("overtaken", d.enqueue(job("s2", 2000, 1)), "s2>m1")
	d.wait(patience)
	d.step(Ticked{})
	d.release("m1", "s1")
	d.want("kept", d.enqueue(job("s3", 2000, 1)), "")
	d.want("large at last", d.release("m1", "s2"), "l>m1")
	d.want("small after it", d.release("m1", "l"), "s3>m1")
}

// LC procs go where no best-effort proc has to make room, if they can.
func TestPrefersMachinesWhereNobodyIsEvicted(t *testing.T) {
	d := newDesk(t)
	d.attend("m1", "m2")
	d.step(Lent{life("m1"), 4 * sigma.GiB})
	d.want("memory is free at m2", d.enqueue(job("a", 100, sigma.GiB)), "a>m2")
}

// A machine that is lost takes its reservations with it; what it was the home of is not placed.
func TestPaperMachineCrashFreesItsReservations(t *testing.T) {
	d := newDesk(t)
	d.attend("m1", "m2")
	other := func(j *Job) { j.Home = life("m2") }
	d.want("both", d.enqueue(job("a", 4000, 1, other), job("b", 4000, 1, other), job("c", 1000, 1),
		job("d", 1000, 1, other)), "a>m1 b>m2")
	d.want("it is lost", d.step(Left{life("m1")}), "") // with c, whose home it was
	if w := d.c.Waiting(); len(w) != 1 || w[0].ID != "d" {
		t.Errorf("waiting: %+v", w)
	}
	d.want("another life", d.step(Attended{Life: sigma.Life{Machine: "m1", Incarnation: 2}, CPU: 4000,
		Memory: sigma.GiB}), "d>m1")
	d.want("what the old life says", d.step(Released{life("m1"), []sigma.ProcID{"d"}}), "")
}

// A machine that attends in another life, or anew, is not given anything under the old one.
func TestNothingIsGrantedToALifeThatIsOver(t *testing.T) {
	d := newDesk(t)
	d.attend("m1", "m2")
	d.want("all is taken", d.enqueue(job("a", 4000, 1), job("b", 4000, 1), job("c", 4000, 1)), "a>m1 b>m2")
	fs := d.c.Step(d.now, Attended{Life: sigma.Life{Machine: "m2", Incarnation: 2}, CPU: 4000, Memory: sigma.GiB})
	if g, ok := fs[0].(Grant); len(fs) != 1 || !ok || g.To.Incarnation != 2 {
		t.Errorf("got %+v", fs)
	}
}

// A job that its machine declines waits again, and is not sent there before something changed.
func TestDeclinedWaitsAgain(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("granted", d.enqueue(job("a", 1000, 1)), "a>m1")
	d.want("declined", d.step(Declined{life("m1"), "a"}), "")
	d.attend("m2")
	d.want("elsewhere", d.step(Ticked{}), "")
	if cpu, _ := d.c.Held("m2"); cpu != 1000 {
		t.Error("it is not at m2")
	}
}

// Goal: a machine that takes nothing is not granted two jobs in turns that it has declined both.
func TestDeclinedAreNotGrantedInTurns(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.want("granted", d.enqueue(job("a", 4000, 1)), "a>m1")
	d.want("no room", d.enqueue(job("b", 4000, 1)), "")
	d.want("a is declined", d.step(Declined{life("m1"), "a"}), "b>m1")
	d.want("b is declined", d.step(Declined{life("m1"), "b"}), "")
	d.wait(retry)
	d.want("later", d.step(Ticked{}), "b>m1")
}

// Goal: a job that waited for the machine that it should be near, was granted it and declined, goes
// elsewhere, and is refused if it fits nowhere, even when that machine is away for good.
func TestDeclinedHopesNoMore(t *testing.T) {
	near := func(j *Job) { j.Near = "m2" }
	for _, room := range []bool{true, false} {
		d := newDesk(t)
		d.attend("m1", "m2")
		d.want("granted", d.enqueue(job("a", 4000, 1, near)), "a>m2")
		d.want("its machine has no room", d.enqueue(job("b", 3000, 1, near)), "")
		d.want("it has room", d.release("m2", "a"), "b>m2")
		d.wait(sigma.NearWait)
		if !room {
			d.step(Attended{Life: life("m1"), CPU: 1000, Memory: 4 * sigma.GiB})
			d.want("declined", d.step(Declined{life("m2"), "b"}), "")
			d.step(Left{life("m2")})
			d.wait(absence)
			if got := d.step(Ticked{}); !strings.HasPrefix(got, "b!") {
				t.Errorf("it is not refused: %q", got)
			}
			continue
		}
		d.want("declined", d.step(Declined{life("m2"), "b"}), "b>m1")
	}
}

// Goal: when a job has waited for long enough for the machine that it should be near, that one is
// looked at, and not all that wait; these have their turn within the time of a retry.
func TestHopeEndsForOneAlone(t *testing.T) {
	d := newDesk(t)
	d.attend("m1:zone=a", "m2")
	d.step(Ticked{})
	near := func(j *Job) { j.Near = "m2" }
	d.want("granted", d.enqueue(job("full", 4000, 1, near)), "full>m2")
	d.want("granted", d.enqueue(job("a", 1000, 1, where("zone=a"))), "a>m1")
	d.want("declined", d.step(Declined{life("m1"), "a"}), "")
	d.want("no room", d.enqueue(job("b", 1000, 1, near)), "")
	d.wait(sigma.NearWait)
	d.want("it has waited for long enough", d.step(Ticked{}), "b>m1")
	d.enqueue(job("c", 1000, 1, near))
	d.wait(retry)
	d.want("all are looked at", d.step(Ticked{}), "a>m1 c>m1")
}

// Goal: whatever comes in whatever order, no machine holds more than it has, no job is granted
// twice unless it was declined, and when all have ended nothing is held and nothing waits.
func TestCoreRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 8))
		c, now := NewCore(), start
		held := map[sigma.ProcID]sigma.Life{}
		jobs := map[sigma.ProcID]Job{}
		up := map[sigma.MachineID]sigma.Life{}
		lives := sigma.Incarnation(0)
		see := func(fs []Effect) {
			for _, f := range fs {
				switch f := f.(type) {
				case Grant:
					if _, twice := held[f.Job.ID]; twice || up[f.To.Machine] != f.To {
						t.Fatalf("seed %d: %s granted twice, or to a machine that is away", seed, f.Job.ID)
					}
					held[f.Job.ID] = f.To
				case Refuse:
					delete(jobs, f.Job.ID)
				}
			}
			for _, m := range c.machines {
				if m.heldCPU > m.cpu || m.heldMem > m.memory {
					t.Fatalf("seed %d: %s holds %v of %v, %v of %v", seed, m.life.Machine, m.heldCPU, m.cpu, m.heldMem,
						m.memory)
				}
			}
		}
		for i := range 600 {
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
			m := sigma.MachineID(fmt.Sprint("m", r.IntN(4)))
			switch n := r.IntN(20); {
			case n < 2:
				if l, ok := up[m]; ok {
					delete(up, m)
					for id, at := range held {
						if at == l {
							delete(held, id)
						}
					}
					see(c.Step(now, Left{l}))
				} else {
					lives++
					up[m] = sigma.Life{Machine: m, Incarnation: lives}
					see(c.Step(now, Attended{Life: up[m], CPU: 4000, Memory: 4 * sigma.GiB,
						Labels: map[string]string{"zone": string(m[1:])}}))
				}
			case n < 12:
				j := job(fmt.Sprint("j", i), sigma.MilliCPU(r.IntN(5000)), sigma.Bytes(r.IntN(5))*sigma.GiB,
					named(fmt.Sprint(r.IntN(3))))
				j.Home = up[m]
				jobs[j.ID] = j
				see(c.Step(now, Enqueued{[]Job{j, j}}))
			case n < 17:
				for _, id := range slices.Sorted(maps.Keys(held))[:min(1, len(held))] {
					at := held[id]
					delete(held, id)
					if r.IntN(4) == 0 {
						see(c.Step(now, Declined{at, id}))
					} else {
						see(c.Step(now, Released{at, []sigma.ProcID{id}}))
					}
				}
			case n < 18:
				see(c.Step(now, Canceled{up[m], sigma.ProcID(fmt.Sprint("j", r.IntN(i+1)))}))
			default:
				see(c.Step(now, Ticked{}))
			}
		}
		for _, l := range up {
			see(c.Step(now, Lent{l, 0}))
		}
		for range 2000 {
			if len(held) == 0 && len(c.queue) == 0 {
				break
			}
			for _, id := range slices.Sorted(maps.Keys(held)) {
				at := held[id]
				delete(held, id)
				see(c.Step(now, Released{at, []sigma.ProcID{id}}))
			}
			now = now.Add(absence)
			see(c.Step(now, Ticked{}))
		}
		if len(c.queue) != 0 && len(up) > 0 || len(c.at) != 0 || len(c.spread) != 0 || len(c.known) != len(c.queue) {
			t.Errorf("seed %d: %d wait, %d are held", seed, len(c.queue), len(c.at))
		}
	}
}

func FuzzCodes(f *testing.F) {
	a := Attendance{CPU: 1000, Labels: map[string]string{"zone": "a"}}
	b, _ := CallAttend.Payload(a)
	f.Add(b)
	b, _ = CallHeld.Payload([]Held{{ID: "p", Realm: "r"}})
	f.Add(b)
	x := Next{Jobs: []Job{job("a", 1, 1, where("zone=a"))}, Refused: []Refusal{{"b", "why"}}}
	b, _ = sigmap.Payload(func(c *sigmap.Coder) { codeNext(c, &x) })
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var x Next
		var ws []Waits
		_, err := CallAttend.Parse(b)
		held, err2 := CallHeld.Parse(b)
		err3 := sigmap.Parse(b, func(c *sigmap.Coder) { codeNext(c, &x) })
		err4 := sigmap.Parse(b, func(c *sigmap.Coder) { codeWaits(c, &ws) })
		if len(held) > len(b) || len(x.Jobs) > len(b) || len(ws) > len(b) {
			t.Error("more entries than bytes", err, err2, err3, err4)
		}
	})
}

// The service answers while it leads, and no longer.
func TestServiceLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		defer s.Lead(false)
		begin := func(m sigma.MachineID) (root sigma.Caller, attended chan error) {
			f, err := s.Attach(t.Context(), sigma.Principal{System: true, Machine: m}, "")
			if err != nil {
				t.Fatal(err)
			}
			root, attended = f.(sigma.Caller), make(chan error, 1)
			go func() {
				attended <- CallAttend.Tell(t.Context(), root, Attendance{Incarnation: 1, CPU: 2000, Memory: sigma.GiB})
			}()
			synctest.Wait()
			return root, attended
		}
		if _, over := begin("m1"); sigma.KindOf(<-over) != sigma.KindUnavailable {
			t.Error("it answers though it does not lead")
		}
		s.Lead(true)
		root, over := begin("m1")
		jobs := []Job{job("a", 1000, 1), job("b", 9000, 1)}
		if err := CallEnqueue.Tell(t.Context(), root, jobs); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"a", "b"} { // b when the leader has settled
			x, err := CallNext.Ask(t.Context(), root, sigmap.None{})
			if err != nil || want == "a" && (len(x.Jobs) != 1 || x.Jobs[0].ID != "a") || want == "b" &&
				(len(x.Refused) != 1 || x.Refused[0].ID != "b") {
				t.Fatalf("%s: got %+v, %v", want, x, err)
			}
		}
		s.Lead(false)
		if err := <-over; err == nil {
			t.Error("the machine attends one that leads no more")
		}
		if _, err := CallNext.Ask(t.Context(), root, sigmap.None{}); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("next: %v", err)
		}
	})
}
