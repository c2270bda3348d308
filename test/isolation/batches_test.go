//go:build system

package isolation

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Connections in advance between machines (docs/internals/machines-protocol.md): the test is a
// machine that keeps to the protocol as far as it likes, m2 by what root there can read, or one
// that has joined.

// machineMax is how long anything here may take.
const machineMax = 30 * time.Second

// hostile is such a machine, by a key of direct connections with m1.
type hostile struct {
	s    *suite
	name sigma.MachineID
	conn *tls.Conn // whose key that is
	key  []byte    // name (16) and key (32)
	last uint64    // label
}

// batch is one that was made by hand.
type batch struct {
	label uint64
	first uint64
	conns []net.Conn
	hello net.Conn
}

// stolen is what m2 has to show that it is m2.
func (s *suite) stolen() tls.Certificate {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.m2.DataDir, "sigmad", "identity"))
	s.must(err)
	var kept struct {
		Key         string
		Certificate []byte
	}
	s.must(json.Unmarshal(text, &kept))
	key, err := identity.ParseKey([]byte(kept.Key))
	s.must(err)
	return tls.Certificate{Certificate: [][]byte{kept.Certificate}, PrivateKey: key}
}

// joined is a machine of its own right.
func (s *suite) joined(name sigma.MachineID) tls.Certificate {
	s.t.Helper()
	tok, err := identity.ParseToken(strings.TrimSpace(s.m1.Must(s.t, "token", "create")))
	s.must(err)
	key := identity.NewKey()
	g, _, err := link.Enrol(s.ctx, link.Join{Address: s.m1.Address(), Token: &tok, Key: key, Connect: s.connect,
		Ask: identity.Enrolment{Machine: name, Address: s.m2.Net.Addr.String() + ":9", CPU: 1000, Memory: sigma.GiB,
			Version: "test"}})
	s.must(err)
	return tls.Certificate{Certificate: [][]byte{g.Certificate}, PrivateKey: key}
}

// meet gets a machine a key.
func (s *suite) meet(name sigma.MachineID, cert tls.Certificate) *hostile {
	s.t.Helper()
	raw, err := s.connect(s.ctx, s.m1.Address())
	s.must(err)
	s.t.Cleanup(func() { raw.Close() })
	raw.SetDeadline(time.Now().Add(machineMax))
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		NextProtos: []string{identity.ProtocolLink}, Certificates: []tls.Certificate{cert}})
	payload, err := sigmap.Payload(func(c *sigmap.Coder) {
		magic, version, now := uint32(0x314b4e4c), uint16(1), time.Now()
		c.U32(&magic)
		c.U16(&version)
		c.U16(&version)
		c.Time(&now)
		asks(c, sigma.Principal{Realm: sigma.SystemRealm, Machine: name, System: true}, link.Target{Kind: link.ToDirect,
			Name: "direct"})
	})
	s.must(err)
	_, err = conn.Write(framed(payload, nil))
	s.must(err)
	reply, err := frame(conn, 0)
	s.must(err)
	_, _, err = link.ParseAnswer(reply, "m1")
	s.must(err)
	raw.SetDeadline(time.Time{})
	state := conn.ConnectionState()
	key, err := state.ExportKeyingMaterial("EXPORTER-sigma-direct", nil, 48)
	s.must(err)
	return &hostile{s: s, name: name, conn: conn, key: key}
}

func asks(c *sigmap.Coder, from sigma.Principal, to link.Target) {
	c.RealmID(&from.Realm)
	c.ProcID(&from.Proc)
	c.MachineID(&from.Machine)
	c.Bool(&from.System)
	c.U8((*uint8)(&to.Kind))
	c.Str(&to.Name)
}

func framed(payload, mac []byte) []byte {
	return slices.Concat(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload, mac)
}

// frame reads a payload, with more bytes behind it, which it gives too.
func frame(r io.Reader, more int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, min(int(binary.LittleEndian.Uint32(head[:])), 1<<16)+more)
	_, err := io.ReadFull(r, b)
	return b, err
}

func (h *hostile) mac(words ...[]byte) []byte {
	m := hmac.New(sha256.New, h.key[16:])
	m.Write(slices.Concat(words...))
	return m.Sum(nil)
}

// open makes a connection to m1 and says something on it.
func (h *hostile) open(says []byte) (net.Conn, error) {
	conn, err := h.s.connect(h.s.ctx, h.s.m1.Address())
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(machineMax))
	_, err = conn.Write(says)
	return conn, err
}

// follows is what a connection of a batch says.
func (h *hostile) follows(label uint64, number byte) []byte {
	named := append(binary.LittleEndian.AppendUint64(nil, label), number)
	return slices.Concat([]byte("SGD2"), h.key[:16], named, h.mac([]byte("sigma direct follow 1\x00"), named))
}

