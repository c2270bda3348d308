package kernel

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/identity"
	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Connections that procs have are taken back by their sockets: the launcher finds those among the
// procs' descriptors and shuts them down, for both sides (docs/adr/0020).

const (
	revokeAgain = time.Second // what was taken back but still under way to its proc is looked for again
	revokeTime  = 5 * time.Second
)

// peerRevoke: Endpoint -> nothing. The machine where it listens takes it back, as the provider
// wants.
const peerRevoke = "revoke"

// revoke takes an endpoint back: nobody dials it any more, and the connections that were made to it
// end. That includes those between this machine and others; when it returns, all have been shut
// down that procs had.
func (k *Kernel) revoke(ctx context.Context, by sigma.Principal, e sigma.Endpoint) error {
	if e.Machine != k.cfg.Machine {
		if !by.System || by.Proc != "" {
			return sigma.Errorf("kernel.Revoke", sigma.KindPermission,
				"the endpoint is one of machine %s: only a proc there, and the provider, can take it back", e.Machine)
		}
		payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.Endpoint(&e) })
		if err != nil {
			return err
		}
		p, err := k.peer(ctx, e.Machine)
		if err == nil {
			_, _, err = p.Call(ctx, peerRevoke, payload, nil)
		}
		return err
	}
	if err := k.proxy.Withdraw(by, e); err != nil {
		return err
	}
	k.shut(ctx, k.proxy.Revoke("revoked", func(c *dialproxy.Connection) bool { return c.Endpoint == e }))
	if k.launchOf(e.Realm, e.Proc) == 0 { // or what Withdraw remembers would stay
		k.proxy.Forget(e.Proc)
	}
	return nil
}

// revokeCall is the call revoke.
func (r *root) revokeCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var e sigma.Endpoint
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
		return nil, nil, err
	}
	return nil, nil, r.tree.k.revoke(ctx, r.tree.principal, e)
}

// revokeCall answers peerRevoke. That the other machine is a member is enough: its provider is this
// one's.
func (k *Kernel) revokeCall(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var e sigma.Endpoint
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
		return nil, err
	}
	if e.Machine != k.cfg.Machine {
		return nil, sigma.Errorf("kernel.Revoke", sigma.KindInvalid, "the endpoint is one of machine %s", e.Machine)
	}
	return nil, k.revoke(ctx, k.cluster.Provider(), e)
}

// launchOf is the launcher's number of a proc or service that runs here; 0 if none does.
func (k *Kernel) launchOf(realm sigma.RealmID, id sigma.ProcID) uint64 {
	if s := k.service(sigma.Principal{Realm: realm, Proc: id}); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.launch
	}
	if p, ok := k.procs.Proc(realm, id); ok {
		return p.Launch
	}
	return 0
}

// found asks which of these ends procs have open, and shuts them down if that is wanted. Those of
// procs that are gone, or that the launcher cannot be asked about, are not among them.
func (k *Kernel) found(ctx context.Context, ends []dialproxy.Open, shut bool) map[uint64]launch.Socket {
	var mu sync.Mutex
	out := map[uint64]launch.Socket{}
	of := map[sigma.ProcID][]dialproxy.Open{}
	for _, o := range ends {
		of[o.Proc] = append(of[o.Proc], o)
	}
	var all sync.WaitGroup
	for id, own := range of {
		l, launched := k.launcher.Now(), k.launchOf(own[0].Realm, id)
		if l == nil || launched == 0 {
			continue
		}
		for part := range slices.Chunk(own, launch.SocketsMax) {
			inodes := make([]uint64, len(part))
			for i, o := range part {
				inodes[i] = o.Inode
			}
			all.Go(func() {
				sockets := k.launcher.Sockets(ctx, l, launched, inodes, shut)
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

// shut ends what procs have of connections that were taken back. What is still under way to its
// proc is tried again.
func (k *Kernel) shut(ctx context.Context, ends []dialproxy.Open) {
	if len(ends) == 0 {
		return
	}
	found := k.found(ctx, ends, true)
	k.proxy.Shut(slices.DeleteFunc(slices.Clone(ends), func(o dialproxy.Open) bool {
		_, is := found[o.Inode]
		return !is
	}))
	if len(found) < len(ends) {
		k.recheck()
	}
}

// recheck has watchConnections look again.
func (k *Kernel) recheck() {
	select {
	case k.rechecks <- struct{}{}:
	default:
	}
}

// watchConnections cuts those with machines whose life is over, tries again what could not be taken
// back at once, and forgets what procs have closed, until ctx ends.
func (k *Kernel) watchConnections(ctx context.Context) {
	roster := k.cluster.Identity().Roster()
	// kept from turn to turn, as other things may happen more often; nil: nothing is to be tried
	// again
	var again <-chan time.Time
	for {
		changed := roster.Changed()
		alive := map[sigma.Life]bool{{}: true}
		for _, m := range roster.Members() {
			alive[sigma.Life{Machine: m.Machine, Incarnation: m.Incarnation}] = !m.Lost
		}
		k.sweepPools()
		k.bounded(ctx, func(ctx context.Context) {
			k.shut(ctx, k.proxy.Revoke("cut", func(c *dialproxy.Connection) bool { return !alive[c.Other] }))
		})
		if again == nil && len(k.proxy.Revoked()) > 0 {
			again = time.After(revokeAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-k.rechecks:
		case id := <-k.proxy.Crowded():
			k.bounded(ctx, func(ctx context.Context) { k.reconcile(ctx, id, k.proxy.Of(id)) })
		case <-again:
			again = nil
			k.bounded(ctx, func(ctx context.Context) {
				ends := k.proxy.Revoked()
				k.shut(ctx, ends)
				for _, o := range ends {
					k.proxy.Reconcile(o.Proc, []dialproxy.Open{o}, nil) // what was found is not noted any more
				}
			})
		}
	}
}

func (k *Kernel) bounded(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, revokeTime)
	defer cancel()
	f(ctx)
}

// reconcile forgets which of a proc's connections it has closed. If the launcher does not answer,
// none are.
func (k *Kernel) reconcile(ctx context.Context, id sigma.ProcID, ends []dialproxy.Open) map[uint64]launch.Socket {
	found := k.found(ctx, ends, false)
	if ctx.Err() != nil || k.launcher.Now() == nil {
		return found
	}
	is := make(map[uint64]bool, len(found))
	for inode := range found {
		is[inode] = true
	}
	k.proxy.Reconcile(id, ends, is)
	return found
}
