// Package procfs is /proc: a directory per proc of a realm, with files of what it asked for,
// became, uses and prints, wherever it is. Nothing is kept for it but answers of the last second.
// It has no lock. Users: kernel/rootfs.
package procfs

import (
	"cmp"
	"context"
	"slices"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/farfile"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// FS is where procs are.
type FS struct {
	Machine sigma.MachineID
	Procs   *procs.Table
	Cluster *cluster.Cluster
	Runner  *runner.Runner
	Remote  *remote.Remote
	Far     *farfile.Far
	Memo    *memo.Memo
}

// root is /proc of a session's realm.
type root struct {
	*FS
	sessions.Scope
}

// Dir is /proc as a session has it: a directory per proc of the realm, also of ended ones while
// they are remembered, wherever they are at home. Another machine is shown those of this one.
func (x *FS) Dir(s sessions.Scope) sigma.File {
	r := root{x, s}
	return &computed.Dir{Path: "/proc", Page: r.procPage,
		Child: func(ctx context.Context, name string) (sigma.File, error) {
			id := sigma.ProcID(name)
			if r.MayProc(ctx, id, sigma.RightRead) != nil {
				return nil, procs.Unknown(id)
			}
			if _, ok := r.Remote.PlaceHere(r.Realm, id); ok {
				return r.oneProcDir(id), nil
			}
			if !r.Scope.Far {
				if _, ok := r.Remote.Find(ctx, r.Realm, id); ok {
					return r.oneProcDir(id), nil
				}
			}
			return nil, &sigma.Error{Op: "kernel.proc", Path: sigma.JoinPath(sigma.NameProc, name),
				Kind: sigma.KindNotFound, Hint: "sigma ps -a lists the realm's procs"}
		}}
}

// seqBits are those of a cookie of /proc that say which proc of a machine; the ones above, which
// machine: by its incarnation, so that machines that come are met last.
const seqBits = 40

// procPage gives the procs of one machine after the other.
func (r root) procPage(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, bool, error) {
	self := r.Cluster.Self()
	lives := []identity.Subject{self}
	if !r.Scope.Far && r.Cluster.Registered() {
		for _, m := range r.Cluster.Identity().Roster().Members() {
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
		if of := r.OwnKin(); of != "" {
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

// procsHere gives those that are at home here. The numbers are good for a far machine's cookies and
// ours.
func (r root) procsHere(after uint64, n int) (es []sigma.DirEntry, more bool) {
	r.Procs.With(func(v procs.View) {
		for seq, p := range v.After(r.Realm, after) {
			if more = len(es) == min(n, remote.ListProcs); more {
				break
			}
			es = append(es, sigma.DirEntry{Name: string(p.ID), ID: sigma.FileID{Kind: sigma.KindDir,
				Path: viewfs.PathID(sigma.JoinPath(sigma.NameProc, string(p.ID)))}, Next: seq})
		}
	})
	return es, more
}

// procsAt gives those that are at home at another machine. One that does not answer is left out, as
// it is of sigma ps.
func (r root) procsAt(ctx context.Context, m sigma.MachineID, after uint64, n int) ([]sigma.DirEntry, bool) {
	known, _ := r.Cluster.Member(m)
	at, err := r.FS.Far.At(ctx, r.Principal, r.Realm, m, sigma.NameProc)
	if at == nil || err != nil {
		return nil, false
	}
	d, _, err := at.Walk(ctx, nil)
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
		es[i].ID = sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID(sigma.JoinPath(sigma.NameProc, es[i].Name))}
	}
	return es, more
}

// kinAt gives those of one machine's procs that are of's kin, for a listing of /proc.
func (r root) kinAt(ctx context.Context, m sigma.MachineID, after uint64, of sigma.ProcID) (es []sigma.DirEntry,
	more bool) {
	infos, seqs, more, _, err := r.Remote.ListOf(ctx, m, r.Realm, true, after, of)
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

// Files of /proc/PID. What the proc asked for and became is known at its home; what it uses, prints
// and spawned, where it runs.
const (
	procDescriptor = "descriptor"
	procStatus     = "status"
	procUsage      = "usage"
	procChildren   = "children"
	procStdout     = "stdout"
	procStderr     = "stderr"
	procLog        = "log"
	procTimes      = "times"
)

// Files are all of them.
func Files() []string {
	return []string{procChildren, procDescriptor, procLog, procStatus, procStderr, procStdout, procTimes, procUsage}
}

// oneProcDir is /proc/PID.
func (r root) oneProcDir(id sigma.ProcID) sigma.File {
	path := sigma.JoinPath(sigma.NameProc, string(id))
	return &computed.Dir{Path: path,
		Names: func(context.Context) ([]string, error) { return Files(), nil },
		Child: func(ctx context.Context, name string) (sigma.File, error) {
			if !slices.Contains(Files(), name) {
				return nil, sigma.PathError("kernel.proc", sigma.KindNotFound, path+"/"+name)
			}
			if r.Scope.Far {
				return r.procFile(id, name)
			}
			at, ok := r.Remote.Find(ctx, r.Realm, id)
			if !ok {
				return nil, procs.Unknown(id)
			}
			m := at.Home
			switch {
			case name == procDescriptor, name == procStatus, name == procUsage && at.Runs == "":
			case at.Runs == "" && len(r.Cluster.Others()) > 0: // it may be placed anywhere
				return emptyFile(path, name), nil
			default:
				m = at.Runs
			}
			if m == "" || m == r.Machine {
				return r.procFile(id, name)
			}
			far, err := r.FS.Far.At(ctx, r.Principal, r.Realm, m, sigma.NameProc, string(id), name)
			if err != nil {
				return nil, err
			}
			if far == nil {
				return nil, procs.Unknown(id)
			}
			f, _, err := far.Walk(ctx, nil)
			return f, err
		}}
}

func emptyFile(dir, name string) sigma.File {
	return &treeserver.Blob{ID: sigma.FileID{Kind: sigma.KindFile, Path: viewfs.PathID(dir + "/" + name)}, Name: name,
		Perm: 0o444, Content: func(context.Context) ([]byte, error) {
			return nil, nil
		}}
}

// procFile is a file of /proc/PID that is here.
func (r root) procFile(id sigma.ProcID, name string) (sigma.File, error) {
	file := sigma.JoinPath(sigma.NameProc, string(id), name)
	text := func(of func(context.Context) (any, error)) (sigma.File, error) {
		return computed.File(file, name, 0o444, func(ctx context.Context) ([]byte, error) {
			v, err := of(ctx)
			if err != nil {
				return nil, err
			}
			return report.Line(v)
		}), nil
	}
	switch name {
	case procDescriptor:
		return text(func(context.Context) (any, error) {
			p, err := r.procState(id)
			return p.Descriptor, err
		})
	case procStatus:
		return text(func(context.Context) (any, error) {
			p, err := r.procState(id)
			return report.ProcStatus{ID: p.ID, Standing: p.Standing}, err
		})
	case procUsage:
		return text(func(ctx context.Context) (any, error) {
			u, err := r.procUsage(ctx, id)
			v := report.ProcUsage{Usage: report.OfUsage(u)}
			r.Procs.With(func(all procs.View) {
				if l := all.Logs(id); l != nil {
					v.StdoutDropped, v.StderrDropped = uint64(l.Out.Dropped()), uint64(l.Err.Dropped())
				}
			})
			return v, err
		})
	case procChildren:
		return computed.LinesFile(file, name, 0o444, func(_ context.Context, after uint64) ([]byte, uint64, bool,
			error) {
			text, last, more := r.childrenOf(id, after)
			return text, last, more, nil
		}), nil
	}
	l, err := r.Procs.LogsOf(r.Realm, id)
	if err != nil {
		return nil, err
	}
	switch name {
	case procStdout:
		return l.Out.File(name, viewfs.PathID(file)), nil
	case procLog:
		return l.Both.File(name, viewfs.PathID(file)), nil
	case procTimes:
		return computed.File(file, name, 0o444, func(context.Context) ([]byte, error) { return printTimes(l) }), nil
	}
	return l.Err.File(name, viewfs.PathID(file)), nil
}

// printTimes gives the lines of /proc/PID/times.
func printTimes(l *procs.Logs) ([]byte, error) {
	var all []report.Printed
	for _, stream := range []struct {
		name string
		log  *proclog.Log
	}{{procStdout, l.Out}, {procStderr, l.Err}} {
		for _, s := range stream.log.Stamps() {
			all = append(all, report.Printed{Stream: stream.name, Offset: s.At, Time: s.Time})
		}
	}
	return report.Lines(all)
}

// procState is what is known of a proc that is here.
func (r root) procState(id sigma.ProcID) (report.Proc, error) {
	p, ok := r.Procs.Proc(r.Realm, id)
	if !ok {
		return report.Proc{}, procs.Unknown(id)
	}
	of := report.OfProc(p.ProcInfo)
	of.Near = string(p.Near)
	return of, nil
}

// procUsage is what a proc that is here uses, or used. Tenants are told what it was within the last
// second: a question costs the launcher time that starts need.
func (r root) procUsage(ctx context.Context, id sigma.ProcID) (sigma.Usage, error) {
	if _, err := r.procState(id); err != nil {
		return sigma.Usage{}, err
	}
	if r.Principal.System && !r.Scope.Far {
		return r.Runner.Usage(ctx, r.Realm, id)
	}
	if p, _ := r.Procs.Proc(r.Realm, id); p.State != sigma.ProcRunning {
		// it does not change any more, and nobody need be asked
		return r.Runner.Usage(ctx, r.Realm, id)
	}
	return memo.Recall(r.Memo, "usage "+string(r.Realm)+" "+string(id), func(ctx context.Context) (sigma.Usage, error) {
		return r.Runner.Usage(ctx, r.Realm, id)
	})
}

// ChildrenScan procs are looked at while others wait.
const ChildrenScan = 4096

// childrenOf lists the procs that one spawned and that are at home here, where it runs, oldest
// first, as far as the session sees them.
func (r root) childrenOf(id sigma.ProcID, after uint64) (text []byte, last uint64, more bool) {
	of := r.OwnKin()
	n := 0
	r.Procs.With(func(v procs.View) {
		for seq, p := range v.After(r.Realm, after) {
			if n++; n > ChildrenScan {
				more = true
				break
			}
			if last = seq; p.Parent == id && (of == "" || p.IsKin(of)) {
				text = append(append(text, p.ID...), '\n')
			}
		}
	})
	return text, last, more
}
