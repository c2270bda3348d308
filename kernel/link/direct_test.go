package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// taken is a direct connection that a machine of the tests has; conn is nil if its place was given
// back.
type taken struct {
	Direct
	conn *net.TCPConn
}

// place is one of the tests.
type place struct {
	h *host_
	d Direct
}

func (p place) Take(conn *net.TCPConn) { p.h.direct <- taken{p.d, conn} }
func (p place) Close() error           { p.h.direct <- taken{p.d, nil}; return nil }

// reserve has a place for everybody but who asks for "full".
func (h *host_) reserve(d Direct) (Place, error) {
	if d.Target.Name == "full" {
		return nil, &sigma.Error{Kind: sigma.KindBusy, Msg: "no place", Hint: "wait"}
	}
	return place{h, d}, nil
}

// keyOf is the key with which one machine dials another.
func (h *host_) keyOf(m sigma.MachineID) *directKey {
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	if w := h.node.warm[m]; w != nil {
		return w.key
	}
	return nil
}

// awaitIdle waits until connections to m wait here.
func (h *host_) awaitIdle(t *testing.T, m sigma.MachineID) {
	t.Helper()
	await(t, "a warm connection", func() bool {
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		w := h.node.warm[m]
		return w != nil && len(w.idle) > 0
	})
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no " + what)
		}
	}
}

// echo says something on one side and expects it on the other.
func echo(t *testing.T, a, b net.Conn) {
	t.Helper()
	a.SetDeadline(time.Now().Add(10 * time.Second))
	b.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := a.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(b, got); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
}

// TestDirect: a dial gives both sides one TCP connection, and the other knows who dialled; later
// ones wait before they are needed; a refusal comes in words, and machines that make none say so.
func TestDirect(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	for i := range 40 {
		if i%2 == 1 {
			m2.awaitIdle(t, "m1")
		}
		c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToEndpoint, "e"}, sigma.Principal{Realm: "default", Proc: "p",
			Machine: "m7"})
		if err != nil {
			t.Fatal(err)
		}
		at := <-m1.direct
		if want := (sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}); at.From != want ||
			at.Peer.Machine != "m2" || at.Target != (Target{ToEndpoint, "e"}) {
			t.Errorf("got %+v of %v for %v", at.From, at.Peer, at.Target)
		}
		echo(t, c, at.conn)
		echo(t, at.conn, c)
		c.Close()
		if _, err := at.conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		at.conn.Close()
	}
	if n := m2.node.Count()["m1"]; n != 1 {
		t.Errorf("%d links", n)
	}
	_, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "full"}, proc)
	if sigma.KindOf(err) != sigma.KindBusy || !strings.Contains(err.Error(), "machine m1 refuses: no place") ||
		sigma.HintOf(err) != "wait" {
		t.Errorf("got %v, %v", err, sigma.HintOf(err))
	}
	if _, err := m2.node.DialDirect(s.ctx, "m7", Target{ToService, "x"},
		proc); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("an unknown machine: %v", err)
	}
	if _, err := m2.node.DialDirect(s.ctx, "m1", Target{ToStream, "named"},
		proc); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a stream: %v", err)
	}
	if _, err := m2.node.Dial(s.ctx, "m1", Target{ToDirect, "direct"},
		proc); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a key for a proc: %v", err)
	}
	m3 := s.join("m3")
	m3.node.cfg.Reserve = nil
	for range 2 {
		if _, err := m2.node.DialDirect(s.ctx, "m3", Target{ToService, "x"},
			proc); sigma.KindOf(err) != sigma.KindUnsupported {
			t.Errorf("a machine that makes none: %v", err)
		}
	}
	if _, err := m3.node.DialDirect(s.ctx, "m1", Target{ToService, "x"},
		proc); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("on a machine that makes none: %v", err)
	}
}

// TestDirectAtOnce: many dial at once, from both sides, and each has its own connection.
func TestDirectAtOnce(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	var all sync.WaitGroup
	for _, d := range []struct {
		from, to *host_
		name     sigma.MachineID
	}{{m2, m1, "m1"}, {m1, m2, "m2"}} {
		for range 60 {
			all.Go(func() {
				c, err := d.from.node.DialDirect(s.ctx, d.name, Target{ToService, "x"}, proc)
				if err != nil {
					t.Error(err)
					return
				}
				at := <-d.to.direct
				at.conn.Write([]byte("!"))
				at.conn.CloseWrite()
				if b, err := io.ReadAll(c); string(b) != "!" || err != nil {
					t.Errorf("got %q, %v", b, err)
				}
				c.Close()
				at.conn.Close()
			})
		}
	}
	all.Wait()
}

