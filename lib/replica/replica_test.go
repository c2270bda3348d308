package replica

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// A group of one in memory needs neither Run nor a log.
func TestSolo(t *testing.T) {
	m := newLedger()
	r, err := Open(t.Context(), Config{ID: 1, Peers: map[uint64]string{1: "a"}, Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for i, want := range []string{"", "0", "1"} {
		if got, err := r.Propose(ctx, Session{}, fmt.Append(nil, "k=", i)); err != nil || string(got) != want {
			t.Errorf("got %q and %v, want %q", got, err, want)
		}
	}
	if err := r.Read(ctx); err != nil || !r.Leads() {
		t.Errorf("got %v, and leads: %v", err, r.Leads())
	}
	if s := r.Status(); s.Applied != 4 || s.LeaderName != "a" || len(s.Members) != 1 {
		t.Errorf("got %+v", s)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.Propose(ctx, Session{}, nil); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("after Close: got %v", err)
	}
}

func TestBadInput(t *testing.T) {
	m := newLedger()
	for name, cfg := range map[string]Config{
		"no id": {Machine: m}, "no machine": {ID: 1}, "no transport": {ID: 1, Machine: m,
			Peers: map[uint64]string{1: "a", 2: "b"}},
		"not a peer": {ID: 1, Machine: m, Peers: map[uint64]string{2: "b"}},
		"no name":    {ID: 1, Machine: m, Peers: map[uint64]string{1: ""}},
		"commands":   {ID: 1, Machine: m, CommandMax: 9 << 20},
		"ticks":      {ID: 1, Machine: m, ElectionTicks: 1},
		"negative":   {ID: 1, Machine: m, LogKeep: -1},
	} {
		if _, err := Open(t.Context(), cfg); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
	r, err := Open(t.Context(), Config{ID: 1, Peers: map[uint64]string{1: "a"}, Machine: m, CommandMax: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Propose(t.Context(), Session{}, make([]byte, 11)); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("too long: got %v", err)
	}
	if _, err := r.Propose(t.Context(), Session{Client: 1}, nil); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("session without a number: got %v", err)
	}
	if err := r.Change(t.Context(), map[uint64]string{1: "a", 2: "b"}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("change without transport: got %v", err)
	}
	if err := r.Step(t.Context(), Peer{2, "b"}, []byte("x")); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("step: got %v", err)
	}
}

// A request that is made again has its effect once; one that a later request overtook is refused.
func TestSessions(t *testing.T) {
	for _, count := range []int{1, 3} {
		n := newNetwork(t, 1)
		all := n.group(t, count, "", nil)
		for range 3 {
			if got := propose(t, all, Session{7, 1}, "a=1"); got != "" {
				t.Errorf("got %q", got)
			}
		}
		if got := propose(t, all, Session{7, 2}, "a=2"); got != "1" {
			t.Errorf("got %q", got)
		}
		l := leader(t, all)
		for _, s := range []Session{{7, 1}, {8, 2}} {
			if _, err := l.Propose(t.Context(), s, []byte("a=3")); sigma.KindOf(err) != sigma.KindStale {
				t.Errorf("%v: got %v", s, err)
			}
		}
		if l.machine.Count["a=1"] != 1 || l.machine.get("a") != "2" {
			t.Errorf("got %v", l.machine.Count)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	table := newSessions()
	for i := range uint64(sessionsMax + 5) {
		table.add(kept{client: i + 1, seq: 1})
	}
	if n := len(table.all()); n != sessionsMax || table.all()[0].client != 6 {
		t.Errorf("got %d, the oldest %v", n, table.all()[0])
	}
	table = newSessions()
	for i := range uint64(10) {
		table.add(newKept(Session{i + 1, 1}, make([]byte, sessionBytesMax/4)))
		table.add(newKept(Session{i + 1, 2}, make([]byte, sessionBytesMax/4)))
	}
	if n := len(table.all()); n != 4 || table.bytes != sessionBytesMax {
		t.Errorf("got %d with %d bytes", n, table.bytes)
	}
}

// Three members agree; those that do not lead tell who does; after the leader's death another one
// leads, and nothing is lost.
func TestThree(t *testing.T) {
	n := newNetwork(t, 1)
	all := n.group(t, 3, "", nil)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				propose(t, all, Session{uint64(w + 1), uint64(i + 1)}, fmt.Sprintf("%d=%d", w, i))
			}
		})
	}
	wg.Wait()
	l := leader(t, all)
	for id, s := range all {
		if s == l {
			continue
		}
		_, err := s.Propose(t.Context(), Session{}, nil)
		if owner, ok := call.Owner(err); !ok || owner != l.Status().LeaderName {
			t.Errorf("member %d: got %v", id, err)
		}
		wait(t, "a follower", func() bool { return s.machine.get("7") == "49" })
	}
	l.stop()
	delete(all, l.cfg.ID)
	propose(t, all, Session{}, "x=1")
	next := leader(t, all)
	for w := range 8 {
		if got := next.machine.get(fmt.Sprint(w)); got != "49" {
			t.Errorf("worker %d: got %s", w, got)
		}
	}
}

