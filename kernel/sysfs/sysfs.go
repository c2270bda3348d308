// Package sysfs is /sys: the system calls of programs (wire/sigmap/calls.go), and files that tell
// the state of the system. What each does is told by the package that it asks; here stands who may
// ask what. It has no lock. Users: kernel/rootfs.
package sysfs

import (
	"context"
	"log/slog"
	"slices"

	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/endpoints"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/history"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/metrics"
	"sigmaos.dev/kernel/outside"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/roster"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// FS is what /sys asks.
type FS struct {
	Machine       sigma.MachineID
	CPU           sigma.MilliCPU // what the machine offers
	Version       string         // of sigmad
	Address       string         // that other machines are told
	Log           *slog.Logger
	Memo          *memo.Memo
	Procs         *procs.Table
	Runner        *runner.Runner
	Remote        *remote.Remote
	Cluster       *cluster.Cluster
	Reach         *reach.Reach
	Roster        *roster.Roster
	Services      *services.Set
	Placing       *placement.Placement
	Realms        *realms.Realms
	Registrations *registrations.Registrations
	Guests        *guests.Guests
	Accounts      *accounts.Accounts
	History       *history.History
	Outside       *outside.Outside
	Endpoints     *endpoints.Endpoints
	Metrics       *metrics.Metrics
	Down          func(now bool) // ends sigmad: when the procs that run here have had their grace, or now
}

// scope is /sys of a session's realm.
type scope struct {
	*FS
	sessions.Scope
}

// Dir is /sys as a session has it: the system calls (wire/sigmap/calls.go) and the state of the
// system (files.go).
func (x *FS) Dir(s sessions.Scope) sigma.File {
	r := scope{x, s}
	return &computed.Dir{Path: "/sys",
		Names: func(context.Context) ([]string, error) { return r.names(), nil },
		Child: func(_ context.Context, name string) (sigma.File, error) {
			if slices.Contains(r.names(), name) {
				if f := r.file(name); f != nil {
					if g := r.Granted; g != nil {
						f = roles.Limit(f, name, g.Role)
					}
					return f, nil
				}
			}
			return nil, sigma.PathError("kernel.sys", sigma.KindNotFound, sigma.JoinPath(sigma.NameSys, name))
		}}
}

// names are the files of /sys that the session sees: of a proc with a view, what it needs of
// itself, and no more.
func (r scope) names() []string {
	names := append(make([]string, 0, 16), sigmap.FileProcs, sigmap.FileSelf, sigmap.FileEndpoints, roles.Version)
	if r.View == nil || r.Granted != nil {
		names = append(names, sigmap.FileInit, sigmap.FileEvents, sigmap.FileDecisions)
		names = append(names, sigmap.FileMachine, sigmap.FileRealms, sigmap.FileMachines, roles.Roster, roles.Queues,
			roles.Utilisation, roles.Load, roles.Usage, roles.UsageProcs, roles.Limits, roles.Connections,
			roles.Traffic, roles.Distances)
	}
	if r.Principal.System || r.Realm == sigma.SystemRealm && r.IsService(services.Machined) {
		names = append(names, sigmap.FileNames)
	}
	if r.Principal.System {
		names = append(names, roles.Metrics)
	}
	if r.mayOwn() {
		names = append(names, sigmap.FileCredentials)
	}
	if g := r.Granted; g != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return !roles.MayUse(g.Role, n) })
	}
	return names
}

func (r scope) file(name string) sigma.File {
	switch name {
	case sigmap.FileProcs:
		return computed.Calls(name, r, procsMethods)
	case sigmap.FileSelf:
		return computed.Calls(name, r, selfMethods)
	case sigmap.FileEndpoints:
		return r.Endpoints.File(r.Scope)
	case sigmap.FileMachine:
		return computed.Calls(name, r, machineMethods)
	case sigmap.FileMachines:
		return r.machinesFile()
	case sigmap.FileRealms:
		return r.Realms.File(r.Session, r.Realm, r.Principal.System)
	case sigmap.FileCredentials:
		return r.credentialsFile()
	case sigmap.FileNames:
		return computed.Calls(name, r, namesMethods) // of the leading named
	case sigmap.FileInit:
		return r.initFile()
	case sigmap.FileEvents:
		return r.eventsFile()
	case sigmap.FileDecisions:
		return r.decisionsFile()
	case roles.Roster:
		return blob(name, 0o444, r.Roster.Text)
	case roles.Version:
		return r.versionFile()
	case roles.Queues:
		return r.queuesFile()
	case roles.Connections:
		return r.Endpoints.ConnectionsFile(r.Scope)
	case roles.Traffic:
		return r.Endpoints.TrafficFile(r.Scope)
	case roles.Distances:
		return r.Endpoints.DistancesFile()
	case roles.Utilisation:
		return r.utilisationFile()
	case roles.Load:
		return r.Accounts.LoadFile(r.Principal.System)
	case roles.Usage, roles.UsageProcs:
		return r.Accounts.UsageFile(name, r.Realm, r.Principal.System)
	case roles.Limits:
		return r.Realms.LimitsFile(r.Realm, r.Principal.System)
	case roles.Metrics:
		return blob(name, 0o400, r.Metrics.Text)
	}
	return nil
}

func blob(name string, perm uint32, content func(context.Context) ([]byte, error)) sigma.File {
	return &treeserver.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: viewfs.PathID("/sys/" + name)}, Name: name,
		Perm: perm, Content: content}
}
