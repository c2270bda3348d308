package kernel

import (
	"context"
	"os"

	"sigmaos.dev/machines"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// machinesFile is /sys/machines: what operators ask about machines, passed on to the machined that decides. What the machines themselves say to machined does not come this way.
func (r *root) machinesFile() sigma.File {
	k := r.tree.k
	pass := func(method string) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			reply, err := k.askMachined(ctx, method, payload)
			return reply, nil, err
		}
	}
	methods := map[string]handler{
		machines.CallMembership: func(context.Context, []byte) ([]byte, []*os.File, error) {
			m := k.membership()
			reply, err := sigmap.Payload(func(c *sigmap.Coder) { machines.CodeMembership(c, &m) })
			return reply, nil, err
		},
	}
	for _, method := range []string{machines.CallToken, machines.CallTokens, machines.CallRevoke, machines.CallList, machines.CallCordon, machines.CallDrain, machines.CallLabel, machines.CallControl, machines.CallRemove} {
		methods[method] = pass(method)
	}
	return r.callable(sigmap.FileMachines, methods)
}

// membership is what this machine knows of its place in the system.
func (k *Kernel) membership() machines.Membership {
	if !k.registered() {
		return machines.Membership{Address: k.cfg.Address}
	}
	return machines.Describe(k.id, k.cfg.Address)
}

// askMachined makes a call of the machined that decides, and waits a while for one if there is none now. KindUnavailable means that nothing was done.
func (k *Kernel) askMachined(ctx context.Context, method string, payload []byte) (reply []byte, err error) {
	var lost error // it may have been done, so it is not asked again
	s, _, err := k.reach(ctx, serviceMachined, func(ctx context.Context, c *session.Client) error {
		root, err := c.Attach(ctx, "")
		if err != nil {
			return err
		}
		defer root.Close()
		caller, ok := root.(sigma.Caller)
		if !ok {
			return sigma.Errorf("kernel.machines", sigma.KindUnsupported, "machined answers no calls")
		}
		if reply, _, err = caller.Call(ctx, method, payload, nil); sigma.KindOf(err) == sigma.KindLost {
			lost, err = err, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Close()
	return reply, lost
}
