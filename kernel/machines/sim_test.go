package machines

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// This file simulates a system: machines that beat, observers that report, links with delays and
// cuts in either direction, machines and observers that stand still. Time is a number; the code
// that judges is the real one. A failure names its seed.

// world is a simulation.
type world struct {
	r        *rand.Rand
	now      time.Time
	queue    queue
	core     *Core
	timing   Timing
	machines []*machine
	delayMax time.Duration
	lost     map[sigma.MachineID]time.Time
	suspects int
}

type machine struct {
	id     sigma.MachineID
	life   sigma.Incarnation
	until  time.Time // it stands still
	dead   bool
	heard  map[sigma.MachineID]time.Time // as an observer
	lives  map[sigma.MachineID]sigma.Incarnation
	last   map[sigma.MachineID]time.Time // when the last beat of each arrives
	deaf   map[sigma.MachineID]bool      // does not receive from these
	helper map[sigma.MachineID]bool      // does not reach these when asked
}

type happening struct {
	at time.Time
	n  int
	do func()
}

type queue []happening

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].n < q[j].n
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(happening)) }
func (q *queue) Pop() any     { x := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return x }

func (w *world) after(d time.Duration, do func()) {
	heap.Push(&w.queue, happening{w.now.Add(d), w.r.Int(), do})
}

// newWorld makes n machines of which the first c are observers and the first is the judge.
func newWorld(t *testing.T, seed uint64, n, c int) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), now: began, timing: DefaultTiming(),
		lost: map[sigma.MachineID]time.Time{}}
	s := State{Epoch: uint64(n) + 1}
	for i := range n {
		m := &machine{id: sigma.MachineID(fmt.Sprint("m", i+1)), life: sigma.Incarnation(i + 2),
			heard: map[sigma.MachineID]time.Time{}, lives: map[sigma.MachineID]sigma.Incarnation{},
			last: map[sigma.MachineID]time.Time{}, deaf: map[sigma.MachineID]bool{}, helper: map[sigma.MachineID]bool{}}
		w.machines = append(w.machines, m)
		s.Members = append(s.Members, Member{ID: m.id, Key: identity.Fingerprint{byte(i + 1)}, Incarnation: m.life,
			Control: i < c, Address: "a:1"})
	}
	core, err := New(w.now, Config{Self: "m1", State: s})
	if err != nil {
		t.Fatal(err)
	}
	w.core = core
	for i, m := range w.machines {
		w.beat(m, c)
		if i > 0 && i < c {
			w.observe(m)
		}
	}
	w.tick()
	return w
}

// delay is how late something of m is: its way through the network, or its standing still.
func (w *world) delay(m *machine) time.Duration {
	d := time.Duration(0)
	if w.delayMax > 0 {
		d = below(w.r, w.delayMax)
		if w.r.IntN(4) == 0 {
			d = w.delayMax
		}
	}
	if still := m.until.Sub(w.now); still > 0 {
		d += still
	}
	return d
}

// beat sends m's beat to the first c machines for ever.
func (w *world) beat(m *machine, c int) {
	if m.dead {
		return
	}
	if still := m.until.Sub(w.now); still > 0 {
		w.after(still, func() { w.beat(m, c) })
		return
	}
	for i := range c {
		o := w.machines[i]
		if o == m || o.deaf[m.id] || m.dead {
			continue
		}
		life := m.life
		at := w.now.Add(w.delay(m)) // in order: what is late holds up what follows, as TCP does
		if at.Before(o.last[m.id]) {
			at = o.last[m.id]
		}
		o.last[m.id] = at
		w.after(at.Sub(w.now), func() { w.arrive(o, m, life, i == 0) })
	}
	w.after(w.timing.Interval, func() { w.beat(m, c) })
}

func (w *world) arrive(o, m *machine, life sigma.Incarnation, judge bool) {
	if still := o.until.Sub(w.now); still > 0 {
		w.after(still+time.Microsecond, func() { w.arrive(o, m, life, judge) })
		return
	}
	if o.dead {
		return
	}
	o.heard[m.id], o.lives[m.id] = w.now, life
	if judge {
		w.step(Heard{m.id, life})
	}
}

// observe has o report to the judge for ever.
func (w *world) observe(o *machine) {
	if o.dead {
		return
	}
	if still := o.until.Sub(w.now); still > 0 {
		w.after(still, func() { w.observe(o) })
		return
	}
	sent, judge := w.now, w.machines[0]
	r := Report{By: o.id, Beat: []Evidence{{o.id, o.life, 0}}}
	for id, at := range o.heard {
		r.Beat = append(r.Beat, Evidence{id, o.lives[id], sent.Sub(at)})
	}
	slices.SortFunc(r.Beat, func(a, b Evidence) int { return int(a.Incarnation) - int(b.Incarnation) })
	if !judge.deaf[o.id] {
		w.after(w.delay(o), func() { w.deliver(judge, func() { w.step(r) }) })
	}
	w.after(w.timing.Interval, func() { w.observe(o) })
}

