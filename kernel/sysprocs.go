package kernel

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// list answers a page of the realm's procs: those at home at one machine after the other, by name,
// and of each in order of Spawn. Where a page ends is told as the machine and the number of its
// last proc there, so that no proc that is there all the time is left out or told twice, whatever
// begins and ends meanwhile. One whose home is lost between two pages may be; a machine that does
// not answer, though it is not known to be lost, is left out.
func (r sys) list(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var all bool
	var at sigma.MachineID
	var after uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Bool(&all)
		c.Str((*string)(&at))
		c.U64(&after)
	}); err != nil {
		return nil, nil, err
	}
	k := r.tree.k
	machines := append(k.cluster.Others(), k.cfg.Machine)
	slices.Sort(machines)
	var page []sigma.ProcInfo
	more := false
	for i, m := range machines {
		if m < at {
			continue
		}
		if m > at {
			at, after = m, 0
		}
		var err error
		if page, _, more, after, err = k.remote.ListOf(ctx, m, r.realm, all, after, r.ownKin()); err != nil {
			k.cfg.Log.Warn("a machine does not tell what procs it has", "machine", m, "err", err)
			page, more = nil, false
		}
		if more = more || i < len(machines)-1; len(page) > 0 {
			break
		}
	}
	more = more && len(page) > 0 // else there was no machine left to ask
	reply, err := sigmap.Payload(func(c *sigmap.Coder) {
		c.ProcInfos(&page)
		c.Bool(&more)
		c.Str((*string)(&at))
		c.U64(&after)
	})
	return reply, nil, err
}

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

// capsCall is the call caps: of the provider about any proc of the realm, of a proc about itself.
// Endpoints are told in full, so nobody else may ask.
func (r sys) capsCall(ctx context.Context, id sigma.ProcID) ([]byte, error) {
	if p := r.tree.principal; !p.System && p.Proc != id {
		return nil, sigma.Errorf("kernel.caps", sigma.KindPermission, "a proc may ask this about itself only")
	}
	return r.tree.k.remote.Caps(ctx, r.realm, id)
}

// capsHere tells what a proc that is here may reach.
func (k *Kernel) capsHere(realm sigma.RealmID, id sigma.ProcID) ([]byte, error) {
	var sessions []*tree
	p, ok := k.procs.Proc(realm, id)
	if !ok {
		return nil, procs.Unknown(id)
	}
	if p.Ended() {
		return nil, sigma.Errorf("kernel.caps", sigma.KindUnavailable, "the proc has ended and may reach nothing")
	}
	caps := sigmap.Caps{ID: id, Realm: realm, Machine: p.Machine, Profile: p.Profile, All: p.View == nil, Kin: p.Kin,
		Memory: p.Memory, Tasks: runner.PidsMax, Files: runner.NoFileMax}
	if p.View != nil {
		caps.View = p.View.Entries()
	}
	k.sessions.mu.Lock()
	for t := range k.sessions.open {
		if t.principal.Proc == id && !t.far {
			sessions = append(sessions, t)
		}
	}
	k.sessions.mu.Unlock()
	caps.Listens = k.proxy.Listens(id)
	for _, t := range sessions {
		t.mu.Lock()
		caps.Leases = append(caps.Leases, slices.Collect(maps.Keys(t.leases))...)
		t.mu.Unlock()
		if t.view != nil {
			t.view.Caps(&caps)
		}
	}
	slices.Sort(caps.Leases)
	for _, es := range []*[]sigma.Endpoint{&caps.Listens, &caps.Read} {
		slices.SortFunc(*es, func(a, b sigma.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
		*es = (*es)[:min(len(*es), sigmap.CapsMost)]
	}
	caps.Leases = caps.Leases[:min(len(caps.Leases), sigmap.CapsMost)]
	return sigmap.Payload(func(c *sigmap.Coder) { c.Caps(&caps) })
}

// kin are the ancestors with views of what the session's proc spawns: itself, if it has a view, and
// its own.
func (t *tree) kin() []sigma.ProcID {
	if t.view == nil || t.granted != nil {
		return nil
	}
	kin := append([]sigma.ProcID{t.principal.Proc}, t.view.Kin()...)
	return kin[:min(len(kin), schedd.KinMax)]
}

// ownKin is the proc if it sees only itself and its descendants, else "".
func (r *root) ownKin() sigma.ProcID {
	if v := r.tree.view; v != nil && v.AllProcs()&sigma.RightRead == 0 {
		return r.tree.principal.Proc
	}
	return ""
}

// mayProc says whether the session may see a proc (RightRead), or act on it (RightWrite). With a
// view it may do both to itself and its descendants; to others as far as the view shows /proc. That
// there are others is not told.
func (r *root) mayProc(ctx context.Context, id sigma.ProcID, need sigma.Rights) error {
	v := r.tree.view
	if v == nil || r.tree.principal.Proc == id {
		return nil
	}
	granted := v.AllProcs()
	if granted&need == need {
		return nil
	}
	at, ok := r.tree.k.remote.Find(ctx, r.realm, id)
	switch {
	case ok && slices.Contains(at.Kin, r.tree.principal.Proc):
		return nil
	case ok && granted&sigma.RightRead != 0:
		return &sigma.Error{Op: "kernel.procs", Kind: sigma.KindPermission,
			Msg: "the proc's view shows other procs for reading only"}
	}
	return procs.Unknown(id)
}

// kinAt gives those of one machine's procs that are of's kin, for a listing of /proc.
func (r *root) kinAt(ctx context.Context, m sigma.MachineID, after uint64, of sigma.ProcID) (es []sigma.DirEntry,
	more bool) {
	infos, seqs, more, _, err := r.tree.k.remote.ListOf(ctx, m, r.realm, true, after, of)
	if err != nil {
		return nil, false
	}
	for i := range infos {
		name := string(infos[i].ID)
		es = append(es, sigma.DirEntry{Name: name, ID: sigma.FileID{Kind: sigma.KindDir,
			Path: viewfs.PathID(sigma.JoinPath(sigma.NameProc, name))}, Next: seqs[i]})
	}
	return es, more
}
