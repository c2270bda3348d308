package link

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// handshakes bounds the connections whose peer has not proved yet who it is.
//
// Strangers have handshakesMax places together. An address that is a member's has places of its
// own, handshakesFrom for each member there, that no other address can take: so however many
// addresses connect, and however slowly they speak, none of them can occupy a place that a member
// needs.
//
// A newcomer is never turned away. Where its address has no place left, the oldest connection of
// that address ends. Where strangers have none left, the oldest of the address with the most ends,
// so that who joins from an address of its own keeps its place. An IPv6 address counts as its /64,
// which is what one customer of a network has.
//
// Safe for concurrent use.
type handshakes struct {
	roster *identity.Roster

	mu        sync.Mutex
	epoch     uint64                         // mu; of the roster that members was made of
	members   map[netip.Addr]int             // mu; how many members are at an address
	proved    map[sigma.MachineID]netip.Addr // mu; from where members last proved who they are
	from      map[netip.Prefix][]*handshake  // mu; the oldest first
	strangers int                            // mu; of from, those that have no place of a member's
}

// handshake is one connection that has not proved whose it is.
type handshake struct {
	conn   net.Conn
	from   netip.Prefix
	member bool // it has a place of a member's address
}

func newHandshakes(roster *identity.Roster) *handshakes {
	return &handshakes{roster: roster, members: map[netip.Addr]int{}, proved: map[sigma.MachineID]netip.Addr{},
		from: map[netip.Prefix][]*handshake{}}
}

// take gives a connection a place. The one that has to end for it, if there is one, is the caller's
// to close.
func (s *handshakes) take(conn net.Conn) (p, ended *handshake) {
	addr := addrOf(conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearLocked()
	p = &handshake{conn: conn, from: netip.PrefixFrom(addr, addr.BitLen())}
	most := handshakesFrom * s.members[addr]
	if p.member = most > 0; !p.member {
		most = handshakesFrom
		if addr.Is6() {
			p.from = netip.PrefixFrom(addr, 64).Masked()
		}
	}
	if of := s.from[p.from]; len(of) >= most {
		ended = of[0]
	} else if !p.member && s.strangers >= handshakesMax {
		ended = s.oldestLocked()
	}
	if ended != nil {
		s.dropLocked(ended)
	}
	s.from[p.from] = append(s.from[p.from], p)
	if !p.member {
		s.strangers++
	}
	return p, ended
}

// give takes a place back; that of one that was ended for another is no more.
func (s *handshakes) give(p *handshake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(p)
}

// prove notes from where a member proved who it is: its address in the roster may be a name, or
// another than the one that it dials from.
func (s *handshakes) prove(m sigma.MachineID, conn net.Conn) {
	addr := addrOf(conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proved[m] != addr {
		s.proved[m] = addr
		s.epoch = 0 // members is made anew
	}
}

// hearLocked makes members anew if the roster has changed.
func (s *handshakes) hearLocked() {
	if s.roster == nil {
		return
	}
	epoch := s.roster.Epoch()
	if epoch == s.epoch {
		return
	}
	s.epoch = epoch
	clear(s.members)
	proved := map[sigma.MachineID]netip.Addr{}
	for _, m := range s.roster.Members() {
		addr, ok := s.proved[m.Machine]
		if ok {
			proved[m.Machine] = addr
			s.members[addr]++
		}
		if at, err := netip.ParseAddrPort(m.Address); err == nil && plain(at.Addr()) != addr {
			s.members[plain(at.Addr())]++
		}
	}
	s.proved = proved // of those that are members still
}

// oldestLocked is the oldest connection of the stranger who has the most.
func (s *handshakes) oldestLocked() (oldest *handshake) {
	most := 0
	for _, of := range s.from {
		if !of[0].member && len(of) > most {
			oldest, most = of[0], len(of)
		}
	}
	return oldest
}

func (s *handshakes) dropLocked(p *handshake) {
	at := slices.Index(s.from[p.from], p)
	if at < 0 {
		return
	}
	if s.from[p.from] = slices.Delete(s.from[p.from], at, at+1); len(s.from[p.from]) == 0 {
		delete(s.from, p.from)
	}
	if !p.member {
		s.strangers--
	}
}

// Strangers bounds the connections of a server that knows no members: those whose peer has not
// shown yet that it may be there. Safe for concurrent use.
type Strangers struct{ places *handshakes }

// NewStrangers makes one that nobody has a place of.
func NewStrangers() *Strangers { return &Strangers{newHandshakes(nil)} }

// Admit gives a connection a place until give is called, and closes the one that has to end for it,
// if there is one.
func (s *Strangers) Admit(conn net.Conn) (give func()) {
	p, ended := s.places.take(conn)
	if ended != nil {
		ended.conn.Close()
	}
	return func() { s.places.give(p) }
}

// addrOf is the address at the other end; the zero one if it has none.
func addrOf(conn net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return plain(at.Addr())
}

// plain is an address as it is compared: IPv4 as such, and without an interface.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