// follow makes the connections of a batch.
func (h *hostile) follow(label uint64, n int) (conns []net.Conn, err error) {
	for i := range n {
		conn, err := h.open(h.follows(label, byte(i)))
		if err != nil {
			return nil, err
		}
		conns = append(conns, conn)
	}
	return conns, nil
}

// greet says hello for a batch, and gives the connection with the answer on it; the error is m1's,
// or that the answer is none.
func (h *hostile) greet(label uint64, from sigma.Principal, to string, first uint64, line bool, n uint8) (net.Conn,
	error) {
	conn, err := h.open(slices.Concat([]byte("SGD1"), h.key[:16]))
	if err != nil {
		return nil, err
	}
	var nonce [33]byte
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		return nil, err
	}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) {
		asks(c, from, link.Target{Kind: link.ToEndpoint, Name: to})
		c.U64(&first)
		c.Bool(&line)
		c.U8(&n)
		c.U64(&label)
		link.CodeNumbers(c, &[]uint64{})
	})
	if err != nil {
		return nil, err
	}
	sealed := func(speaker byte, payload []byte) []byte {
		return h.mac([]byte("sigma direct 1\x00"), []byte{speaker}, nonce[1:], payload)
	}
	if _, err := conn.Write(framed(payload, sealed(1, payload))); err != nil {
		return nil, err
	}
	reply, err := frame(conn, sha256.Size)
	if err != nil {
		return nil, err
	}
	reply, seal := reply[:len(reply)-sha256.Size], reply[len(reply)-sha256.Size:]
	if !hmac.Equal(seal, sealed(2, reply)) {
		return nil, errors.New("the answer is spoiled")
	}
	_, _, err = link.ParseAnswer(reply, "m1")
	return conn, err
}

// who is a proc of the machine, as it says.
func (h *hostile) who(realm sigma.RealmID, id sigma.ProcID) sigma.Principal {
	return sigma.Principal{Realm: realm, Proc: id, Machine: h.name}
}

// make makes a pool of two connections: a line and one that can begin.
func (h *hostile) make(from sigma.Principal, to string) (*batch, error) {
	h.last++
	b := &batch{label: h.last, first: 100 * h.last}
	var err error
	if b.conns, err = h.follow(b.label, 2); err == nil {
		b.hello, err = h.greet(b.label, from, to, b.first, true, 2)
	}
	return b, err
}

// begin begins a connection by the batch's line and hears who the listener takes the dialler for.
func (b *batch) begin(conn net.Conn, number uint64) error {
	if _, err := b.conns[0].Write(binary.LittleEndian.AppendUint64(nil, number)); err != nil {
		return err
	}
	var realm, proc, system string
	_, err := fmt.Fscan(conn, &realm, &proc, &system)
	return err
}

// works makes a batch and begins a connection of it.
func (h *hostile) works(from sigma.Principal, to string) error {
	b, err := h.make(from, to)
	if err != nil {
		return err
	}
	return b.begin(b.conns[1], b.first)
}

// tryBatches has machines use what is another machine's, realm's or proc's of connections in
// advance, and use again what was used. What waits a second for what does not come does so beside
// the others.
func (s *suite) tryBatches() {
	cert := s.stolen()
	m2, again, x1 := s.meet("m2", cert), s.meet("m2", cert), s.meet("x1", s.joined("x1"))
	own := m2.who(sigma.DefaultRealm, "aaaabbbbccccdddd")
	works := func() error { return m2.works(own, s.sibling.Stream) }
	e, err := sigma.ParseEndpoint(s.stranger.Stream)
	s.must(err)
	as := func(change func(*sigma.Endpoint)) string { c := e; change(&c); return c.String() }
	for what, c := range map[string]struct {
		from sigma.Principal
		to   string
	}{
		"with another realm's endpoint": {own, s.stranger.Stream},
		"with it as one's own realm's": {own, as(func(e *sigma.Endpoint) {
			e.Realm = sigma.DefaultRealm
		})},
		"with it as that of a proc that does not own it": {own, as(func(e *sigma.Endpoint) {
			e.Realm, e.Proc = sigma.DefaultRealm, s.sibling.Proc
		})},
		"with one's own realm's, by a proc of another's": {m2.who(other, "aaaabbbbccccdddd"), s.sibling.Stream},
		"for a proc of m1's": {sigma.Principal{Realm: sigma.DefaultRealm,
			Proc: s.sibling.Proc, Machine: "m1"}, s.sibling.Stream},
		"for a proc that is the provider": {sigma.Principal{Realm: sigma.DefaultRealm, Proc: own.Proc,
			Machine: "m2", System: true}, s.sibling.Stream},
		"with a listener that was closed":                  {own, s.sibling.Closed},
		"with a tree, whose form has none":                 {own, s.sibling.Tree},
		"for a program of no proc, by the name of a realm": {m2.who(sigma.DefaultRealm, ""), s.sibling.Stream},
	} {
		s.try("a batch "+what, works, func() error { return second(m2.make(c.from, c.to)) })
	}
	s.tryLabels(m2, again, x1, own)
	s.tryOthersPools(m2, x1, own)
	s.tryEager(m2, own)
	s.tryDeadListener(m2, own)
}

