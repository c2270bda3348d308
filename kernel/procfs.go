package kernel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// procDir is /proc: a directory per proc of the realm, also of ended ones while they are remembered, wherever they are at home. Another machine is shown those of this one.
func (r *root) procDir() sigma.File {
	return &dir{path: "/proc", page: r.procPage,
		open: func(ctx context.Context, name string) (sigma.File, error) {
			k, id := r.tree.k, sigma.ProcID(name)
			if r.mayProc(ctx, id, sigma.RightRead) != nil {
				return nil, unknownProc(id)
			}
			if _, ok := k.placeHere(r.realm, id); ok {
				return r.oneProcDir(id), nil
			}
			if !r.tree.far {
				if _, ok := k.find(ctx, r.realm, id); ok {
					return r.oneProcDir(id), nil
				}
			}
			return nil, &sigma.Error{Op: "kernel.proc", Path: sigma.JoinPath(sigma.NameProc, name), Kind: sigma.KindNotFound, Hint: "sigma ps -a lists the realm's procs"}
		}}
}

// seqBits are those of a cookie of /proc that say which proc of a machine; the ones above, which machine: by its incarnation, so that machines that come are met last.
const seqBits = 40

// procPage gives the procs of one machine after the other.
func (r *root) procPage(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, bool, error) {
	k := r.tree.k
	self := k.self()
	lives := []identity.Subject{self}
	if !r.tree.far && k.registered() {
		for _, m := range k.id.Roster().Members() {
			if !m.Lost && m.Machine != self.Machine {
				lives = append(lives, identity.Subject{Machine: m.Machine, Incarnation: m.Incarnation})
			}
		}
	}
	slices.SortFunc(lives, func(a, b identity.Subject) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	for i, l := range lives {
		if uint64(l.Incarnation) < cookie>>seqBits {
			continue
		}
		from := uint64(0)
		if uint64(l.Incarnation) == cookie>>seqBits {
			from = cookie & (1<<seqBits - 1)
		}
		var es []sigma.DirEntry
		var more bool
		if of := r.ownKin(); of != "" {
			es, more = r.kinAt(ctx, l.Machine, from, of)
		} else if l.Machine == self.Machine {
			es, more = r.procsHere(from, n)
		} else {
			es, more = r.procsAt(ctx, l.Machine, from, n)
		}
		for j := range es {
			es[j].Next = es[j].Next&(1<<seqBits-1) | uint64(l.Incarnation)<<seqBits
		}
		if len(es) > 0 {
			return es, more || i < len(lives)-1, nil
		}
	}
	return nil, false, nil
}

// procsHere gives those that are at home here. The numbers are good for a far machine's cookies and ours.
func (r *root) procsHere(after uint64, n int) (es []sigma.DirEntry, more bool) {
	k := r.tree.k
	k.mu.Lock()
	defer k.mu.Unlock()
	for seq, p := range k.core.After(r.realm, after) {
		if len(es) == min(n, listProcs) {
			return es, true
		}
		es = append(es, sigma.DirEntry{Name: string(p.ID), ID: sigma.FileID{Kind: sigma.KindDir, Path: idOf(sigma.JoinPath(sigma.NameProc, string(p.ID)))}, Next: seq})
	}
	return es, false
}

// procsAt gives those that are at home at another machine. One that does not answer is left out, as it is of sigma ps.
func (r *root) procsAt(ctx context.Context, m sigma.MachineID, after uint64, n int) ([]sigma.DirEntry, bool) {
	known, _ := r.tree.k.member(m)
	at, err := r.farAt(ctx, m, sigma.NameProc)
	if at == nil || err != nil {
		return nil, false
	}
	d, _, err := at.walk(ctx, nil)
	if err != nil {
		return nil, false
	}
	defer d.Close()
	if d.Open(ctx, sigma.OpenRead) != nil {
		return nil, false
	}
	es, _, more, err := d.ReadDir(ctx, after|uint64(known.Incarnation)<<seqBits, n)
	if err != nil {
		return nil, false
	}
	for i := range es {
		es[i].ID = sigma.FileID{Kind: sigma.KindDir, Path: idOf(sigma.JoinPath(sigma.NameProc, es[i].Name))}
	}
	return es, more
}

// oneProcDir is /proc/PID. What the proc printed is where it runs, its status at its home.
func (r *root) oneProcDir(id sigma.ProcID) sigma.File {
	k, path := r.tree.k, sigma.JoinPath(sigma.NameProc, string(id))
	return &dir{path: path,
		names: func(context.Context) ([]string, error) { return []string{"status", "stdout", "stderr"}, nil },
		open: func(ctx context.Context, name string) (sigma.File, error) {
			if name != "status" && name != "stdout" && name != "stderr" {
				return nil, sigma.PathError("kernel.proc", sigma.KindNotFound, path+"/"+name)
			}
			if r.tree.far {
				return r.procFile(id, name)
			}
			at, ok := k.find(ctx, r.realm, id)
			if !ok {
				return nil, unknownProc(id)
			}
			m := at.home
			if name != "status" {
				if m = at.runs; m == "" && len(k.others()) > 0 { // it may be placed anywhere
					return emptyFile(path, name), nil
				}
			}
			if m == "" || m == k.cfg.Machine {
				return r.procFile(id, name)
			}
			far, err := r.farAt(ctx, m, sigma.NameProc, string(id), name)
			if err != nil {
				return nil, err
			}
			if far == nil {
				return nil, unknownProc(id)
			}
			f, _, err := far.walk(ctx, nil)
			return f, err
		}}
}

func emptyFile(dir, name string) sigma.File {
	return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindFile, Path: idOf(dir + "/" + name)}, Name: name, Perm: 0o444, Content: func(context.Context) ([]byte, error) { return nil, nil }}
}

