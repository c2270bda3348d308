package kernel

import (
	"context"
	"os"
	"time"

	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// usage answers what procs use: those that run, now; others, what is known of them. It is for the
// provider, because a question costs the launcher time that starts need, and for sessions with a
// credential, which read the same in /proc and have few requests at a time.
func (r sys) usage(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var ids []sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcIDs(&ids) }); err != nil {
		return nil, nil, err
	}
	if !r.tree.principal.System && r.tree.granted == nil {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindPermission,
			"no proc may ask this; read its files in /proc")
	}
	if len(ids) > remote.UsageMax {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed",
			len(ids), remote.UsageMax)
	}
	out, err := r.tree.k.remote.Usages(ctx, r.realm, ids)
	if err != nil {
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&out) })
	return reply, nil, err
}

// meterCall is the call meter.
func (r sys) meterCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	if err := sigmap.Parse(payload, func(*sigmap.Coder) {}); err != nil {
		return nil, nil, err
	}
	who := r.tree.principal
	who.Realm = r.realm
	f, err := r.tree.k.meters.traffic.GiveMeter(who, time.Now())
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}
