package kernel

import (
	"context"
	"os"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// isService says whether who asks is this machine's service of that name.
func (t *tree) isService(name string) bool {
	s := t.k.services.Of(t.principal)
	return s != nil && s.Name == name
}

// pass makes handlers of methods that a service answers.
func (k *Kernel) pass(service string, methods ...string) map[string]handler {
	out := map[string]handler{}
	for _, method := range methods {
		out[method] = func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			reply, err := k.reach.AskService(ctx, service, method, payload)
			return reply, nil, err
		}
	}
	return out
}

// machinesFile is /sys/machines: what operators ask about machines, passed on to the machined that
// decides. What the machines themselves say to machined does not come this way, and an operator
// does not get what machined alone may have: the authority. Everybody may read which machines there
// are.
func (r sys) machinesFile() sigma.File {
	k := r.tree.k
	file := r.machineLines()
	if !r.tree.principal.System {
		if r.realm == sigma.SystemRealm && r.tree.isService(services.Machined) {
			file.Answering(r.callable(sigmap.FileMachines, k.pass(services.Machined, machines.CallAuthority)))
		}
		return file
	}
	methods := k.pass(services.Machined, machines.CallToken, machines.CallTokens, machines.CallRevoke,
		machines.CallList,
		machines.CallCordon, machines.CallDrain, machines.CallLabel, machines.CallControl, machines.CallRemove)
	methods[machines.CallMembership] = func(context.Context, []byte) ([]byte, []*os.File, error) {
		m := k.membership()
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { machines.CodeMembership(c, &m) })
		return reply, nil, err
	}
	return file.Answering(r.callable(sigmap.FileMachines, methods))
}

// namesFile is /sys/names: calls of the leading named about its members and who may write.
func (r sys) namesFile() sigma.File {
	return r.callable(sigmap.FileNames, r.tree.k.pass(services.Named, sigmap.CallMembers, sigmap.CallMemberAdd,
		sigmap.CallMemberRemove, sigmap.CallExpel, sigmap.CallAdmit,
		sigmap.CallSnapshotOpen, sigmap.CallSnapshotRead, sigmap.CallSnapshotClose))
}

// membership is what this machine knows of its place in the system.
func (k *Kernel) membership() machines.Membership {
	if !k.cluster.Registered() {
		return machines.Membership{Address: k.cfg.Address}
	}
	return machines.Describe(k.cluster.Identity(), k.cfg.Address, k.cluster.IsSilent)
}
