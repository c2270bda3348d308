package kernel

import (
	"context"
	"maps"
	"net"
	"slices"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// clusterConfig is what the cluster needs of the kernel.
func (k *Kernel) clusterConfig() cluster.Config {
	links := link.Config{Serve: k.serveLink, Authorise: k.authorise, Reserve: k.reserve, Batch: k.takeBatch,
		Connect: k.cfg.Connect, ConnectAll: k.cfg.ConnectAll, Log: k.cfg.Log}
	if k.cfg.Encrypt {
		links.Reserve = nil
	}
	self := identity.Enrolment{Machine: k.cfg.Machine, Address: k.cfg.Address, CPU: k.cfg.CPU, Memory: k.cfg.Memory,
		Version: Version}
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Labels)) {
		self.Labels = append(self.Labels, name+"="+k.cfg.Labels[name])
	}
	return cluster.Config{Self: self, Data: k.cfg.Data, Join: k.cfg.Join, Listener: k.cfg.Listener, Links: links,
		External: k.cfg.Etcd != nil, Log: k.cfg.Log, Waits: k.cfg.Waits, Procs: k.procs, Go: k.sessions.Go,
		Runs: func(service string) bool { return k.services.Local(service) != nil },
		Dial: func(ctx context.Context, m sigma.MachineID) (*session.Client, error) {
			return k.reach.DialAt(ctx, m, services.Machined)
		},
		Reach: func(ctx context.Context, use func(context.Context, *session.Client) error) (*session.Client, error) {
			return k.reach.Find(ctx, services.Machined, use)
		},
		Enrolled: func() { k.sessions.Go(func() { k.connect.WatchConnections(k.life.ctx) }) },
		Changed:  func(before, after []identity.Member) { k.history.TellMembers(before, after) },
		Admit:    k.placing.Close, Vacant: k.placing.AwaitClosed, Owes: k.owesAnswers,
		TellLeave: func(ctx context.Context, m sigma.MachineID) error {
			return k.reach.Ask(ctx, m, cluster.PeerLeave, nil,
				nil)
		}}
}

// reserve and takeBatch are link.Config's; connect is there when there are links.
func (k *Kernel) reserve(d link.Direct) (link.Place, error) { return k.connect.Reserve(d) }

func (k *Kernel) takeBatch(d link.Direct, b link.Batch, conns []*net.TCPConn) error {
	return k.connect.TakeBatch(d, b, conns)
}

// connectConfig is what connections with other machines need of the kernel.
func (k *Kernel) connectConfig() connect.Config {
	cfg := connect.Config{Machine: k.cfg.Machine, Log: k.cfg.Log, Launcher: k.launcher, Cluster: k.cluster,
		Procs: k.procs, Services: k.services, Proxy: k.proxy, Traffic: k.meters.traffic, Go: k.sessions.Go,
		Ask: k.reach.Ask, Count: k.reach.Count}
	if k.cfg.Connect != nil { // else the keeper makes no sockets
		cfg.Keeper = k.cfg.Keeper
	}
	return cfg
}
