package kernel

import (
	"context"
	"os"

	"sigmaos.dev/initd"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/namespace"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/view"
)

// registrationsConfig is what registrations need of the kernel.
func (k *Kernel) registrationsConfig() registrations.Config {
	return registrations.Config{Machine: k.cfg.Machine, Procs: k.procs, Cluster: k.cluster, Reach: k.reach,
		Past: k.past, Runner: k.runner, Remote: k.remote, Names: k.systemNames, Enter: k.realms.MayAttach,
		HasRealm: k.realms.HasRealm,
		Views: func(ctx context.Context, by sigma.Principal, ds []sigma.Descriptor) ([]*view.Table, error) {
			return (&root{tree: &tree{k: k, principal: by}, realm: by.Realm}).viewsOf(ctx, ds)
		}}
}

// initFile is /sys/init: what is registered in the realm, a line each; calls of who registers; and
// of the leader of initd.
func (r sys) initFile() sigma.File {
	x := r.tree.k.registrations
	change := func(f func(context.Context, sigma.RealmID, []byte) error) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			return nil, nil, f(ctx, r.realm, payload)
		}
	}
	lead := func(f func(context.Context, []byte) ([]byte, error)) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			reply, err := f(ctx, payload)
			return reply, nil, err
		}
	}
	methods := map[string]handler{sigmap.CallInitAdd: change(x.Add), sigmap.CallInitRemove: change(x.Remove),
		sigmap.CallInitRestart: change(x.Restart)}
	if r.realm == sigma.SystemRealm && r.tree.isService(services.Lcsched) {
		methods = map[string]handler{initd.CallLook: lead(x.Look), initd.CallSpawn: lead(x.Spawn),
			initd.CallStop: lead(x.Stop)}
	}
	return r.sysState(sigmap.FileInit, func(ctx context.Context) ([]byte, error) { return x.Lines(ctx, r.realm) }).
		Answering(r.callable(sigmap.FileInit, methods))
}

// systemNames is the kernel's own view of the names of the system's realm, where records of initd
// are.
func (k *Kernel) systemNames(ctx context.Context) (*namespace.Tree, error) {
	n, err := k.realms.System(ctx)
	if err != nil {
		return nil, err
	}
	return namespace.New(namespace.Config{Machine: k.cfg.Machine, Root: n}), nil
}
