package kernel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// Events are bounded for each realm and in all, come in order from any position on, and a realm is
// told of nothing but its own.
func TestEventLog(t *testing.T) {
	now := time.UnixMicro(1_000_000)
	l := newEventLog("m1", func() time.Time { return now })
	l.ofSystem(state.Event{Event: state.EventMachineLost, Machine: "m2"})
	for i := range 3 * eventsOfRealm {
		l.ofRealm(state.Event{Event: state.EventProcStarted, Realm: "a", Proc: fmt.Sprint(i)})
	}
	l.ofRealm(state.Event{Event: state.EventProcEnded, Realm: "b", Proc: "x"})
	if es := l.after(asked{realm: "b"}, 0); len(es) != 1 || es[0].Proc != "x" || es[0].At != "m1" {
		t.Errorf("b is told %+v", es)
	}
	es := l.after(asked{realm: "a"}, 0)
	if len(es) != eventsOfRealm || es[0].Proc != fmt.Sprint(2*eventsOfRealm) ||
		es[len(es)-1].Proc != fmt.Sprint(3*eventsOfRealm-1) {
		t.Errorf("a is told %d, from %+v on", len(es), es[0])
	}
	for _, e := range es {
		if e.Realm != "a" {
			t.Errorf("a is told %+v", e)
		}
	}
	gap := l.after(asked{realm: "a"}, es[0].Seq-10)
	if len(gap) != eventsOfRealm+1 || gap[0].Event != state.EventGap || gap[0].Seq != es[0].Seq-1 {
		t.Errorf("after what is not remembered: %d, first %+v", len(gap), gap[0])
	}
	if rest := l.after(asked{realm: "a"}, es[9].Seq); len(rest) != len(es)-10 || rest[0].Seq != es[10].Seq {
		t.Errorf("after the tenth: %d", len(rest))
	}
	if all := l.after(asked{system: true, all: true}, 0); len(all) != eventsOfRealm+2 ||
		all[0].Event != state.EventMachineLost {
		t.Errorf("the provider is told %d", len(all))
	}
	if own := l.after(asked{system: true, realm: "b"}, 0); len(own) != 2 {
		t.Errorf("the provider in b is told %+v", own)
	}
	if far := l.after(asked{realm: "b"}, 1<<63); len(far) != 1 {
		t.Errorf("after a position that is not reached: %+v", far)
	}
	for i := range 2 * eventRealms {
		l.ofRealm(state.Event{Event: state.EventProcStarted, Realm: fmt.Sprint("r", i)})
	}
	if len(l.realms) != eventRealms || len(l.after(asked{realm: "a"}, 0)) != 0 {
		t.Errorf("%d realms are remembered", len(l.realms))
	}
	now = now.Add(time.Second)
	if later := newEventLog("m1", func() time.Time { return now }); later.seq <= l.seq {
		t.Error("a later sigmad has lower numbers")
	}
}

// A proc's start is told once, and its end once; what is not told of is not kept.
func TestEventsOfProcs(t *testing.T) {
	l := newEventLog("m1", time.Now)
	p := &sigma.ProcInfo{ID: "p", Realm: "a", State: sigma.ProcRunning}
	l.proc(p, false)
	l.proc(p, true)
	l.proc(p, true)
	p.State, p.Status = sigma.ProcEnded, sigma.Status{Code: sigma.StatusError, Msg: "exit code 3"}
	l.proc(p, true)
	es := l.after(asked{realm: "a"}, 0)
	if len(es) != 2 || es[0].Event != state.EventProcStarted || es[1].Event != state.EventProcEnded ||
		es[1].Message != "error: exit code 3" || len(l.told) != 0 {
		t.Errorf("%+v", es)
	}
	if got, err := parseEvents([]byte(`{"at":"m2","seq":1}`+"\n"+`{"at":"m1","seq":2}`+"\n"), "m1"); err != nil ||
		len(got) != 1 || got[0].Seq != 2 {
		t.Errorf("what m1 says of itself alone: %+v, %v", got, err)
	}
}

// Goal: events whose messages JSON writes sixfold are told too, in answers that have room for them,
// each once and in order.
func TestEventsOfControlCharacters(t *testing.T) {
	k := &Kernel{events: newEventLog("m1", time.Now)}
	const all = 200
	for i := range all {
		k.events.ofRealm(state.Event{Event: state.EventProcEnded, Realm: "a", Proc: fmt.Sprint(i),
			Message: strings.Repeat("\x01", eventMessage)})
	}
	q, seq, n := asked{system: true, all: true}, uint64(0), 0
	for pages := 0; ; pages++ {
		payload, err := sigmap.Payload(func(c *sigmap.Coder) { codeAsked(c, &q); c.U64(&seq) })
		if err != nil {
			t.Fatal(err)
		}
		reply, err := k.peerEvents(t.Context(), identity.Subject{}, payload)
		if err != nil {
			t.Fatalf("after %d events: %v", n, err)
		}
		var lines []byte
		if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Data(&lines) }); err != nil {
			t.Fatal(err)
		}
		es, err := parseEvents(lines, "m1")
		if err != nil {
			t.Fatal(err)
		}
		if len(es) == 0 {
			break
		}
		for _, e := range es {
			if e.Proc != fmt.Sprint(n) {
				t.Fatalf("got %s, want %d", e.Proc, n)
			}
			n++
		}
		seq = es[len(es)-1].Seq
	}
	if n != all {
		t.Errorf("%d events were told", n)
	}
}

// Goal: each change of a member is told once, by the first machine that is alive.
func TestTellMembers(t *testing.T) {
	const leaves = 7 // the life whose machine said that it is being stopped
	one := func(change func(*identity.Member)) []identity.Member {
		m := identity.Member{Machine: "m2", Incarnation: 1}
		change(&m)
		return []identity.Member{{Machine: "m1", Incarnation: 1}, m}
	}
	alive := func(*identity.Member) {}
	cordoned := func(m *identity.Member) { m.Cordoned = true }
	draining := func(m *identity.Member) { m.Cordoned, m.Draining = true, true }
	lost := func(m *identity.Member) { m.Lost = true }
	left := func(m *identity.Member) { m.Lost, m.Incarnation = true, leaves }
	leaving := func(m *identity.Member) { m.Incarnation = leaves }
	for _, c := range []struct {
		before, after func(*identity.Member)
		told          string
	}{
		{alive, alive, ""},
		{alive, cordoned, state.EventMachineCordoned},
		{alive, draining, state.EventMachineDrained},
		{cordoned, draining, state.EventMachineDrained},
		{cordoned, alive, state.EventMachineUncordoned},
		{draining, alive, state.EventMachineUncordoned},
		{alive, lost, state.EventMachineLost},
		{leaving, left, state.EventMachineLeft},
		{lost, alive, state.EventMachineJoined},
	} {
		for _, self := range []sigma.MachineID{"m1", "m2"} {
			k := &Kernel{cfg: Config{Machine: self}, events: newEventLog(self, time.Now), own: newMembership("")}
			if _, err := k.peerLeave(t.Context(), identity.Subject{Machine: "m2", Incarnation: leaves},
				nil); err != nil {
				t.Fatal(err)
			}
			k.tellMembers(one(c.before), one(c.after))
			var told []string
			for _, e := range k.events.after(asked{system: true, all: true}, 0) {
				told = append(told, e.Event+" of "+e.Machine)
			}
			want := ""
			if c.told != "" && self == "m1" {
				want = c.told + " of m2"
			}
			if got := strings.Join(told, ", "); got != want {
				t.Errorf("%s tells %q, want %q", self, got, want)
			}
		}
	}
}