// knock begins a direct connection as a stranger, or as m2, would, and returns its nonce.
func (s *system) knock(name []byte) (net.Conn, []byte, byte) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.hosts["m1"].address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	c.Write(append([]byte(directMagic), name...))
	said := make([]byte, 1+nonceBytes)
	if _, err := io.ReadFull(c, said[:1]); err != nil || said[0] != keyKnown {
		return c, nil, keyUnknown
	}
	if _, err := io.ReadFull(c, said[1:]); err != nil {
		s.t.Fatal(err)
	}
	return c, said[1:], keyKnown
}

// signed is a hello as m2 would send it.
func signed(t *testing.T, k *directKey, speaker byte, nonce []byte, h directHello) []byte {
	t.Helper()
	payload, err := sigmap.Payload(h.code)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := k.say(&b, speaker, nonce, payload); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Goal: nobody has a direct connection that does not hold the key of a link that is open, whatever
// was heard or said before; and whoever tries keeps the machine from nothing. Method: a hello that
// works is the control; each case changes one thing of it.
func TestDirectForged(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	(<-m1.direct).conn.Close()
	k := m2.keyOf("m1")
	good := directHello{sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}, Target{ToService, "x"}, nil}
	other := &directKey{name: k.name, key: sha256.Sum256([]byte("guess"))}
	var heard []byte // a hello that was answered, and its nonce
	for _, test := range []struct {
		name string
		say  func(nonce []byte) []byte
		ok   bool
		kind sigma.Kind // of a refusal in words
	}{
		{"the control", func(n []byte) []byte {
			heard = signed(t, k, spokenByDialler, n, good)
			return heard
		}, true, 0},
		{"a hello that was heard before", func([]byte) []byte { return heard }, false, 0},
		{"another key", func(n []byte) []byte { return signed(t, other, spokenByDialler, n, good) }, false, 0},
		{"an answer as a hello", func(n []byte) []byte { return signed(t, k, spokenByOther, n, good) }, false, 0},
		{"another nonce", func(n []byte) []byte {
			return signed(t, k, spokenByDialler, make([]byte, nonceBytes), good)
		}, false, 0},
		{"another proc", func(n []byte) []byte {
			b := signed(t, k, spokenByDialler, n, good)
			return bytes.Replace(b, []byte("default"), []byte("defaulz"), 1)
		}, false, 0},
		{"another machine's proc", func(n []byte) []byte {
			h := good
			h.From.Machine = "m1"
			return signed(t, k, spokenByDialler, n, h)
		}, false, sigma.KindPermission},
		{"a target that cannot be", func(n []byte) []byte {
			h := good
			h.Target.Kind = ToBeat
			return signed(t, k, spokenByDialler, n, h)
		}, false, sigma.KindInvalid},
		{"a payload that is none", func(n []byte) []byte {
			var b bytes.Buffer
			k.say(&b, spokenByDialler, n, []byte("rubbish"))
			return b.Bytes()
		}, false, sigma.KindInvalid},
		{"half a hello", func(n []byte) []byte { return signed(t, k, spokenByDialler, n, good)[:20] }, false, 0},
		{"a length without end", func([]byte) []byte { return binary.LittleEndian.AppendUint32(nil, 1<<30) }, false, 0},
		{"no length", func([]byte) []byte { return make([]byte, 64) }, false, 0},
	} {
		conn, nonce, ok := s.knock(k.name[:])
		if ok != keyKnown {
			t.Fatal("the key is not known")
		}
		conn.Write(test.say(nonce))
		conn.(*net.TCPConn).CloseWrite()
		reply, err := k.hear(conn, spokenByOther, nonce, nil)
		if err == nil {
			_, _, err = ParseAnswer(reply, "m1")
		} else if test.kind != 0 {
			t.Errorf("%s: no answer: %v", test.name, err)
		}
		if test.ok != (err == nil) || test.kind != 0 && sigma.KindOf(err) != test.kind {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.ok {
			(<-m1.direct).conn.Close()
		}
		conn.Close()
	}
	if _, _, ok := s.knock(make([]byte, keyName)); ok != keyUnknown {
		t.Error("a key that is none is known")
	}
	if len(m1.direct) != 0 {
		t.Errorf("%d connections that nobody may have", len(m1.direct))
	}
}

// TestDirectFlood: who knows a key's name keeps nobody from dialling with connections that say
// nothing, or half, and those end.
func TestDirectFlood(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	dial := func() {
		t.Helper()
		c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatal(err)
		}
		at := <-m1.direct
		echo(t, c, at.conn)
		c.Close()
		at.conn.Close()
	}
	dial()
	k := m2.keyOf("m1")
	var silent []net.Conn
	for range 3 * parkedMost {
		c, _, ok := s.knock(k.name[:])
		if ok != keyKnown {
			t.Fatal("the key is not known")
		}
		silent = append(silent, c)
	}
	for range 5 {
		dial()
	}
	silent[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first that waits: %v", err)
	}
	m1.node.mu.Lock()
	var parked int
	for _, k := range m1.node.keys {
		parked += len(k.parked)
	}
	m1.node.mu.Unlock()
	if parked > parkedMost {
		t.Errorf("%d wait", parked)
	}
}