// deliver does something at a machine when it does not stand still.
func (w *world) deliver(m *machine, do func()) {
	if still := m.until.Sub(w.now); still > 0 {
		w.after(still+time.Microsecond, func() { w.deliver(m, do) })
		return
	}
	do()
}

func (w *world) tick() {
	judge := w.machines[0]
	if still := judge.until.Sub(w.now); still > 0 {
		w.after(still, w.tick) // before what waits to be read, which is the worse order
		return
	}
	w.step(Tick{})
	w.after(w.timing.Tick, w.tick)
}

func (w *world) step(e Event) {
	effects, _ := w.core.Step(w.now, e)
	for _, f := range effects {
		switch f := f.(type) {
		case Lost:
			w.lost[f.ID] = w.now
		case Suspect:
			w.suspects++
		case Probe:
			for _, h := range f.Helpers {
				w.probe(w.find(h), w.find(f.ID))
			}
		}
	}
}

func (w *world) find(id sigma.MachineID) *machine {
	return w.machines[slices.IndexFunc(w.machines, func(m *machine) bool { return m.id == id })]
}

func (w *world) probe(h, m *machine) {
	if h.dead || m.dead || h.helper[m.id] {
		return
	}
	life := m.life
	w.after(w.delay(h)/2+w.delay(m)/2, func() {
		if !m.dead {
			w.step(Vouch{m.id, life, h.id})
		}
	})
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); len(w.queue) > 0 && w.queue[0].at.Before(end); {
		h := heap.Pop(&w.queue).(happening)
		if h.at.After(w.now) {
			w.now = h.at
		}
		h.do()
	}
}

// Goal: no machine is declared lost that is only slow, at most by Slack, whatever mixture of slow
// links and pauses there is, and although the judge and the observers stand still now and then too.
func TestNoFalseAlarm(t *testing.T) {
	suspects := 0
	for seed := range uint64(60) {
		w := newWorld(t, seed, 5+int(seed%8), 1+2*int(seed%3))
		share := 1 + time.Duration(seed/3%3) // of Slack that is for the network; the rest is for standing still
		w.delayMax = (w.timing.Slack() - w.timing.Tick) * share / 3
		pauseMax := w.timing.Slack() - w.delayMax
		for range 40 {
			m := w.machines[w.r.IntN(len(w.machines))]
			if m == w.machines[0] {
				m.until = w.now.Add(below(w.r, 20*time.Second)) // the judge: as long as it likes
			} else if !m.until.After(w.now) {
				m.until = w.now.Add(below(w.r, pauseMax))
			}
			w.run(2 * time.Second)
		}
		if len(w.lost) > 0 {
			t.Fatalf("seed %d: declared lost: %v", seed, w.lost)
		}
		suspects += w.suspects
	}
	if suspects == 0 {
		t.Error("nobody was ever suspected: the test is too tame")
	}
}

// Goal: a link that is cut in one place, in either direction or both, is no machine that is lost,
// as long as some observer hears it, or for a while some other machine.
func TestCutsAreNoLoss(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(t, seed, 6, 3)
		w.delayMax = 200 * time.Millisecond
		m := w.machines[1+w.r.IntN(5)]
		others := []*machine{w.machines[0], w.machines[1], w.machines[2]}
		spare := w.r.IntN(3)
		if others[spare] == m {
			spare = (spare + 1) % 3
		}
		for i, o := range others {
			if o != m && i != spare {
				o.deaf[m.id] = true
			}
		}
		w.run(30 * time.Second)
		if len(w.lost) > 0 {
			t.Fatalf("seed %d: %s is heard by %s, but lost are %v", seed, m.id, others[spare].id, w.lost)
		}
		for _, o := range others {
			o.deaf[m.id] = true
		}
		if w.run(5 * time.Second); len(w.lost) > 0 {
			t.Fatalf("seed %d: others vouch for %s, but lost are %v", seed, m.id, w.lost)
		}
		if w.run(10 * time.Second); len(w.lost) != 1 || w.lost[m.id].IsZero() {
			t.Fatalf("seed %d: %s hears no observer any more, and lost are %v", seed, m.id, w.lost)
		}
	}
}

