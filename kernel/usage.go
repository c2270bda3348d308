package kernel

import (
	"context"
	"os"
	gometrics "runtime/metrics"
	"syscall"
	"time"

	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// usage answers what procs use: those that run, now; others, what is known of them. It is for the
// provider, because a question costs the launcher time that starts need, and for sessions with a
// credential, which read the same in /proc and have few requests at a time.
func (r *root) usage(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
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

// servicesUsage tells what the services and sigmad use that status lists, in its order, the
// launcher left out. One that is being restarted uses nothing; of one that cannot be asked now, or
// not before ctx ends, it tells what was measured last.
func (k *Kernel) servicesUsage(ctx context.Context) (out []sigma.Usage) {
	l := k.launcher.Now()
	for _, s := range k.services.List() {
		out = append(out, s.Usage(ctx, l))
	}
	return append(out, ownUsage())
}

// ownUsage is sigmad's, as far as it can see itself: memory is what its language holds.
func ownUsage() sigma.Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return sigma.Usage{}
	}
	held := []gometrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	gometrics.Read(held)
	now := sigma.Bytes(held[0].Value.Uint64() - held[1].Value.Uint64())
	return sigma.Usage{UserTime: time.Duration(r.Utime.Nano()), SystemTime: time.Duration(r.Stime.Nano()), Memory: now,
		MemoryPeak: max(now, sigma.Bytes(r.Maxrss)*sigma.KiB)}
}