// A leader that is cut off gives up, and says so to those that wait.
func TestMinority(t *testing.T) {
	for _, lease := range []bool{false, true} {
		n := newNetwork(t, 1)
		all := n.group(t, 3, "", func(c *Config) { c.Lease = lease })
		l := leader(t, all)
		propose(t, all, Session{}, "x=1")
		n.isolate(l.cfg.ID, true)
		if _, err := l.Propose(within(t, time.Minute), Session{}, []byte("x=2")); sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("got %v", err)
		}
		if err := l.Read(t.Context()); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("read: got %v", err)
		}
		rest := maps.Clone(all)
		delete(rest, l.cfg.ID)
		propose(t, rest, Session{}, "x=3")
		n.isolate(l.cfg.ID, false)
		wait(t, "the old leader", func() bool { return l.machine.get("x") == "3" })
	}
}

// A group grows from one to three by snapshot and log, changes all its members, and shrinks to one.
func TestChange(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		n := newNetwork(t, 1)
		all := n.group(t, 1, dir, nil)
		first := all[1]
		for i := range 100 {
			propose(t, all, Session{1, uint64(i + 1)}, fmt.Sprint("k=", i))
		}
		join := func(ids ...uint64) {
			for _, id := range ids {
				cfg := Config{ID: id}
				if dir != "" {
					cfg.Dir = fmt.Sprint("/m", id)
				}
				all[id] = n.open(t, cfg)
			}
		}
		join(2, 3)
		if err := first.Change(within(t, time.Minute), map[uint64]string{1: "m1", 2: "m2", 3: "m3"}); err != nil {
			t.Fatal(err)
		}
		if got := propose(t, all, Session{1, 100}, "k=99"); got != "98" { // made again
			t.Errorf("got %q", got)
		}
		propose(t, all, Session{}, "k=100")
		for _, s := range all {
			wait(t, "a member", func() bool { return s.machine.get("k") == "100" && len(s.Status().Members) == 3 })
		}
		join(4, 5, 6)
		next := map[uint64]string{4: "m4", 5: "m5", 6: "m6"}
		if err := leader(t, all).Change(within(t, time.Minute), next); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(3) {
			all[id+1].stop()
			delete(all, id+1)
		}
		propose(t, all, Session{}, "k=101")
		l := leader(t, all)
		if err := l.Change(within(t, time.Minute), map[uint64]string{l.cfg.ID: "last"}); err != nil {
			t.Fatal(err)
		}
		propose(t, all, Session{}, "k=102")
		wait(t, "a group of one", func() bool { return dir != "" || l.solo.Load() })
		if st := l.Status(); st.LeaderName != "last" || len(st.Members) != 1 || l.machine.get("k") != "102" {
			t.Errorf("got %+v", st)
		}
	}
}

