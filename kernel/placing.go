package kernel

import (
	"context"

	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// placingSystem is what placement knows of this machine and others.
type placingSystem struct{ k *Kernel }

var _ placement.System = placingSystem{}

// Bescheds are the control machines that live.
func (p placingSystem) Bescheds() (now map[sigma.MachineID]bool, changed <-chan struct{}) {
	k := p.k
	changed = k.cluster.Enrolled()
	if k.cluster.Registered() {
		changed = k.cluster.Identity().Roster().Changed() // before the look
	}
	now = map[sigma.MachineID]bool{}
	for _, m := range k.reach.Candidates(services.Besched) {
		now[m] = true
	}
	return now, changed
}

// labels are those that the roster has of this machine, or what it was given itself.
func (k *Kernel) labels() map[string]string {
	for _, m := range k.rosterInfos() {
		if m.ID == k.cfg.Machine && len(m.Labels) > 0 {
			return m.Labels
		}
	}
	return k.cfg.Labels
}

// DialAt implements System.
func (p placingSystem) DialAt(ctx context.Context, m sigma.MachineID, service string) (*session.Client, error) {
	return p.k.reach.DialAt(ctx, m, service)
}

// Reach implements System.
func (p placingSystem) Reach(ctx context.Context, service string, use func(context.Context,
	*session.Client) error) (*session.Client, error) {
	return p.k.reach.Find(ctx, service, use)
}

// Life implements System.
func (p placingSystem) Life() sigma.Life { return p.k.cluster.Life() }

// AwaitLife implements System.
func (p placingSystem) AwaitLife(ctx context.Context) bool { return p.k.cluster.AwaitLife(ctx) }

// LifeMayChange implements System.
func (p placingSystem) LifeMayChange() <-chan struct{} { return p.k.cluster.Moves() }

// Others implements System.
func (p placingSystem) Others() []sigma.MachineID { return p.k.cluster.Others() }

// Closed implements System.
func (p placingSystem) Closed() bool { return p.k.cluster.Cordoned() }

// Labels implements System.
func (p placingSystem) Labels() map[string]string { return p.k.labels() }

// newPlacement makes the machine's part in placing procs.
func (k *Kernel) newPlacement() *placement.Placement {
	return placement.New(placement.Config{Machine: k.cfg.Machine, Memory: k.cfg.Memory, CPU: k.cfg.CPU, Log: k.cfg.Log,
		Procs: k.procs, System: placingSystem{k}, Known: k.life.known, Realms: k.realms.ListAt,
		Usage: func(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error) {
			return k.runner.Usage(ctx, realm, id)
		},
		Limits: k.shares.Known, Unscheduled: func(p *schedd.Proc) { k.history.NoteUnscheduled(p) },
		Refused: func(id sigma.ProcID, why string) { k.history.TellRefused(id, why) }})
}
