package link

import (
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// batched is a batch that a machine of the tests was given.
type batched struct {
	Direct
	Batch
	files []*os.File
}

// takeBatch keeps duplicates, as procs have them.
func (h *host_) takeBatch(d Direct, b Batch, conns []*net.TCPConn) error {
	if d.From.Realm == "full" {
		return sigma.Errorf("test", sigma.KindBusy, "no place")
	}
	taken := batched{Direct: d, Batch: b}
	for _, c := range conns {
		f, err := c.File()
		if err != nil {
			return err
		}
		if taken.files = append(taken.files, f); d.From.Realm == "spoils" { // as its proc may at once
			c.Write([]byte{1})
			c.CloseWrite()
		}
	}
	h.batches <- taken
	return nil
}

// keyAt is the key by which h dials at another machine, as that has it. Its Node.mu is held.
func (h *host_) keyAt(at *host_) *directKey { return at.node.keys[h.keyOf("m1").name] }

var toEndpoint = Target{ToEndpoint, "e"}

// TestBatch: all that a hello stands for is there on both sides, in the same order, when it is
// answered; a refusal comes in words and leaves nothing; another hello adds more.
func TestBatch(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	for i, b := range []Batch{{First: 5, Line: true, Count: BatchMost}, {First: 21, Count: 3, Begun: []uint64{5, 6}},
		{First: 25, Count: 1}} {
		files, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, sigma.Principal{Realm: "default", Proc: "p",
			Machine: "m7"}, b)
		if err != nil {
			t.Fatal(err)
		}
		at := <-m1.batches
		if at.From != (sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}) || at.First != b.First ||
			at.Line != b.Line || len(at.Begun) != len(b.Begun) || len(at.files) != int(b.Count) ||
			len(files) != int(b.Count) {
			t.Fatalf("batch %d: got %+v of %+v, and %d files", i, at, at.From, len(files))
		}
		for i := range files {
			files[i].Write([]byte{byte(i)})
			var got [1]byte
			if _, err := io.ReadFull(at.files[i], got[:]); err != nil || got[0] != byte(i) {
				t.Errorf("connection %d says %d, %v", i, got, err)
			}
			at.files[i].Write([]byte{byte(i)})
			if _, err := io.ReadFull(files[i], got[:]); err != nil || got[0] != byte(i) {
				t.Errorf("connection %d answers %d, %v", i, got, err)
			}
			files[i].Close()
			if _, err := at.files[i].Read(got[:]); err != io.EOF {
				t.Errorf("after its end connection %d says %v", i, err)
			}
		}
		session.CloseFiles(at.files)
	}
	_, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, sigma.Principal{Realm: "full", Proc: "p"},
		Batch{Line: true, Count: 2})
	if sigma.KindOf(err) != sigma.KindBusy || Unsaid(err) {
		t.Errorf("a refusal: %v", err)
	}
	if _, err := m2.node.DialBatch(s.ctx, "m1", Target{ToService, "x"}, proc,
		Batch{Line: true, Count: 2}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("a batch for a service: %v", err)
	}
	for _, b := range []Batch{{}, {Line: true, Count: 1}, {Count: BatchMost + 1}} {
		if _, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, proc, b); sigma.KindOf(err) != sigma.KindInvalid ||
			!Unsaid(err) {
			t.Errorf("%+v: %v", b, err)
		}
	}
	await(t, "end of what followed a hello that was refused", func() bool {
		m1.node.mu.Lock()
		defer m1.node.mu.Unlock()
		return len(m1.node.keys) > 0 && len(m2.keyAt(m1).following) == 0
	})
}

// TestBatchSpoiled: a proc that speaks on all it has, and ends it, before its sigmad has answered
// spoils no batch: the connection of the hello is none of it.
func TestBatchSpoiled(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	for range 3 {
		files, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, sigma.Principal{Realm: "spoils", Proc: "p"},
			Batch{Line: true, Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range files {
			var b [2]byte
			if n, err := f.Read(b[:]); n != 1 || b[0] != 1 || err != nil {
				t.Errorf("connection %d says %x, %v", i, b[:n], err)
			}
		}
		session.CloseFiles(files)
		session.CloseFiles((<-m1.batches).files)
	}
}

// TestBatchTurn: while a batch is made for a machine another one is refused, without waiting;
// afterwards nothing is left of it.
func TestBatchTurn(t *testing.T) {
	n := newSystem(t).hosts["m1"].node
	done, err := n.batchTurn("m2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.batchTurn("m2"); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("another: %v", err)
	}
	if done(); len(n.batches) != 0 {
		t.Errorf("left: %v", n.batches)
	}
}

// TestBatchWaiting: of hellos that wait for what follows them there are few at once, and none is
// left.
func TestBatchWaiting(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	dial := func() error {
		files, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, proc, Batch{First: 1, Line: true, Count: 2})
		if err == nil {
			session.CloseFiles((<-m1.batches).files)
		}
		session.CloseFiles(files)
		return err
	}
	wait := func(by int) (before int) {
		m1.node.mu.Lock()
		defer m1.node.mu.Unlock()
		k := m2.keyAt(m1)
		before = k.gathering
		k.gathering += by
		return before
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	wait(batchesMost)
	if err := dial(); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("while others wait: %v", err)
	}
	wait(-batchesMost)
	if err := dial(); err != nil || wait(0) != 0 {
		t.Errorf("afterwards: %v, and %d wait", err, wait(0))
	}
}

