package kernel

import (
	"context"
	"os"
	"time"

	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// mayOwn says whether the session may make and revoke credentials of its realm: the provider's may,
// and those with the role owner, which roleFile sees to.
func (r sys) mayOwn() bool {
	return r.realm != sigma.SystemRealm && (r.tree.principal.System && r.tree.principal.Proc == "" && !r.tree.far ||
		r.tree.granted != nil && r.tree.granted.Role >= sigma.RoleOwner)
}

// credentialsFile is /sys/credentials: the credentials of the session's realm, a line each, and
// calls to make and revoke them.
func (r sys) credentialsFile() sigma.File {
	owned := func() error {
		if r.mayOwn() {
			return nil
		}
		return sigma.Errorf("kernel.credentials", sigma.KindPermission,
			"credentials are the provider's and of owners of the realm")
	}
	owner := func(f func(context.Context, sigma.RealmID, *guests.Granted, []byte) ([]byte, error)) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if err := owned(); err != nil {
				return nil, nil, err
			}
			reply, err := f(ctx, r.realm, r.tree.granted, payload)
			return reply, nil, err
		}
	}
	x := r.tree.k.guests
	return r.sysState(sigmap.FileCredentials, func(ctx context.Context) ([]byte, error) {
		if err := owned(); err != nil {
			return nil, err
		}
		all, err := x.All(ctx, r.realm)
		if err != nil {
			return nil, err
		}
		out := make([]state.Credential, len(all))
		for i, c := range all {
			out[i] = state.OfCredential(r.realm, c)
		}
		return state.Lines(out)
	}).Answering(r.callable(sigmap.FileCredentials, map[string]handler{sigmap.CallCreate: owner(x.Create),
		sigmap.CallCredentialRevoke: owner(x.Revoke)}))
}

// serveGuest answers a guest's session.
func (k *Kernel) serveGuest(ctx context.Context, conn session.Conn, g *guests.Granted) {
	t := &tree{k: k, granted: g, principal: sigma.Principal{Realm: g.Presented.Realm, Proc: sigma.NewProcID(),
		Machine: k.cfg.Machine}}
	t.view = t.viewer(viewfs.Config{Table: g.View, Role: g.Role.String()})
	k.serveAs(ctx, conn, t, false)
	k.meters.traffic.End(time.Now(), t.principal.Proc)
}
