package kernel

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// procDir is /proc: a directory per proc of the realm, also of ended ones while they are remembered.
func (r *root) procDir() sigma.File {
	k := r.tree.k
	return &dir{path: "/proc",
		page: func(cookie uint64, n int) (es []sigma.DirEntry, more bool) {
			k.mu.Lock()
			defer k.mu.Unlock()
			for seq, p := range k.core.After(r.realm, cookie) {
				if len(es) == min(n, listProcs) {
					return es, true
				}
				name := string(p.ID)
				es = append(es, sigma.DirEntry{Name: name, ID: sigma.FileID{Kind: sigma.KindDir, Path: idOf(sigma.JoinPath(sigma.NameProc, name))}, Next: seq})
			}
			return es, false
		},
		open: func(_ context.Context, name string) (sigma.File, error) {
			id := sigma.ProcID(name)
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.core.Proc(r.realm, id) == nil {
				return nil, &sigma.Error{Op: "kernel.proc", Path: sigma.JoinPath(sigma.NameProc, name), Kind: sigma.KindNotFound, Hint: "sigma ps -a lists the realm's procs"}
			}
			return r.oneProcDir(id), nil
		}}
}

// oneProcDir is /proc/PID.
func (r *root) oneProcDir(id sigma.ProcID) sigma.File {
	k, path := r.tree.k, sigma.JoinPath(sigma.NameProc, string(id))
	return &dir{path: path,
		names: func(context.Context) ([]string, error) { return []string{"status", "stdout", "stderr"}, nil },
		open: func(_ context.Context, name string) (sigma.File, error) {
			file := path + "/" + name
			switch name {
			case "status":
				return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: idOf(file)}, Name: name, Perm: 0o444,
					Content: func(context.Context) ([]byte, error) { return k.statusText(r.realm, id) }}, nil
			case "stdout", "stderr":
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
			return nil, sigma.PathError("kernel.proc", sigma.KindNotFound, file)
		}}
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