// Goal: nobody has a connection in another's batch, and nobody a batch without the key of a link
// that is open; what was heard before is of no use; and who tries keeps nobody from a batch.
// Method: a batch made by hand that works is the control; each case changes one thing of it.
func TestBatchForged(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	dial := func() {
		t.Helper()
		files, err := m2.node.DialBatch(s.ctx, "m1", toEndpoint, proc, Batch{First: 1, Line: true, Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		session.CloseFiles(files)
		session.CloseFiles((<-m1.batches).files)
	}
	dial()
	k := m2.keyOf("m1")
	var heard []byte // of the one that worked last
	for _, c := range []struct {
		name   string
		ok     bool
		follow func(says []byte) [][]byte     // what comes before the hello
		hello  func(h *directHello, b *Batch) // what is changed of it
	}{
		{"the control", true, nil, nil},
		{"one that does not follow", false, func(b []byte) [][]byte { return nil }, nil},
		{"another number", false, func(b []byte) [][]byte {
			b[len(followMagic)+keyName+labelBytes] = 5
			return [][]byte{b}
		}, nil},
		{"another label", false, func(b []byte) [][]byte { b[len(followMagic)+keyName] ^= 1; return [][]byte{b} }, nil},
		{"another key's name", false, func(b []byte) [][]byte { b[len(followMagic)] ^= 1; return [][]byte{b} }, nil},
		{"another proof", false, func(b []byte) [][]byte { b[len(b)-1] ^= 1; return [][]byte{b} }, nil},
		{"half of it", false, func(b []byte) [][]byte { return [][]byte{b[:30]} }, nil},
		{"what was said for another batch", false, func([]byte) [][]byte { return [][]byte{heard} }, nil},
		{"forged ones besides", true, func(b []byte) [][]byte {
			forged := slices.Clone(b)
			forged[len(b)-1] ^= 1
			return [][]byte{forged, heard, b, b}
		}, nil},
		{"another machine's proc", false, nil, func(h *directHello, _ *Batch) { h.From.Machine = "m1" }},
		{"a label that was", false, func([]byte) [][]byte {
			return [][]byte{k.follows(50, 0), k.follows(50, 1)}
		}, func(_ *directHello, b *Batch) { b.label = 50 }},
		{"a label of none", false, func([]byte) [][]byte {
			return [][]byte{k.follows(0, 0), k.follows(0, 1)}
		}, func(_ *directHello, b *Batch) { b.label = 0 }},
		{"more than followed", false, nil, func(_ *directHello, b *Batch) { b.Count = 3 }},
		{"too many", false, nil, func(_ *directHello, b *Batch) { b.Count = BatchMost + 1 }},
		{"for a service", false, nil, func(h *directHello, _ *Batch) { h.Target = Target{ToService, "x"} }},
	} {
		m2.node.mu.Lock()
		k.labels += 100
		label := k.labels
		m2.node.mu.Unlock()
		b := &Batch{First: 1, Line: true, Count: 2, label: label}
		says := k.follows(label, 0)
		all := [][]byte{says}
		if c.follow != nil {
			all = c.follow(slices.Clone(says))
		}
		all = append(all, k.follows(label, 1))
		for _, one := range all {
			s.follow(one)
		}
		h := directHello{sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}, toEndpoint, b}
		if c.hello != nil {
			c.hello(&h, b)
		}
		conn, nonce, ok := s.knock(k.name[:])
		if ok != keyKnown {
			t.Fatal("the key is not known")
		}
		conn.Write(signed(t, k, spokenByDialler, nonce, h))
		reply, err := k.hear(conn, spokenByOther, nonce, nil)
		if err == nil {
			_, _, err = ParseAnswer(reply, "m1")
		}
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			at := <-m1.batches
			if len(at.files) != 2 {
				t.Errorf("%s: %d connections", c.name, len(at.files))
			}
			session.CloseFiles(at.files)
			heard = says
			s.unheard(says) // a label is good once
		}
	}
	unclaimed(t, s, k, dial)
	if len(m1.batches) != 0 {
		t.Errorf("%d batches that nobody may have", len(m1.batches))
	}
}

// follow says on a connection of its own what one that follows would.
func (s *system) follow(says []byte) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.hosts["m1"].address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.Write(says)
	return c
}

// unclaimed sends batches for which nobody says hello, beside which others are made; and one with a
// key that is over.
func unclaimed(t *testing.T, s *system, k *directKey, dial func()) {
	m1, m2 := s.hosts["m1"], s.hosts["m2"]
	ended := make(chan struct{}, 3*batchesMost)
	for i := range 3 * batchesMost { // batches for which nobody says hello
		c := s.follow(k.follows(uint64(1e6+i), 0))
		go func() {
			c.Read(make([]byte, 1))
			ended <- struct{}{}
		}()
	}
	for range 2 * batchesMost { // all have come: the oldest have made room
		<-ended
	}
	dial()
	m2.node.Drop("m1")
	await(t, "end of the key", func() bool {
		m1.node.mu.Lock()
		defer m1.node.mu.Unlock()
		return m1.node.keys[k.name] == nil
	})
	s.unheard(k.follows(2e6, 0))
}

// unheard says on a connection of its own what one that follows would, and that it is refused at
// once.
func (s *system) unheard(says []byte) {
	s.t.Helper()
	for len(s.refused) > 0 { // of others
		<-s.refused
	}
	own := s.follow(says).LocalAddr().String()
	for late := time.After(10 * time.Second); ; {
		select {
		case r := <-s.refused:
			if r.from == own {
				return
			}
		case <-late:
			s.t.Error("what follows by nothing waits")
			return
		}
	}
}
