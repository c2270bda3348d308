package lcsched

import (
	"cmp"
	"maps"
	"slices"

	"sigmaos.dev/sigma"
)

// How realms' minima become pieces of machines. After each step no realm that lacks something could
// take more anywhere, so that the next step looks only at machines where there is more room, and
// everywhere only for realms that lost something.

// minima is what realms lack of theirs, and where that is to be looked for.
type minima struct {
	lack    map[sigma.RealmID]Amount // what is not kept anywhere; none of those that have all
	short   []sigma.RealmID          // of lack, in order
	anew    map[sigma.RealmID]bool   // that lack more than after the last step
	roomier map[*machine]bool        // where a piece may be larger than after the last step
	kept    map[sigma.RealmID]Amount // pieces at all machines that attend
}

func newMinima() minima {
	return minima{lack: map[sigma.RealmID]Amount{}, anew: map[sigma.RealmID]bool{}, roomier: map[*machine]bool{},
		kept: map[sigma.RealmID]Amount{}}
}

// lacks sets what a realm lacks.
func (n *minima) lacks(realm sigma.RealmID, a Amount) {
	before := n.lack[realm]
	at, is := slices.BinarySearch(n.short, realm)
	switch {
	case a == (Amount{}):
		delete(n.lack, realm)
		delete(n.anew, realm)
		if is {
			n.short = slices.Delete(n.short, at, at+1)
		}
		return
	case !is:
		n.short = slices.Insert(n.short, at, realm)
	}
	n.lack[realm] = a
	if a.less(before) != (Amount{}) {
		n.anew[realm] = true
	}
}

// others reports whether something is kept for another realm.
func (n *minima) others(than sigma.RealmID) bool {
	_, own := n.kept[than]
	return len(n.kept) > 1 || len(n.kept) == 1 && !own
}

// keeps notes a piece that was another before.
func (n *minima) keeps(m *machine, realm sigma.RealmID, p Amount) {
	was := m.pieces[realm]
	if m.pieces == nil {
		m.pieces = map[sigma.RealmID]Amount{}
	}
	aside := m.aside.less(m.piece(realm))
	m.pieced = m.pieced.less(was).plus(p)
	m.pieces[realm] = p
	n.kept[realm] = n.kept[realm].less(was).plus(p)
	m.aside = aside.plus(m.piece(realm))
	if p == (Amount{}) {
		delete(m.pieces, realm)
	}
	if n.kept[realm] == (Amount{}) {
		delete(n.kept, realm)
	}
}

// dropPieces takes pieces from a machine, which attends no more or has those of other minima.
func (c *Core) dropPieces(m *machine, of func(sigma.RealmID) bool) {
	for realm, p := range m.pieces {
		if of(realm) {
			c.minima.keeps(m, realm, Amount{})
			c.minima.lacks(realm, c.minima.lack[realm].plus(p))
			c.minima.roomier[m] = true
		}
	}
}

// assign takes pieces for the minima that do not have them all.
func (c *Core) assign() {
	n := &c.minima
	if len(n.short) > 0 && (len(n.anew) > 0 || len(n.roomier) > 0) {
		some := slices.SortedFunc(maps.Keys(n.roomier), byRoom)
		for _, realm := range slices.Clone(n.short) {
			if n.anew[realm] {
				c.take(realm, c.rooms.byRoom)
			} else {
				c.take(realm, some)
			}
		}
	}
	clear(n.anew)
	clear(n.roomier)
}

// sortAfter offers that were taken the others are sorted; few of many machines nearly always do.
const sortAfter = 16

// offer is what a realm could have kept at a machine beside its piece.
type offer struct {
	m    *machine
	more Amount
	has  sigma.MilliCPU // what it has reserved
	free Amount
}

// compare orders offers: where the realm has reserved already, then where most is free.
func (o *offer) compare(other *offer) int {
	return cmp.Or(-cmp.Compare(o.has, other.has), -cmp.Compare(o.free.CPU, other.free.CPU),
		-cmp.Compare(o.free.Memory, other.free.Memory), cmp.Compare(o.m.life.Machine, other.m.life.Machine))
}

// take takes pieces for a realm at some machines.
func (c *Core) take(realm sigma.RealmID, of []*machine) {
	need := c.minima.lack[realm]
	var offers []offer
	for _, m := range of {
		if !m.listed || m.closed {
			continue
		}
		p, has := m.pieces[realm], m.of[realm]
		free := m.free(realm)
		more := has.less(p).plus(free.less(p.less(has))) // what it has reserved beyond its piece, and what is nobody's
		if need.least(more) != (Amount{}) {
			offers = append(offers, offer{m, more, has.CPU, free})
		}
	}
	for n := 0; need != (Amount{}) && len(offers) > 0; n++ {
		if n == sortAfter {
			slices.SortFunc(offers, func(a, b offer) int { return -a.compare(&b) })
		}
		best := len(offers) - 1
		for i := 0; n < sortAfter && i < best; i++ {
			if offers[i].compare(&offers[best]) < 0 {
				offers[i], offers[best] = offers[best], offers[i]
			}
		}
		o := offers[best]
		offers = offers[:best]
		more := need.least(o.more)
		c.minima.keeps(o.m, realm, o.m.pieces[realm].plus(more))
		need = need.less(more)
	}
	c.minima.lacks(realm, need)
}
