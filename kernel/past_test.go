package kernel

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sigma"
)

// Goal: initd is not told that a proc is gone which ended under an earlier sigmad, while this one
// cannot enter what that one remembered: it would start the proc's successor at once, as if the
// proc had been lost, and forget how it ended. Method: a sigmad whose named does not tell which
// realms there are has the directory of one that saw a proc end.
func TestPastBeforeGone(t *testing.T) {
	first := boot(t)
	c := first.connect(sigma.DefaultRealm)
	id := first.spawn(c, sigma.Descriptor{})
	(<-first.procs).exit(3)
	want := first.status(c, id)
	eventually(t, "the end is written down", func() bool {
		i, err := os.Stat(filepath.Join(first.k.cfg.Data, "ended"))
		return err == nil && i.Size() > 0
	})
	first.end()

	m := bootAs(t, Config{Machine: "m1", Data: first.k.cfg.Data}, func(m *machine) {
		m.realms = first.realms
		m.realms.away.Store(true)
	}, services.Named, services.Besched, services.S3)
	look := func() initd.Seen {
		ss, err := registrations.PeerInit.Ask(t.Context(), m.k.reach.CallsOf(identity.Subject{}), initd.Look{
			Questions: []initd.Question{{Realm: sigma.DefaultRealm, Proc: id}}})
		if err != nil || len(ss) != 1 {
			t.Fatalf("got %+v, %v", ss, err)
		}
		return ss[0]
	}
	if got := look(); got.Sight != initd.Unsure {
		t.Errorf("before the past is entered: got %+v, want unsure", got)
	}
	m.realms.away.Store(false)
	eventually(t, "the past is entered", func() bool { return look().Sight == initd.Ended })
	if got := look(); got.Status.Code != want.Code || got.Status.Msg != want.Msg {
		t.Errorf("got the status %+v, want %+v", got.Status, want)
	}
}
