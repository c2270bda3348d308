package kernel

import (
	"context"

	"sigmaos.dev/sigma"
)

// uxDir is /ux: the scratch storage of each machine, of which this kernel serves its own (001 §3.3).
func (r *root) uxDir() sigma.File {
	k := r.tree.k
	return &dir{path: "/ux",
		names: func(context.Context) ([]string, error) { return []string{string(k.cfg.Machine)}, nil },
		open: func(ctx context.Context, name string) (sigma.File, error) {
			if name != sigma.LocalName && name != sigma.AnyName && name != string(k.cfg.Machine) || r.realm == sigma.SystemRealm {
				return nil, sigma.PathError("kernel.ux", sigma.KindNotFound, sigma.JoinPath(sigma.NameUX, name))
			}
			return k.ux.Attach(ctx, sigma.Principal{Realm: r.realm, Proc: r.tree.principal.Proc, Machine: k.cfg.Machine}, "")
		}}
}
