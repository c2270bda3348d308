package sysfs

import (
	"context"
	"runtime"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/lcsched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// Files of /sys that tell the state of the system, one JSON object a line (docs/reference/paths). A
// tenant is told of its own realm and no other; the provider of all. They are made when they are
// read, nothing is kept for them; what costs a question to another program is remembered for a
// second.

func (r scope) versionFile() sigma.File {
	v := state.Version{Version: r.Version, Machine: string(r.Machine), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return computed.Sys(roles.Version, func(context.Context) ([]byte, error) { return state.Line(v) })
}

// machineLines is what is read of /sys/machines. It asks machined, and no machine.
func (r scope) machineLines() *computed.Lines[struct{}] {
	return computed.Sys(sigmap.FileMachines, func(context.Context) ([]byte, error) {
		all := []state.Machine{}
		seen := []state.MachineSeen{}
		for _, m := range r.Roster.Infos() {
			all = append(all, state.OfMachine(m, r.Machine))
			seen = append(seen, all[len(all)-1].MachineSeen)
		}
		if r.Principal.System {
			return state.Lines(all)
		}
		return state.Lines(seen)
	})
}

// queuesFile is /sys/queues: what waits at the scheduler.
func (r scope) queuesFile() sigma.File {
	return computed.Sys(roles.Queues, func(context.Context) ([]byte, error) {
		all, err := memo.Recall(r.Memo, roles.Queues, r.Placing.Queues)
		if err != nil {
			return nil, err
		}
		out := []state.Queue{}
		for _, q := range all {
			if r.Principal.System || q.Realm == r.Realm {
				out = append(out, state.Queue{Realm: string(q.Realm), Waiting: int(q.Jobs), Memory: uint64(q.Memory),
					Shares: q.Shares})
			}
		}
		lc, err := memo.Recall(r.Memo, "queue lc", func(ctx context.Context) ([]lcsched.Waits, error) {
			if r.Services.Local(services.Lcsched) == nil && len(r.Cluster.Others()) == 0 {
				return nil, nil
			}
			return r.Placing.Waiting(ctx)
		})
		if err != nil {
			r.Log.Debug("no lcsched answers", "err", err)
			lc = r.unscheduled()
		}
		for _, w := range lc {
			if r.Principal.System || w.Realm == r.Realm {
				out = append(out, state.Queue{Realm: string(w.Realm), Waiting: 1, Memory: uint64(w.Memory),
					Proc: string(w.ID), Class: sigma.LatencyCritical.String(), Why: w.Why})
			}
		}
		return state.Lines(out)
	})
}

// unscheduledMax procs are told of while nobody places them.
const unscheduledMax = 256

// unscheduled are the latency-critical procs of this home that wait while no lcsched leads.
func (r scope) unscheduled() (ws []lcsched.Waits) {
	r.Procs.With(func(v procs.View) {
		for _, realm := range v.Realms() {
			for _, p := range v.After(realm, 0) {
				if p.Class == sigma.LatencyCritical && p.State == sigma.ProcQueued && !p.Guest() &&
					len(ws) < unscheduledMax {
					w := lcsched.Waits{Since: p.Times.Spawned,
						Why: "no lcsched leads: another is being elected, or the control machines have no quorum; " +
							"procs that run go on"}
					w.ID, w.Realm, w.Memory = p.ID, realm, p.Memory
					ws = append(ws, w)
				}
			}
		}
	})
	return ws
}

// utilisationFile is /sys/utilisation: what runs at this machine.
func (r scope) utilisationFile() sigma.File {
	return computed.Sys(roles.Utilisation, func(context.Context) ([]byte, error) {
		var out []byte
		of := []sigma.RealmID{r.Realm}
		if r.Principal.System {
			cpu := r.CPU
			m := state.MachineUse{Machine: string(r.Machine), Cores: float64(cpu) / 1000}
			r.Procs.With(func(v procs.View) {
				m.Running, m.Waiting = v.Running(), v.Queued()
				m.Capacity, m.Free = uint64(v.Capacity()), uint64(v.Free())
				of = v.Realms()
			})
			line, err := state.Line(m)
			if err != nil {
				return nil, err
			}
			out = line
		}
		for _, realm := range of {
			u := r.Realms.Use(realm)
			line, err := state.Line(state.RealmUse{Machine: string(r.Machine), Realm: string(realm),
				Running: u.Running, Waiting: u.Waiting, Limit: uint64(u.Memory)})
			if err != nil {
				return nil, err
			}
			out = append(out, line...)
		}
		return out, nil
	})
}
