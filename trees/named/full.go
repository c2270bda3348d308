package named

import (
	"errors"

	"sigmaos.dev/sigma"
)

// A store that is full takes only what makes it smaller: whoever reads, removes or renews goes on.
// The server tells its store of each batch whether it grows and whether it writes what a realm
// wants to keep.

// HintFull is for who meets an operator's etcd with the alarm NOSPACE.
const HintFull = "make room there (a bigger --quota-backend-bytes, etcdctl defrag), then: etcdctl alarm disarm"

// DiskFullError is ErrFull of a disk.
type DiskFullError struct{ Why *sigma.Error }

func (e *DiskFullError) Error() string { return e.Why.Error() }
func (e *DiskFullError) Unwrap() error { return ErrFull }

// storeFull is what users see of it.
func storeFull(op string, id sigma.RealmID, err error) error {
	if d := (*DiskFullError)(nil); errors.As(err, &d) {
		e := *d.Why
		e.Op, e.Realm = op, id
		return &e
	}
	if errors.Is(err, ErrOthersFull) {
		return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNoSpace,
			Msg: "the etcd that keeps the names is full, so they can be read but not changed", Hint: HintFull}
	}
	if errors.Is(err, ErrOthersNearlyFull) {
		return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNoSpace,
			Msg: "the etcd that keeps the names is nearly full: it takes only what makes them smaller",
			Hint: "remove names, which makes room by itself; or make room there (a bigger --quota-backend-bytes, " +
				"etcdctl defrag)"}
	}
	return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNoSpace, Msg: "the store of names is full",
		Hint: "remove names, which makes room by itself; the provider sees which realms may hold much with: sigma " +
			"realm ls --json"}
}

// grows says whether a step makes its realm bigger by more than a record.
func (s *step) grows() bool {
	return s.count > len(s.base.cells) || s.bytes > s.base.bytes || s.cost > growFree && s.bytes == s.base.bytes
}

// keeps says whether a step writes files without making the realm smaller: all but removals,
// leases, limits and fences.
func (s *step) keeps() bool {
	if count := len(s.base.cells); s.count <= count && s.bytes <= s.base.bytes &&
		(s.count < count || s.bytes < s.base.bytes) {
		return false
	}
	for _, n := range s.nodes {
		if n != nil {
			return true
		}
	}
	return false
}

// growFree is how much a step may rewrite while the store is full.
const growFree = 256 << 10

// serveEach serves requests that were applied in one step each in a step of its own.
func (l *leader) serveEach(in, rest []*request) (_ []*request, granted, ended bool) {
	for i, r := range in {
		r.taken.Store(false)
		more, g, end := l.serve([]*request{r})
		granted = granted || g
		rest = append(more, rest...)
		if end {
			return append(in[i+1:], rest...), granted, true
		}
	}
	return rest, granted, false
}
