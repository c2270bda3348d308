package eventlog

import (
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Events are bounded for each realm and in all, come in order from any position on, and a realm is
// told of nothing but its own.
func TestEventLog(t *testing.T) {
	now := time.UnixMicro(1_000_000)
	l := New("m1", func() time.Time { return now })
	l.OfSystem(report.Event{Event: report.EventMachineLost, Machine: "m2"})
	for i := range 3 * eventsOfRealm {
		l.OfRealm(report.Event{Event: report.EventProcStarted, Realm: "a", Proc: fmt.Sprint(i)})
	}
	l.OfRealm(report.Event{Event: report.EventProcEnded, Realm: "b", Proc: "x"})
	if es := l.After(Asked{Realm: "b"}, 0); len(es) != 1 || es[0].Proc != "x" || es[0].At != "m1" {
		t.Errorf("b is told %+v", es)
	}
	es := l.After(Asked{Realm: "a"}, 0)
	if len(es) != eventsOfRealm || es[0].Proc != fmt.Sprint(2*eventsOfRealm) ||
		es[len(es)-1].Proc != fmt.Sprint(3*eventsOfRealm-1) {
		t.Errorf("a is told %d, from %+v on", len(es), es[0])
	}
	for _, e := range es {
		if e.Realm != "a" {
			t.Errorf("a is told %+v", e)
		}
	}
	gap := l.After(Asked{Realm: "a"}, es[0].Seq-10)
	if len(gap) != eventsOfRealm+1 || gap[0].Event != report.EventGap || gap[0].Seq != es[0].Seq-1 {
		t.Errorf("after what is not remembered: %d, first %+v", len(gap), gap[0])
	}
	if rest := l.After(Asked{Realm: "a"}, es[9].Seq); len(rest) != len(es)-10 || rest[0].Seq != es[10].Seq {
		t.Errorf("after the tenth: %d", len(rest))
	}
	if all := l.After(Asked{System: true, All: true}, 0); len(all) != eventsOfRealm+2 ||
		all[0].Event != report.EventMachineLost {
		t.Errorf("the provider is told %d", len(all))
	}
	if own := l.After(Asked{System: true, Realm: "b"}, 0); len(own) != 2 {
		t.Errorf("the provider in b is told %+v", own)
	}
	if far := l.After(Asked{Realm: "b"}, 1<<63); len(far) != 1 {
		t.Errorf("after a position that is not reached: %+v", far)
	}
	for i := range 2 * realmsMax {
		l.OfRealm(report.Event{Event: report.EventProcStarted, Realm: fmt.Sprint("r", i)})
	}
	if len(l.realms) != realmsMax || len(l.After(Asked{Realm: "a"}, 0)) != 0 {
		t.Errorf("%d realms are remembered", len(l.realms))
	}
	now = now.Add(time.Second)
	if later := New("m1", func() time.Time { return now }); later.seq <= l.seq {
		t.Error("a later sigmad has lower numbers")
	}
}

// A proc's start is told once, and its end once; what is not told of is not kept.
func TestEventsOfProcs(t *testing.T) {
	l := New("m1", time.Now)
	p := &sigma.ProcInfo{ID: "p", Realm: "a", State: sigma.ProcRunning}
	l.OfProc(p, false)
	l.OfProc(p, true)
	l.OfProc(p, true)
	p.State, p.Status = sigma.ProcEnded, sigma.Status{Code: sigma.StatusError, Msg: "exit code 3"}
	l.OfProc(p, true)
	es := l.After(Asked{Realm: "a"}, 0)
	if len(es) != 2 || es[0].Event != report.EventProcStarted || es[1].Event != report.EventProcEnded ||
		es[1].Message != "error: exit code 3" || len(l.told) != 0 {
		t.Errorf("%+v", es)
	}
	if got, err := Parse([]byte(`{"at":"m2","seq":1}`+"\n"+`{"at":"m1","seq":2}`+"\n"), "m1"); err != nil ||
		len(got) != 1 || got[0].Seq != 2 {
		t.Errorf("what m1 says of itself alone: %+v, %v", got, err)
	}
}
