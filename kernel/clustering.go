package kernel

import (
	"context"
	"maps"
	"slices"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/cluster"
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
		Runs: func(service string) bool { return k.local(service) != nil },
		Dial: func(ctx context.Context, m sigma.MachineID) (*session.Client, error) {
			return k.dialAt(ctx, m, serviceMachined)
		},
		Reach: func(ctx context.Context, use func(context.Context, *session.Client) error) (*session.Client, error) {
			return k.reach(ctx, serviceMachined, use)
		},
		Enrolled: func() { k.sessions.Go(func() { k.watchConnections(k.ctx) }) },
		Changed:  k.tellMembers, Admit: k.placing.Close, Vacant: k.placing.AwaitClosed, Owes: k.owesAnswers,
		TellLeave: func(ctx context.Context, m sigma.MachineID) error {
			return k.ask(ctx, m, cluster.PeerLeave, nil,
				nil)
		}}
}
