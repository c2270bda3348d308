package kernel

import (
	"context"
	"os"
	"time"

	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// judgeMax is how long an operator's request waits for a machined that decides: a judge that died is replaced within that.
const judgeMax = 10 * time.Second

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
	return machines.Membership{}
}

// askMachined makes a call of the machined that decides, and waits a while for one if there is none now. KindUnavailable means that nothing was done.
func (k *Kernel) askMachined(ctx context.Context, method string, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, judgeMax)
	defer cancel()
	for {
		reply, err := k.askMachinedOnce(ctx, method, payload)
		if sigma.KindOf(err) != sigma.KindUnavailable || err == nil || k.services[serviceMachined] == nil {
			return reply, err
		}
		select {
		case <-time.After(restartMin):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (k *Kernel) askMachinedOnce(ctx context.Context, method string, payload []byte) ([]byte, error) {
	s := k.services[serviceMachined]
	if s == nil {
		return nil, sigma.Errorf("kernel.machines", sigma.KindUnavailable, "no machined runs")
	}
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := c.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	caller, ok := root.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("kernel.machines", sigma.KindUnsupported, "machined answers no calls")
	}
	reply, _, err := caller.Call(ctx, method, payload, nil)
	return reply, err
}
