package named

import (
	"fmt"
	"time"

	"sigmaos.dev/sigma"
)

// Bounds of leases. A lease ends in one transaction with all its files, hence LeaseFilesMax: keys
// and directory records of that many files are below half of what etcd takes at once (see
// CommitBytesMax).
const (
	LeaseLeast    = time.Second // shorter ones would end while a machine pauses
	LeaseMax      = time.Hour   // longer ones would keep names of the dead
	LeaseFilesMax = 4096
)

func leaseError(op string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: "there is no such lease; it may have expired"}
}

// grantOp makes a lease for a program on a machine, whose loss ends it.
type grantOp struct {
	ttl     time.Duration
	machine sigma.MachineID
}

func (o grantOp) size() int { return 0 }

func (o grantOp) apply(s *step, now time.Time) reply {
	const op = "named.Lease"
	if o.ttl < LeaseLeast || o.ttl > LeaseMax {
		return reply{err: &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("a lease cannot last %v",
			o.ttl),
			Hint: fmt.Sprintf("ask for %v to %v", LeaseLeast, LeaseMax)}}
	}
	if most := s.limits().Leases; s.leaseCount() >= most {
		return reply{err: limitError(op, "leases", s.leaseCount(), most, "share leases among files")}
	}
	n, ok := s.newID()
	if !ok {
		return reply{err: sigma.Errorf(op, sigma.KindNoSpace, "the realm has used up its lease numbers")}
	}
	id := sigma.LeaseID(n)
	s.begin()
	s.leases[id] = &lease{id: id, ttl: o.ttl, machine: o.machine, deadline: now.Add(o.ttl),
		files: map[uint64]struct{}{}}
	s.cost += entryCost
	return reply{lease: id}
}

// renewOp gives a lease its full time again. It is not stored: after a restart every lease has its
// full time anyway.
type renewOp struct{ id sigma.LeaseID }

func (o renewOp) size() int { return 0 }

func (o renewOp) apply(s *step, now time.Time) reply {
	l := s.lease(o.id)
	if l == nil {
		return reply{err: leaseError("named.Renew")}
	}
	c := *l
	c.deadline = now.Add(c.ttl)
	s.leases[o.id] = &c
	return reply{lease: o.id}
}

// endOp ends a lease and removes its files: because the holder says so, or if it has expired.
type endOp struct {
	id      sigma.LeaseID
	expired bool
}

func (o endOp) size() int { return 0 }

func (o endOp) apply(s *step, now time.Time) reply {
	l := s.lease(o.id)
	if l == nil {
		return reply{err: leaseError("named.Revoke")}
	}
	if o.expired && now.Before(l.deadline) {
		return reply{lease: o.id} // it was renewed meanwhile
	}
	v := s.begin()
	for _, n := range s.filesOf(o.id) {
		s.drop(n)
		s.changeDir(n.parent, v, now.UnixNano(), -1)
	}
	s.leases[o.id] = nil
	s.cost += entryCost
	return reply{lease: o.id}
}

// barrierOp changes nothing. Its reply says that all changes before it are decided.
type barrierOp struct{}

func (barrierOp) size() int { return 0 }

func (barrierOp) apply(*step, time.Time) reply { return reply{} }

// expired returns the leases that are over, and when the next one will be (zero if there is none).
func (t *tree) expired(now time.Time) (over []sigma.LeaseID, next time.Time) {
	for id, l := range t.leases {
		if !now.Before(l.deadline) {
			over = append(over, id)
		} else if next.IsZero() || l.deadline.Before(next) {
			next = l.deadline
		}
	}
	return over, next
}
