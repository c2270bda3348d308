package link

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"sigmaos.dev/kernel/identity"
)

// strangers are connections of many addresses that say nothing.
func strangers(t *testing.T, network *pipes, net4 byte, addresses, each int) {
	t.Helper()
	for a := range addresses {
		for range each {
			c, err := network.dialAs(netip.AddrFrom4([4]byte{10, net4, byte(a >> 8), byte(a)}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
}

// open reports whether the other end has not closed a connection that says nothing.
func open(c net.Conn) bool {
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	synctest.Wait()
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

// TestStrangersTakeNoMembersPlace: a thousand addresses with as many silent connections as they
// like do not keep a member from dialling, nor end what it has begun, wherever it dials from; nor a
// machine that joins from an address of its own.
func TestStrangersTakeNoMembersPlace(t *testing.T) {
	bubble(t, func(t *testing.T, network *pipes, m1, m2 *Node, _ *identity.Roster) {
		strangers(t, network, 1, 9, handshakesFrom) // what kept all out: each address within its own bound
		synctest.Wait()
		if m1.handshakes.strangers > handshakesMax {
			t.Errorf("%d strangers have places", m1.handshakes.strangers)
		}
		begun, err := network.dialFrom(2) // of m2, by the roster
		if err != nil {
			t.Fatal(err)
		}
		joins, err := network.dialFrom(77)
		if err != nil {
			t.Fatal(err)
		}
		strangers(t, network, 1, 9, handshakesFrom)
		if !open(joins) {
			t.Error("who joins was cut off for an address that has many connections")
		}
		strangers(t, network, 2, 1000, 2)
		if !open(begun) {
			t.Error("a member's connection was ended for a stranger's")
		}
		l, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatalf("a member is kept out: %v", err)
		}
		l.Close()

		// It dials from another address than the roster has, as behind a translation of addresses:
		// known once it has been here.
		m2.cfg.Connect = func(context.Context, string) (net.Conn, error) { return network.dialFrom(3) }
		if l, err = m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if begun, err = network.dialFrom(3); err != nil {
			t.Fatal(err)
		}
		strangers(t, network, 3, 1000, 2)
		if !open(begun) {
			t.Error("a member that dials from another address was cut off")
		}
	})
}

// TestHandshakes: whose place is whose.
func TestHandshakes(t *testing.T) {
	roster := identity.NewRoster()
	roster.Set(5, []identity.Member{{Machine: "a", Address: "10.0.0.1:1"}, {Machine: "b", Address: "10.0.0.1:2"},
		{Machine: "c", Address: "[2001:db8::1]:1"}, {Machine: "d", Address: "host.example:1"}})
	s := newHandshakes(roster)
	conn := func(addr string) net.Conn {
		return from{nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 9))}
	}
	fill := func(n int, addr string) (ended int) {
		for range n {
			if _, e := s.take(conn(addr)); e != nil {
				if ended++; addrOf(e.conn) != addrOf(conn(addr)) {
					t.Errorf("%v ended for %v", e.conn.RemoteAddr(), addr)
				}
			}
		}
		return ended
	}
	if n := fill(2*handshakesFrom, "::ffff:10.0.0.1"); n != 0 {
		t.Errorf("two members at an address: %d of %d connections ended", n, 2*handshakesFrom)
	}
	if n := fill(1, "10.0.0.1"); n != 1 {
		t.Error("the oldest of the address gives no way")
	}
	fill(handshakesFrom, "2001:db8::1")
	if s.strangers != 0 {
		t.Errorf("members have %d places of strangers", s.strangers)
	}
	fill(handshakesFrom, "2001:db8::2") // a neighbour of the member's
	if _, ended := s.take(conn("2001:db8::3")); ended == nil ||
		addrOf(ended.conn) != netip.MustParseAddr("2001:db8::2") || s.strangers != handshakesFrom {
		t.Error("a /64 does not count as one address")
	}
	fill(handshakesFrom, "10.9.9.9")
	s.prove("d", conn("10.9.9.9"))
	if n := fill(1, "10.9.9.9"); n != 1 {
		t.Error("what an address had before it was a member's is not counted")
	}
	roster.Set(6, nil)
	s.take(conn("10.8.8.8"))
	if len(s.members) != 0 || len(s.proved) != 0 {
		t.Errorf("removed members have places: %v, %v", s.members, s.proved)
	}
	for _, of := range s.from {
		for _, p := range append([]*handshake{}, of...) {
			s.give(p)
			s.give(p)
		}
	}
	if s.strangers != 0 || len(s.from) != 0 {
		t.Errorf("%d places are still taken, of %d addresses", s.strangers, len(s.from))
	}
}
