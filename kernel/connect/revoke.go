package connect

import (
	"context"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/sigmap"
)

// Connections that procs have are taken back by their sockets: the launcher finds those among the
// procs' descriptors and shuts them down, for both sides (docs/adr/0020).

const (
	RevokeAgain = time.Second // what was taken back but still under way to its proc is looked for again
	revokeTime  = 5 * time.Second
)

// PeerRevoke has the machine where an endpoint listens take it back, as the provider wants.
var PeerRevoke = sigmap.Method[sigma.Endpoint, sigmap.None]{Name: "revoke", Request: (*sigmap.Coder).Endpoint}

// Revoke takes an endpoint back: nobody dials it any more, and the connections that were made to it
// end. That includes those between this machine and others; when it returns, all have been shut
// down that procs had.
func (x *Connect) Revoke(ctx context.Context, by sigma.Principal, e sigma.Endpoint) error {
	if e.Machine != x.cfg.Machine {
		if !by.System || by.Proc != "" {
			return sigma.Errorf("kernel.Revoke", sigma.KindPermission,
				"the endpoint is one of machine %s: only a proc there, and the provider, can take it back", e.Machine)
		}
		return PeerRevoke.Tell(ctx, x.cfg.At(e.Machine), e)
	}
	if err := x.cfg.Proxy.Withdraw(by, e); err != nil {
		return err
	}
	x.Shut(ctx, x.cfg.Proxy.Revoke("revoked", func(c *dialproxy.Connection) bool { return c.Endpoint == e }))
	if x.launchOf(e.Realm, e.Proc) == 0 { // or what Withdraw remembers would stay
		x.cfg.Proxy.Forget(e.Proc)
	}
	return nil
}

// RevokeHere answers PeerRevoke. That the other machine is a member is enough: its provider is this
// one's.
func (x *Connect) RevokeHere(ctx context.Context, e sigma.Endpoint) (none sigmap.None, err error) {
	if e.Machine != x.cfg.Machine {
		return none, sigma.Errorf("kernel.Revoke", sigma.KindInvalid, "the endpoint is one of machine %s", e.Machine)
	}
	return none, x.Revoke(ctx, x.cfg.Cluster.Provider(), e)
}

// launchOf is the launcher's number of a proc or service that runs here; 0 if none does.
func (x *Connect) launchOf(realm sigma.RealmID, id sigma.ProcID) uint64 {
	if s := x.cfg.Services.Of(sigma.Principal{Realm: realm, Proc: id}); s != nil {
		return s.Launch()
	}
	if p, ok := x.cfg.Procs.Proc(realm, id); ok {
		return p.Launch
	}
	return 0
}

// Found asks which of these ends procs have open, and shuts them down if that is wanted. Those of
// procs that are gone, or that the launcher cannot be asked about, are not among them.
func (x *Connect) Found(ctx context.Context, ends []dialproxy.Open, shut bool) map[uint64]launch.Socket {
	var mu sync.Mutex
	out := map[uint64]launch.Socket{}
	of := map[sigma.ProcID][]dialproxy.Open{}
	for _, o := range ends {
		of[o.Proc] = append(of[o.Proc], o)
	}
	var all sync.WaitGroup
	for id, own := range of {
		l, launched := x.cfg.Launcher.Now(), x.launchOf(own[0].Realm, id)
		if l == nil || launched == 0 {
			continue
		}
		for part := range slices.Chunk(own, launch.SocketsMax) {
			inodes := make([]uint64, len(part))
			for i, o := range part {
				inodes[i] = o.Inode
			}
			all.Go(func() {
				sockets := x.cfg.Launcher.Sockets(ctx, l, launched, inodes, shut)
				mu.Lock()
				defer mu.Unlock()
				for _, s := range sockets {
					out[s.Inode] = s
				}
			})
		}
	}
	all.Wait()
	return out
}

// Shut ends what procs have of connections that were taken back. What is still under way to its
// proc is tried again.
func (x *Connect) Shut(ctx context.Context, ends []dialproxy.Open) {
	if len(ends) == 0 {
		return
	}
	found := x.Found(ctx, ends, true)
	x.cfg.Proxy.Shut(slices.DeleteFunc(slices.Clone(ends), func(o dialproxy.Open) bool {
		_, is := found[o.Inode]
		return !is
	}))
	if len(found) < len(ends) {
		x.Recheck()
	}
}

// Recheck has watchConnections look again.
func (x *Connect) Recheck() {
	select {
	case x.rechecks <- struct{}{}:
	default:
	}
}

// WatchConnections cuts those with machines whose life is over, tries again what could not be taken
// back at once, and forgets what procs have closed, until ctx ends.
func (x *Connect) WatchConnections(ctx context.Context) {
	roster := x.cfg.Cluster.Identity().Roster()
	// kept from turn to turn, as other things may happen more often; nil: nothing is to be tried
	// again
	var again <-chan time.Time
	for {
		changed := roster.Changed()
		alive := map[sigma.Life]bool{{}: true}
		for _, m := range roster.Members() {
			alive[sigma.Life{Machine: m.Machine, Incarnation: m.Incarnation}] = !m.Lost
		}
		x.SweepPools()
		x.bounded(ctx, func(ctx context.Context) {
			x.Shut(ctx, x.cfg.Proxy.Revoke("cut", func(c *dialproxy.Connection) bool { return !alive[c.Other] }))
		})
		if again == nil && len(x.cfg.Proxy.Revoked()) > 0 {
			again = time.After(RevokeAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-x.rechecks:
		case id := <-x.cfg.Proxy.Crowded():
			x.bounded(ctx, func(ctx context.Context) { x.reconcile(ctx, id, x.cfg.Proxy.Of(id)) })
		case <-again:
			again = nil
			x.bounded(ctx, func(ctx context.Context) {
				ends := x.cfg.Proxy.Revoked()
				x.Shut(ctx, ends)
				for _, o := range ends {
					x.cfg.Proxy.Reconcile(o.Proc, []dialproxy.Open{o}, nil) // what was found is not noted any more
				}
			})
		}
	}
}

func (x *Connect) bounded(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, revokeTime)
	defer cancel()
	f(ctx)
}

// reconcile forgets which of a proc's connections it has closed. If the launcher does not answer,
// none are.
func (x *Connect) reconcile(ctx context.Context, id sigma.ProcID, ends []dialproxy.Open) map[uint64]launch.Socket {
	found := x.Found(ctx, ends, false)
	if ctx.Err() != nil || x.cfg.Launcher.Now() == nil {
		return found
	}
	is := make(map[uint64]bool, len(found))
	for inode := range found {
		is[inode] = true
	}
	x.cfg.Proxy.Reconcile(id, ends, is)
	return found
}