// TestDirectRevoked: what a machine has of a key is worth nothing as soon as its membership, or its
// life, is over: neither what waits nor what it begins anew.
func TestDirectRevoked(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := <-m1.direct
	defer at.conn.Close()
	k := m2.keyOf("m1")
	waits, nonce, _ := s.knock(k.name[:])
	good := directHello{sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}, Target{ToService, "x"}, nil}
	s.do(machines.Remove{ID: "m2", Force: true})
	await(t, "end of the key", func() bool {
		m1.node.mu.Lock()
		defer m1.node.mu.Unlock()
		return len(m1.node.keys) == 0
	})
	waits.Write(signed(t, k, spokenByDialler, nonce, good))
	if reply, err := k.hear(waits, spokenByOther, nonce, nil); err == nil {
		t.Errorf("a hello of a machine that was removed is answered: %x", reply)
	}
	if _, _, ok := s.knock(k.name[:]); ok != keyUnknown {
		t.Error("its key is known")
	}
	if c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc); err == nil {
		t.Error("it dials")
		c.Close()
	}
	if len(m1.direct) != 0 {
		t.Error("it has a connection")
	}
}

// TestDirectImpostor: who took a machine's address, without its key, gives nobody a connection.
func TestDirectImpostor(t *testing.T) {
	s := newSystem(t)
	m1, m2 := s.hosts["m1"], s.join("m2")
	c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	(<-m1.direct).conn.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { // it knows the protocol
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				io.ReadFull(c, make([]byte, len(directMagic)+keyName))
				c.Write(append([]byte{keyKnown}, make([]byte, nonceBytes)...))
				readFrame(c, frameMax)
				io.ReadFull(c, make([]byte, macBytes))
				reply, _ := answerPayload(&answer{Version: 1, Clock: time.Now()})
				writeFrame(c, reply, make([]byte, macBytes)...)
			})
		}
	})
	defer all.Wait()
	defer stop()
	defer ln.Close()
	await(t, "end of what is being made", func() bool { // to the right address
		m2.node.mu.Lock()
		defer m2.node.mu.Unlock()
		w := m2.node.warm["m1"]
		return len(w.idle) == w.want && w.starting == 0
	})
	roster := m2.id.Roster()
	members := slices.Clone(roster.Members())
	for i := range members {
		if members[i].Machine == "m1" {
			members[i].Address = ln.Addr().String()
		}
	}
	roster.Set(roster.Epoch()+1, members)
	m2.node.mu.Lock()
	idle := m2.node.warm["m1"].idle
	m2.node.warm["m1"].idle = nil
	m2.node.mu.Unlock()
	endAll(idle)
	for range 3 {
		if c, err := m2.node.DialDirect(s.ctx, "m1", Target{ToService, "x"}, proc); err == nil {
			c.Close()
			t.Error("the impostor is believed")
		}
	}
}

func FuzzParseDirect(f *testing.F) {
	h := directHello{sigma.Principal{Realm: "default", Proc: "p", Machine: "m1"}, Target{ToEndpoint, "named"}, nil}
	payload, err := sigmap.Payload(h.code)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(payload[:9])
	k := &directKey{link: &Link{Peer: identity.Subject{Machine: "m1"}}}
	f.Fuzz(func(t *testing.T, payload []byte) {
		k.hear(bytes.NewReader(payload), spokenByDialler, make([]byte, nonceBytes), nil)
		from, to, b, err := ParseDirect(payload)
		if err != nil {
			return
		}
		again, err := sigmap.Payload((&directHello{from, to, b}).code)
		if err != nil || !bytes.Equal(again, payload) {
			t.Errorf("%x became %x, %v", payload, again, err)
		}
	})
}
