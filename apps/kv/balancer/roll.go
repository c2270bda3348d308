package balancer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// A roll replaces the members of a group one after another. First the group gets a member more, so
// that it has as many as otherwise when one goes. Each member that goes hands leadership over and
// leaves the group; initd starts another one of the new program in its place, which gets the keys
// from the others. At the end the surplus member goes. The configuration says how far a group has
// come, and each step can be made again, so that another balancer can go on at any time.

// rollPause is the time between two looks at a group whose members are replaced.
const rollPause = 50 * time.Millisecond

// roll begins to replace the members of the first group that needs it, unless one is under way.
func (b *balancer) roll(ctx context.Context, cfg *layout.Config) {
	for g := uint32(1); g < cfg.Next; g++ {
		if group, is := cfg.Groups[g]; !is || group.Leaving || cfg.Settled(g) {
			continue
		}
		b.once(task{}, func() {
			began := time.Now()
			err := b.rollGroup(ctx, cfg, g)
			if err != nil {
				b.log.Warn("a roll is tried again", "group", g, "err", err)
				retry.Pause(ctx, againPause)
				return
			}
			b.log.Info("a group's members were replaced", "group", g, "revision", cfg.Revision,
				"took", time.Since(began))
		})
		return
	}
}

// rollGroup replaces the members of a group that cfg does not know to be replaced.
func (b *balancer) rollGroup(ctx context.Context, cfg *layout.Config, g uint32) error {
	first := 0
	if cfg.Groups[g].Revision == cfg.Revision {
		first = cfg.Groups[g].Replaced
	}
	size := cfg.Replicas + cfg.Surge()
	for i := cfg.Replicas; i < size; i++ {
		if err := Register(ctx, b.c, cfg, g, i); err != nil {
			return err
		}
	}
	for i := first; i < cfg.Replicas; i++ {
		err := b.replace(ctx, cfg, g, i, size)
		if err == nil && i == cfg.Replicas-1 {
			if err = b.unregisterSurplus(ctx, cfg, g); err == nil {
				_, err = b.whole(ctx, g, cfg.Replicas)
			}
		}
		if err != nil {
			return err
		}
		_, err = Change(ctx, b.c, b.name, func(now *layout.Config) (*layout.Config, error) {
			next := now.Replace(g, cfg.Revision, i+1)
			if next == nil {
				return nil, sigma.Errorf("kv.roll", sigma.KindStale, "group %d is not to be of revision %d any more", g,
					cfg.Revision)
			}
			return next, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replace replaces one member of a group that has size members.
func (b *balancer) replace(ctx context.Context, cfg *layout.Config, g uint32, i, size int) error {
	before, err := b.whole(ctx, g, size)
	if err != nil {
		return err
	}
	r, err := registration(cfg, g, i)
	if err == nil {
		err = b.c.Replace(ctx, r)
	}
	if err == nil {
		err = b.replaced(ctx, g, before)
	}
	if err == nil {
		_, err = b.whole(ctx, g, size)
	}
	return err
}

// unregisterSurplus ends the members that a roll has added.
func (b *balancer) unregisterSurplus(ctx context.Context, cfg *layout.Config, g uint32) error {
	for i := cfg.Replicas; i < cfg.Replicas+cfg.Surge(); i++ {
		err := b.c.Unregister(ctx, layout.MemberProc(b.name, g, i))
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

// procs gives the procs of a group that are published as members.
func (b *balancer) procs(ctx context.Context, g uint32) (procs []sigma.ProcID, err error) {
	dir := layout.Members(b.name, g)
	entries, err := b.c.ReadDir(sigma.WithSync(ctx), dir)
	for _, e := range entries {
		text, gerr := b.c.ReadLink(ctx, dir+"/"+e.Name)
		if gerr != nil {
			continue // it has just gone
		}
		if at, perr := sigma.ParseEndpoint(text); perr == nil {
			procs = append(procs, at.Proc)
		}
	}
	return procs, err
}

// whole waits until a group has as many members as it is to have, and all are published. It gives
// their procs.
func (b *balancer) whole(ctx context.Context, g uint32, size int) (procs []sigma.ProcID, err error) {
	for {
		within, cancel := context.WithTimeout(ctx, lookEvery)
		st, serr := b.clerk.Group(within, g)
		cancel()
		if procs, err = b.procs(ctx, g); err != nil {
			return nil, err
		}
		if serr == nil && len(st.Members) == size && len(procs) == size {
			return procs, nil
		}
		if !retry.Pause(ctx, rollPause) {
			return nil, fmt.Errorf("group %d has the members %v, of %d: %w", g, st.Members, size, ctx.Err())
		}
	}
}

// replaced waits until one of some procs is published no more.
func (b *balancer) replaced(ctx context.Context, g uint32, before []sigma.ProcID) error {
	for {
		now, err := b.procs(ctx, g)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(before, func(p sigma.ProcID) bool { return !slices.Contains(now, p) }) {
			return nil
		}
		if !retry.Pause(ctx, rollPause) {
			return ctx.Err()
		}
	}
}
