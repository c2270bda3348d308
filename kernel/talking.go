package kernel

import (
	"context"
	"os"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

func (k *Kernel) newTalk() *talk.Talk {
	return talk.New(talk.Config{Machine: k.cfg.Machine, Proxy: k.proxy, Connect: k.connect, Traffic: k.meters.traffic,
		Cluster: k.cluster, Machines: k.usageMachines, Ask: k.reach.Ask})
}

// shownTo says which connections who reads may know of: the provider of all, a tenant of those that
// its realm has an end of.
func (r sys) shownTo(c *dialproxy.Connection) bool {
	return r.tree.principal.System || c.Endpoint.Realm == r.realm || c.From.Realm == r.realm
}

// connectionsFile is /sys/connections: which connections procs of this machine have.
func (r sys) connectionsFile() sigma.File {
	return r.sysState(roles.Connections, func(ctx context.Context) ([]byte, error) {
		return state.Lines(r.tree.k.talk.Connections(ctx, r.shownTo))
	})
}

// trafficFile is /sys/traffic: a tenant is told of its own realm, the provider of the realm that it
// works in, and in that of the system of all.
func (r sys) trafficFile() sigma.File {
	of := r.realm
	if of == sigma.SystemRealm && r.tree.principal.System {
		of = ""
	}
	return r.sysState(roles.Traffic, func(ctx context.Context) ([]byte, error) {
		return r.tree.k.talk.Traffic(ctx, of)
	})
}

// distancesFile is /sys/distances.
func (r sys) distancesFile() sigma.File {
	return r.sysState(roles.Distances, r.tree.k.talk.Distances)
}

// logCall is the call log: the latest things that happened to connections.
func (r sys) logCall(context.Context, []byte) ([]byte, []*os.File, error) {
	if r.tree.view != nil {
		return nil, nil, sigma.Errorf("kernel.log", sigma.KindPermission,
			"a proc with a view is not told of others' connections")
	}
	text, err := state.Lines(r.tree.k.talk.Log(r.shownTo))
	return text, nil, err
}
