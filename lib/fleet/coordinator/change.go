package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/core"
	"sigmaos.dev/sigma"
)

// amend changes the record: next gives the new one, or an error. What is answered is stored.
func (k *keeper) amend(ctx context.Context, why string, next func(r fleet.Record) (fleet.Record, error)) (
	r fleet.Record, err error) {
	lost := k.do(ctx, func() {
		old := k.core.Record()
		if old.Removed {
			err = sigma.Errorf("fleet", sigma.KindNotFound, "the fleet %s is being removed", k.name)
			return
		}
		if r, err = next(old); err != nil || r.Generation == old.Generation {
			return
		}
		if err = k.store(ctx, r); err == nil {
			k.step(core.Changed{Record: r, Why: by(r.By, why)})
		}
	})
	if lost != nil {
		return r, lost
	}
	return r, err
}

// by says who did something.
func by(who, what string) string {
	if who == "" {
		return what
	}
	return what + " by " + who
}

func (k *keeper) apply(ctx context.Context, a fleet.ApplyArg) (reply fleet.ApplyReply, err error) {
	reply.Record, err = k.amend(ctx, "a description was applied", func(r fleet.Record) (fleet.Record, error) {
		if a.Generation != 0 && a.Generation != r.Generation {
			return r, changed(k.name)
		}
		reply.Was, reply.Changes = r.Generation, fleet.Changes(&r.Spec, &a.Spec)
		if len(reply.Changes) == 0 {
			return r, nil
		}
		n := r.Next(a.Spec, time.Now(), caller(ctx), fmt.Sprintf("%d keys changed", len(reply.Changes)))
		reply.Rolls = n.Revision != r.Revision
		if a.Plan {
			n.Generation = r.Generation // not stored
		}
		return n, nil
	})
	return reply, err
}

func (k *keeper) scale(ctx context.Context, a fleet.ScaleArg) (fleet.Record, error) {
	return k.amend(ctx, "the size was set", func(r fleet.Record) (fleet.Record, error) {
		s := r.Spec
		if a.Least != nil {
			s.Least = *a.Least
			s.Most = max(s.Most, s.Least)
		}
		if a.Most != nil {
			s.Most = *a.Most
		}
		if err := s.Check(); err != nil {
			return r, err
		}
		return r.Next(s, time.Now(), caller(ctx), fmt.Sprintf("%d to %d members", s.Least, s.Most)), nil
	})
}

func (k *keeper) setPolicy(ctx context.Context, a fleet.PolicyArg) (fleet.Record, error) {
	return k.amend(ctx, "the policy was set", func(r fleet.Record) (fleet.Record, error) {
		s := r.Spec
		s.Policy = a.Policy
		if err := s.Check(); err != nil {
			return r, err
		}
		return r.Next(s, time.Now(), caller(ctx), "policy "+a.Policy.Choice), nil
	})
}

func (k *keeper) roll(ctx context.Context, _ fleet.NameArg) (fleet.Record, error) {
	return k.amend(ctx, "new members were asked for", func(r fleet.Record) (fleet.Record, error) {
		return r.Rolled(time.Now(), caller(ctx)), nil
	})
}

// undo goes back to the revision that a roll under way replaces, or to the description before the
// one in force.
func (k *keeper) undo(ctx context.Context, _ fleet.NameArg) (fleet.Record, error) {
	past, err := k.history(ctx, fleet.NameArg{})
	if err != nil {
		return fleet.Record{}, err
	}
	return k.amend(ctx, "the last change was undone", func(r fleet.Record) (fleet.Record, error) {
		if s := r.Stable; s != nil && s.Revision != r.Revision {
			n := r
			n.Undone, n.Revision, n.Spec, n.Stable, n.Passed = r.Revision, s.Revision, s.Spec, nil, false
			n.Generation++
			n.At, n.By, n.What = time.Now(), caller(ctx), fmt.Sprintf("back to revision %d", s.Revision)
			return n, nil
		}
		for _, p := range slices.Backward(past) {
			if len(fleet.Changes(&r.Spec, &p.Spec)) > 0 {
				return r.Next(p.Spec, time.Now(), caller(ctx), fmt.Sprintf("back to generation %d", p.Generation)), nil
			}
		}
		return r, &sigma.Error{Op: "fleet.Undo", Path: fleet.Dir(k.name), Kind: sigma.KindNotFound,
			Msg: "there is nothing to go back to", Hint: "sigma fleet history " + k.name + " tells what was in force"}
	})
}

// remove may be called again, after an answer that was lost.
func (k *keeper) remove(ctx context.Context) error {
	removed := false
	if err := k.do(ctx, func() { removed = k.core.Record().Removed }); err != nil || removed {
		return err
	}
	_, err := k.amend(ctx, "the fleet was removed", func(r fleet.Record) (fleet.Record, error) {
		r.Removed = true
		r.Generation++
		r.At, r.By, r.What = time.Now(), caller(ctx), "removed"
		return r, nil
	})
	return err
}

func (k *keeper) status(ctx context.Context, _ fleet.NameArg) (s fleet.Status, err error) {
	err = k.do(ctx, func() { s = k.core.Status(true) })
	return s, err
}

func (k *keeper) history(context.Context, fleet.NameArg) ([]fleet.Record, error) {
	k.papers.mu.Lock()
	defer k.papers.mu.Unlock()
	return slices.Clone(k.papers.past), nil
}

func (k *keeper) decisions(context.Context, fleet.NameArg) ([]fleet.Decision, error) {
	k.papers.mu.Lock()
	defer k.papers.mu.Unlock()
	return slices.Clone(k.papers.decided), nil
}