func second[T any](_ T, err error) error { return err }

// tryLabels says hello by what followed for another.
func (s *suite) tryLabels(m2, again, x1 *hostile, own sigma.Principal) {
	works := m2.works(own, s.sibling.Stream)
	const label = 1000 // theirs go up
	m2.last, x1.last = label+1, label+1
	var all sync.WaitGroup
	var mu sync.Mutex
	errs := map[string]error{}
	for what, f := range map[string]func() error{
		"by the label of what followed with another key": func() error {
			if _, err := again.follow(label, 2); err != nil {
				return nil
			}
			return second(m2.greet(label, own, s.sibling.Stream, 1, true, 2))
		},
		"by the label of what followed for another machine": func() error {
			if _, err := m2.follow(label+1, 2); err != nil {
				return nil
			}
			return second(x1.greet(label+1, x1.who(own.Realm, own.Proc), s.sibling.Stream, 1, true, 2))
		},
	} {
		all.Go(func() {
			err := f()
			mu.Lock()
			defer mu.Unlock()
			errs[what] = err
		})
	}
	b, err := again.make(again.who(own.Realm, "aaaabbbbccccddde"), s.sibling.Stream)
	if err == nil {
		err = b.begin(b.conns[1], b.first)
	}
	s.try("a batch by a label that was used", func() error { return err }, func() error {
		conns, err := again.follow(b.label, 2)
		if err != nil {
			return err
		}
		for _, c := range conns { // they end at once
			if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
		}
		return second(again.greet(b.label, again.who(own.Realm, "aaaabbbbccccddde"), s.sibling.Stream, 1, true, 2))
	})
	all.Wait()
	for what, err := range errs {
		s.try("a batch "+what, func() error { return works }, func() error { return err })
	}
}

// tryOthersPools has more made for a pool that another has.
func (s *suite) tryOthersPools(m2, x1 *hostile, own sigma.Principal) {
	pool, err := m2.make(own, s.sibling.Stream)
	s.must(err)
	more := func(h *hostile, from sigma.Principal, first uint64) error {
		h.last++
		conns, err := h.follow(h.last, 1)
		if err == nil {
			_, err = h.greet(h.last, from, s.sibling.Stream, first, false, 1)
		}
		if err == nil {
			err = pool.begin(conns[0], first)
		}
		return err
	}
	last := uint64(1e6)
	control := func() error { last++; return more(m2, own, last) }
	s.try("more for the pool that another machine's proc has", control, func() error {
		return more(x1, x1.who(own.Realm, own.Proc), 2e6)
	})
	s.try("more for it in that machine's name", control, func() error { return more(x1, own, 3e6) })
	s.try("more for another proc's pool", control, func() error {
		return more(m2, m2.who(own.Realm, "aaaabbbbccccdddf"), 4e6)
	})
	s.try("another connection under the number of one that has not begun", control, func() error {
		return more(m2, own, pool.first)
	})
	s.must(pool.begin(pool.conns[1], pool.first)) // which nobody has touched
}

// tryEager has a listener's proc write on all it gets before its sigmad has answered. The control
// is that it did.
func (s *suite) tryEager(m2 *hostile, own sigma.Principal) {
	_, w := s.start(s.siblings, "eager")
	b, err := m2.make(own, w.Stream)
	s.try("spoil the answer to a batch", func() error {
		for _, c := range b.conns {
			c.SetDeadline(time.Now().Add(machineMax))
			var said [1]byte
			if _, err := io.ReadFull(c, said[:]); err != nil || said[0] != 'E' {
				return fmt.Errorf("it says %q, %v", said, err)
			}
		}
		return nil
	}, func() error {
		if err != nil {
			return nil // there is none
		}
		if n, err := b.hello.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // it has the connection of the hello
		}
		return errors.New("the answer came, and then the end")
	})
}

// tryDeadListener begins a connection at a listener whose proc has ended.
func (s *suite) tryDeadListener(m2 *hostile, own sigma.Principal) {
	id, w := s.start(s.siblings, "hold")
	b, err := m2.make(own, w.Stream)
	s.must(err)
	control := m2.works(m2.who(own.Realm, "aaaabbbbccccddde"), w.Stream)
	s.must(s.siblings.Kill(s.ctx, id))
	s.must(second(s.siblings.WaitExit(s.ctx, id)))
	s.try("begin a connection at a listener that has ended", func() error {
		return control
	}, func() error { return b.begin(b.conns[1], b.first) })
	s.try("a batch with a listener that has ended", func() error {
		return control
	}, func() error { return second(m2.make(own, w.Stream)) })
}
