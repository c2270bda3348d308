package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// While the disk of a group is full, writes are refused, reads go on, and members can be opened
// anew. With room it goes on; no acknowledged command is lost.
func TestFullDisk(t *testing.T) {
	for _, count := range []int{1, 3} {
		t.Run(fmt.Sprint("members=", count), func(t *testing.T) {
			n := newNetwork(t, 1)
			n.files = disks(t, t.TempDir(), 48<<20)
			if _, err := n.files.Put(t.Context(), "/ballast", make([]byte, 16<<20), sigma.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			all := n.group(t, count, "/", func(c *Config) { c.SnapshotEvery = 1 << 40 })
			acknowledged, refused := map[string]bool{}, error(nil)
			padding := make([]byte, 400<<10)
			for i := 0; refused == nil && i < 200; i++ {
				k := fmt.Sprintf("%d=%s", i, padding)
				l := leader(t, all)
				switch _, err := l.Propose(within(t, 5*time.Second), Session{}, []byte(k)); sigma.KindOf(err) {
				case sigma.KindNoSpace:
					refused = err
				default:
					if err != nil && count == 1 {
						t.Fatal(err)
					}
					acknowledged[fmt.Sprint(i)] = err == nil
				}
			}
			if refused == nil {
				t.Fatal("no command was refused")
			}
			t.Logf("%d commands, then: %v", len(acknowledged), refused)
			for id, s := range all {
				s.stop()
				all[id] = n.open(t, s.cfg)
			}
			l := leader(t, all)
			_, err := l.Propose(within(t, 5*time.Second), Session{}, padding)
			if sigma.KindOf(err) != sigma.KindNoSpace {
				t.Errorf("after they were opened anew: %v", err)
			}
			for k, is := range acknowledged {
				if is && l.machine.Count[k+"="+string(padding)] != 1 {
					t.Errorf("%s is not there", k)
				}
			}
			if err := n.files.Remove(t.Context(), "/ballast"); err != nil {
				t.Fatal(err)
			}
			wait(t, "room", func() bool {
				_, err := leader(t, all).Propose(within(t, 5*time.Second), Session{}, []byte("a=b"))
				if err != nil && sigma.KindOf(err) != sigma.KindNoSpace {
					t.Error(err)
				}
				return err == nil
			})
		})
	}
}

// A member in memory that comes back with its ID and without its memory ends, and says what to do.
func TestForgot(t *testing.T) {
	n := newNetwork(t, 1)
	all := n.group(t, 3, "", nil)
	for i := range 20 {
		propose(t, all, Session{}, fmt.Sprint("k=", i))
	}
	l := leader(t, all)
	id := l.cfg.ID%3 + 1
	wait(t, "the member to have all", func() bool { return l.Status().Acknowledged[id] == l.Status().Committed })
	all[id].stop()
	cfg := all[id].cfg
	cfg.Machine, cfg.Transport, cfg.Tick = newLedger(), n.port(id), 10*time.Millisecond
	r, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.members[id] = r
	n.mu.Unlock()
	err = r.Run(within(t, time.Minute))
	if sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(sigma.HintOf(err), "with a new id") {
		t.Errorf("got %v, hint %q", err, sigma.HintOf(err))
	}
	delete(all, id)
	propose(t, all, Session{}, "k=last")
}