// procFile is a file of /proc/PID that is here.
func (r *root) procFile(id sigma.ProcID, name string) (sigma.File, error) {
	k, file := r.tree.k, sigma.JoinPath(sigma.NameProc, string(id), name)
	if name == "status" {
		return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: idOf(file)}, Name: name, Perm: 0o444,
			Content: func(context.Context) ([]byte, error) { return k.statusText(r.realm, id) }}, nil
	}
	k.mu.Lock()
	p := k.core.Proc(r.realm, id)
	if p == nil {
		k.mu.Unlock()
		return nil, unknownProc(id)
	}
	l := k.newLogsLocked(r.realm, id) // if it is not started yet, the same are used then
	neverRan := p.Ended() && p.Launch == 0
	k.mu.Unlock()
	if neverRan {
		l.out.End()
		l.err.End()
	}
	if name == "stdout" {
		return l.out.File(name, idOf(file)), nil
	}
	return l.err.File(name, idOf(file)), nil
}

// statusText is /proc/PID/status: one "key value" a line, times in RFC 3339, durations in microseconds.
func (k *Kernel) statusText(realm sigma.RealmID, id sigma.ProcID) ([]byte, error) {
	k.mu.Lock()
	p := k.core.Proc(realm, id)
	if p == nil {
		k.mu.Unlock()
		return nil, unknownProc(id)
	}
	i, l := p.ProcInfo, k.logs[id]
	k.mu.Unlock()
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%s %v\n", key, value) }
	line("id", i.ID)
	line("name", i.Name)
	line("program", i.Program)
	line("state", i.State)
	line("class", i.Class)
	line("parent", i.Parent)
	line("machine", i.Machine)
	line("memory", uint64(i.Memory))
	for _, t := range []struct {
		name string
		at   time.Time
	}{{"spawned", i.Times.Spawned}, {"placed", i.Times.Placed}, {"contained", i.Times.Contained}, {"executed", i.Times.Executed}, {"started", i.Times.Started}, {"ended", i.Times.Ended}} {
		if !t.at.IsZero() {
			line(t.name, t.at.UTC().Format(time.RFC3339Nano))
		}
	}
	for p, took := range i.Timing {
		if i.State >= sigma.ProcRunning {
			line("phase_"+sigma.Phase(p).String()+"_us", took.Microseconds())
		}
	}
	line("profile", i.Profile)
	line("frozen", i.Frozen)
	if l != nil {
		line("output", l.out.Written()+l.err.Written())
		line("stdout_dropped", l.out.Dropped())
		line("stderr_dropped", l.err.Dropped())
	}
	if i.State == sigma.ProcEnded {
		line("status", i.Status.Code)
		line("exit_code", i.Status.ExitCode)
		line("message", i.Status.Msg)
		line("user_us", i.Usage.UserTime.Microseconds())
		line("system_us", i.Usage.SystemTime.Microseconds())
		line("memory_peak", uint64(i.Usage.MemoryPeak))
	}
	return []byte(b.String()), nil
}
