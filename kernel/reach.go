package kernel

import (
	"context"

	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// dialAt opens a session to a service of machine m, which may be this one. It does not wait: KindNotFound if m does not run it, KindUnavailable if m cannot be reached, or the service is being started.
func (k *Kernel) dialAt(ctx context.Context, m sigma.MachineID, name string) (*session.Client, error) {
	if m == k.cfg.Machine {
		s := k.services[name]
		if s == nil {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindNotFound, "machine %s runs no %s", m, name)
		}
		e, running := s.listens(false)
		if !running {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindUnavailable, "%s of machine %s is being started", name, m)
		}
		return s.connect(ctx, e)
	}
	node, err := k.awaitNode(ctx)
	if err != nil {
		return nil, err
	}
	l, err := node.Dial(ctx, m, link.Target{Kind: link.ToService, Name: name}, k.provider())
	if err != nil {
		return nil, err
	}
	return session.Dial(ctx, l.Session())
}