func TestTransfer(t *testing.T) {
	n := newNetwork(t, 1)
	all := n.group(t, 3, "", func(c *Config) { c.Lease = true })
	for range 3 {
		l := leader(t, all)
		to := l.cfg.ID%3 + 1
		propose(t, all, Session{}, "a=b")
		if err := l.Transfer(within(t, time.Minute), to); err != nil {
			t.Fatal(err)
		}
		wait(t, "the next leader", all[to].Leads)
	}
	if err := leader(t, all).Transfer(t.Context(), 9); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
}

// A durable member goes on where it was, with snapshots and without.
func TestRestart(t *testing.T) {
	for _, every := range []int64{0, 2000} {
		dir := t.TempDir()
		n := newNetwork(t, 1)
		for round := range 3 {
			all := n.group(t, 1, dir, func(c *Config) { c.SnapshotEvery = every })
			for i := range 100 {
				propose(t, all, Session{1, uint64(round*100 + i + 1)}, fmt.Sprintf("%d=%d", i, round))
			}
			all[1].stop()
		}
		cfg := Config{ID: 2, Files: n.files, Dir: "/m1", Machine: newLedger()}
		if _, err := Open(t.Context(), cfg); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("another id: got %v", err)
		}
		all := map[uint64]*site{1: n.open(t, Config{ID: 1, Dir: "/m1"})}
		if got := propose(t, all, Session{1, 301}, "50=x"); got != "2" {
			t.Errorf("got %q", got)
		}
		if l := all[1]; l.machine.Last != 301 {
			t.Errorf("got %d commands", l.machine.Last)
		}
	}
}

// A member that was away while the log was compacted gets a snapshot.
func TestBehind(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		n := newNetwork(t, 1)
		all := n.group(t, 3, dir, func(c *Config) { c.LogKeep, c.SnapshotEvery = 4000, 4000 })
		l := leader(t, all)
		away := all[l.cfg.ID%3+1]
		n.isolate(away.cfg.ID, true)
		for i := range 300 {
			propose(t, all, Session{}, fmt.Sprint("k=", i))
		}
		if st := leader(t, all).Status(); st.LogBytes > 4000 {
			t.Errorf("the log has %d bytes", st.LogBytes)
		}
		n.isolate(away.cfg.ID, false)
		wait(t, "the member", func() bool { return away.machine.get("k") == "299" })
	}
}

// Goal: with clocks that differ by a fourth a lease is over before a follower can vote for another
// leader. It counts ElectionTicks ticks, the first and last of which may take no time.
func TestLeaseBeforeElection(t *testing.T) {
	for ticks := 3; ticks <= 1000; ticks++ {
		c := Config{ElectionTicks: ticks, Tick: 8 * time.Millisecond}
		if waits := time.Duration(ticks-2) * c.Tick; c.lease()*4 > waits*3 || c.lease() <= 0 {
			t.Errorf("%d ticks: a lease of %v, and a follower waits %v", ticks, c.lease(), waits)
		}
	}
}

// talker is a machine whose results have as many bytes as it was told.
type talker struct {
	*ledger
	size int
}

func (m talker) Apply(index uint64, command []byte) []byte {
	m.ledger.Apply(index, command)
	return make([]byte, m.size)
}

// Goal: a result that no session can keep is an error, each time, and snapshots can be read.
func TestResultTooBig(t *testing.T) {
	for _, size := range []int{resultMax, resultMax + 1} {
		c := core{machine: talker{newLedger(), size}, sessions: newSessions()}
		c.reconfigure(&pb.ConfState{Voters: []uint64{1}}, map[uint64]string{1: "a"})
		again := func(c *core) {
			t.Helper()
			got, err := c.apply(Session{1, 1}, []byte("k=v"))
			if kept := size == resultMax; kept && (err != nil || len(got) != size) ||
				!kept && sigma.KindOf(err) != sigma.KindTooBig {
				t.Errorf("a result of %d bytes: got %d, %v", size, len(got), err)
			}
		}
		again(&c)
		again(&c)
		m, err := c.snapshot()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := m.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		to := core{machine: talker{newLedger(), size}, sessions: newSessions()}
		if err := to.restore(m.Meta, bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		if again(&to); to.commands != 1 {
			t.Errorf("the command was applied %d times", to.commands)
		}
	}
}
