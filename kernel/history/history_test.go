package history

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: events whose messages JSON writes sixfold are told too, in answers that have room for them,
// each once and in order.
func TestEventsOfControlCharacters(t *testing.T) {
	x := &History{Events: eventlog.New("m1", time.Now)}
	const all = 200
	for i := range all {
		x.Events.OfRealm(report.Event{Event: report.EventProcEnded, Realm: "a", Proc: fmt.Sprint(i),
			Message: strings.Repeat("\x01", eventlog.MessageMax)})
	}
	to := sigmap.Via(func(ctx context.Context, _ string, payload []byte) ([]byte, error) {
		reply, _, err := reach.On(peerEvents, x.eventsHere).Call(identity.Subject{}, ctx, payload)
		return reply, err
	})
	q, seq, n := eventlog.Asked{System: true, All: true}, uint64(0), 0
	for pages := 0; ; pages++ {
		lines, err := peerEvents.Ask(t.Context(), to, eventsAsk{q, seq})
		if err != nil {
			t.Fatalf("after %d events: %v", n, err)
		}
		es, err := eventlog.Parse(lines, "m1")
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
		{alive, cordoned, report.EventMachineCordoned},
		{alive, draining, report.EventMachineDrained},
		{cordoned, draining, report.EventMachineDrained},
		{cordoned, alive, report.EventMachineUncordoned},
		{draining, alive, report.EventMachineUncordoned},
		{alive, lost, report.EventMachineLost},
		{leaving, left, report.EventMachineLeft},
		{lost, alive, report.EventMachineJoined},
	} {
		for _, self := range []sigma.MachineID{"m1", "m2"} {
			x := &History{cfg: Config{Machine: self, Cluster: cluster.New(cluster.Config{})},
				Events: eventlog.New(self, time.Now)}
			if _, err := x.cfg.Cluster.PeerLeaves(t.Context(), identity.Subject{Machine: "m2", Incarnation: leaves},
				sigmap.None{}); err != nil {
				t.Fatal(err)
			}
			x.TellMembers(one(c.before), one(c.after))
			var told []string
			for _, e := range x.Events.After(eventlog.Asked{System: true, All: true}, 0) {
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