// Goal: machines that die are declared lost within 1.75 s, and they alone, on a normal
// network; also observers that die, as long as a majority is left.
func TestLossIsNoticed(t *testing.T) {
	var worst time.Duration
	for seed := range uint64(60) {
		c := 1 + 2*int(seed%3)
		w := newWorld(t, seed, 8, c)
		w.delayMax = 20 * time.Millisecond
		w.run(3*time.Second + below(w.r, time.Second))
		died, observers := map[sigma.MachineID]time.Time{}, 0
		for range 1 + w.r.IntN(4) {
			i := 1 + w.r.IntN(7)
			m := w.machines[i]
			if i < c {
				if observers+1 > c/2 {
					continue
				}
				if !m.dead {
					observers++
				}
			}
			if !m.dead {
				m.dead, died[m.id] = true, w.now
			}
			w.run(below(w.r, 500*time.Millisecond))
		}
		w.run(5 * time.Second)
		if len(w.lost) != len(died) {
			t.Fatalf("seed %d: died %v, lost %v", seed, died, w.lost)
		}
		for id, at := range died {
			if d := w.lost[id].Sub(at); w.lost[id].IsZero() || d > 1750*time.Millisecond {
				t.Fatalf("seed %d: %s was lost after %v", seed, id, d)
			} else {
				worst = max(worst, d)
			}
		}
	}
	t.Logf("the longest took %v", worst)
}

// Goal: incarnations and fences only grow, a life that was ended is never alive again, a token is
// never used more often than it was made for, and what was saved is what is, whatever is asked in
// whatever order.
func TestRandom(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		k := kept{0, map[sigma.MachineID]Member{}, map[identity.TokenID]Token{}}
		c, err := New(began, Config{Self: "m0"})
		if err != nil {
			t.Fatal(err)
		}
		now, joins, created, over, newest := began, 0, 0, map[sigma.Incarnation]bool{}, uint64(0)
		step := func(e Event) {
			before := len(c.members)
			effects, err := c.Step(now, e)
			if err != nil && len(effects) > 0 {
				t.Fatalf("seed %d: %T gave %v and %v", seed, e, effects, err)
			}
			for _, f := range effects {
				k.save(f)
				switch f := f.(type) {
				case Lost:
					if over[f.Incarnation] || uint64(f.Fence) <= newest {
						t.Fatalf("seed %d: %+v after counter %d", seed, f, newest)
					}
					over[f.Incarnation], newest = true, uint64(f.Fence)
				case Certify:
					if over[f.Member.Incarnation] || uint64(f.Member.Incarnation) <= newest ||
						k.epoch < uint64(f.Member.Incarnation) {
						t.Fatalf("seed %d: %+v after counter %d, saved %d", seed, f, newest, k.epoch)
					}
					newest = uint64(f.Member.Incarnation)
				}
			}
			if e, ok := e.(Enrol); ok && err == nil && len(c.members) > before {
				joins++
				if !e.ProvenToken {
					t.Fatalf("seed %d: joined without a token", seed)
				}
			}
		}
		step(Found{Request{ID: "m0", Key: identity.Fingerprint{1}, Address: "a:1"}})
		for range 400 {
			now = now.Add(below(r, 300*time.Millisecond))
			id := sigma.MachineID(fmt.Sprint("m", r.IntN(6)))
			req := Request{ID: id, Key: identity.Fingerprint{byte(1 + r.IntN(8))}, Address: "a:1"}
			tok := identity.TokenID(fmt.Sprint(r.IntN(20)))
			life := sigma.Incarnation(r.IntN(30))
			switch r.IntN(9) {
			case 0:
				if c.tokens[tok] == nil {
					created += 2
				}
				step(MakeToken{ID: tok, Uses: 2})
			case 1:
				step(Enrol{req, tok, r.IntN(3) > 0})
			case 2:
				step(Remove{id, r.IntN(2) == 0})
			case 3:
				step(Heard{id, life})
			case 4:
				step(DrainStart{id})
			case 5:
				step(Control{id, r.IntN(2) == 0})
			case 6:
				step(RevokeToken{tok})
			default:
				step(Tick{})
			}
		}
		if joins > created {
			t.Fatalf("seed %d: %d joins with tokens for %d", seed, joins, created)
		}
		again, err := New(now, Config{Self: "m0", State: k.state()})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprint(c.Roster(), c.Tokens()), fmt.Sprint(again.Roster(), again.Tokens()); a != b {
			t.Fatalf("seed %d: there is\n%s\nand saved was\n%s", seed, a, b)
		}
	}
}

// below is a time from 0 up to d.
func below(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
