package named

import (
	"context"
	"encoding/binary"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
)

// Fences (000 §3.6). One goroutine orders a realm's changes, so that a request's epoch is compared
// with the newest known one in the step that applies it, and a newer epoch is noted and stored in
// that step too: what a deposed leader asks for afterwards, of this named or of the next, is
// refused. A read is compared under the lock under which it reads; one that brings a newer epoch
// has it stored before.

func fencePrefix(r sigma.RealmID) string { return "f/" + string(r) + "/" }

func fenceKey(r sigma.RealmID, name string) string { return fencePrefix(r) + name }

func encodeFence(e sigma.Epoch) []byte {
	return binary.AppendUvarint([]byte{recordVersion}, uint64(e))
}

func decodeFence(b []byte) (sigma.Epoch, error) {
	d := decoder{b: b}
	d.version()
	e := sigma.Epoch(d.uvarint())
	if e == 0 {
		d.fail("impossible values")
	}
	return e, d.end("fence")
}

// loadFences reads a realm's fences.
func (t *tree) loadFences(ctx context.Context, store Store) error {
	prefix := fencePrefix(t.realm)
	return store.Scan(ctx, prefix, func(key string, value []byte) error {
		e, err := decodeFence(value)
		name := strings.TrimPrefix(key, prefix)
		if err != nil || name == "" || len(name) > sigma.PathMax {
			return sigma.Errorf("named.load", sigma.KindOther, "key %q: %v", key, err)
		}
		t.fences.Raise(sigma.Fence{Name: name, Epoch: e})
		return nil
	})
}

// fencedOp is a mutation that somebody asks for as the leader of an epoch. The epoch is noted even
// if the mutation is refused.
type fencedOp struct {
	mutation
	fence sigma.Fence
}

func (o fencedOp) size() int { return o.mutation.size() + len(o.fence.Name) }

func (o fencedOp) apply(s *step, now time.Time) reply {
	newer, err := s.checkFence(o.fence)
	if err != nil {
		return reply{err: err}
	}
	if newer {
		s.raise(o.fence)
	}
	return o.mutation.apply(s, now)
}

// fenced gives m the fence of ctx.
func fenced(ctx context.Context, m mutation) mutation {
	if f := sigma.FenceOf(ctx); f.Name != "" {
		return fencedOp{m, f}
	}
	return m
}

// bare is the mutation without its fence.
func bare(m mutation) mutation {
	if f, ok := m.(fencedOp); ok {
		return f.mutation
	}
	return m
}

// noOp changes nothing; its fence is noted.
type noOp struct{}

func (noOp) size() int                    { return 0 }
func (noOp) apply(*step, time.Time) reply { return reply{} }

// checkFence is fence.Epochs.Check with what the step raised before. A step may go beyond the
// number of fences by what it holds.
func (s *step) checkFence(f sigma.Fence) (newer bool, err error) {
	if known := s.raised[f.Name]; known > 0 && f.Epoch <= known {
		if f.Epoch < known && f.Epoch > 0 {
			return false, fence.Stale(f, known)
		}
		if f.Epoch == known {
			return false, nil
		}
	}
	return s.base.fences.Check(f)
}

func (s *step) raise(f sigma.Fence) {
	if s.raised == nil {
		s.raised = map[string]sigma.Epoch{}
	}
	s.raised[f.Name] = f.Epoch
	s.stored = true
	s.cost += entryCost + len(f.Name)
}

// mergeFences makes the newer epochs of a committed step known.
func (t *tree) mergeFences(s *step) {
	for name, e := range s.raised {
		t.fences.Raise(sigma.Fence{Name: name, Epoch: e})
	}
}

// deposedLocked ends the waiting of requests of older epochs, with l.mu held; l.raised is closed
// for watches.
func (l *leader) deposedLocked(s *step) {
	if len(s.raised) > 0 {
		close(l.raised)
		l.raised = make(chan struct{})
	}
}

// admit compares the fence of a read with the newest known one.
func (t *tree) admit(f sigma.Fence) (newer bool, err error) {
	if f.Name == "" {
		return false, nil
	}
	return t.fences.Check(f)
}
