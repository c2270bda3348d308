package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// How a machine is stopped while all of it still works: it takes no new procs, asks those that it
// runs to go, waits until they have gone or were killed at the end of their grace, and until who
// waited for them knows. Whoever stops several machines says so to all of them (BeginLeave) before
// the procs of any are asked, and stops the first when the procs of the last have gone: they may
// need all of the machines.

// PeerLeave says that the machine that calls is going to be stopped.
var PeerLeave = sigmap.Method[sigmap.None, sigmap.None]{Name: "leave"}

const (
	leaveMost = 500 * time.Millisecond // that other machines may take to hear that this one is going to be stopped
	// after which this machine takes procs again, if whoever wants to stop it has not said so again
	leaveFor  = 5 * time.Second
	leftFor   = 30 * time.Second // that another machine believes it
	leaveKill = 2 * time.Second  // that killed procs may take to end
	// that those who waited for procs may take to hear of their end and to read what they printed
	answerMost = time.Second
	leaveShown = 5 // procs that are named to whoever waits for them
)

// leaver is a machine that said it is going to be stopped.
type leaver struct {
	life sigma.Incarnation
	at   time.Time
}

// BeginLeave is for whoever is about to stop this machine. It says what runs here.
func (x *Cluster) BeginLeave(evict bool) (l sigmap.Leaving) {
	x.setLeaving()
	if evict {
		x.cfg.Procs.Step(schedd.Drained{Why: x.leaveWords()})
	} else {
		x.tellLeave()
	}
	x.cfg.Procs.With(func(v procs.View) { l.Running, l.Some = uint32(v.Running()), v.Here(leaveShown) })
	return l
}

func (x *Cluster) leaveWords() string {
	return fmt.Sprintf("machine %s is being stopped", x.cfg.Self.Machine)
}

// setLeaving has this machine take no procs for leaveFor.
func (x *Cluster) setLeaving() {
	m := x.own
	m.mu.Lock()
	m.leaving = time.Now().Add(leaveFor)
	m.mu.Unlock()
	admit := func() {
		m.following.Lock()
		defer m.following.Unlock()
		if x.ctx.Err() == nil {
			x.cfg.Admit(x.Cordoned())
		}
	}
	admit()
	time.AfterFunc(leaveFor+time.Millisecond, admit)
}

// leaves says whether this machine is going to be stopped.
func (m *membership) leaves() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.leaving)
}

// hasLeft says whether a machine said that it is going to be stopped, in the life that it has in
// the roster.
func (m *membership) hasLeft(x identity.Member) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, said := m.left[x.Machine]
	return said && l.life == x.Incarnation && time.Since(l.at) < leftFor
}

// AllLeave says whether the whole system is going to be stopped. Then initd starts nothing: no
// machine would take it.
func (x *Cluster) AllLeave() bool {
	return x.own.leaves() && !slices.ContainsFunc(x.Members(), func(m identity.Member) bool {
		return m.Machine != x.cfg.Self.Machine && !m.Lost && !x.own.hasLeft(m)
	})
}

// Leave does what is done before this machine stops.
func (x *Cluster) Leave() {
	x.setLeaving()
	x.tellLeave()
	if !x.own.now.Load() {
		x.empty()
	}
}

// tellLeave tells other machines, so that the end of this life is known to be meant. Who does not
// hear it in time takes the machine for lost.
func (x *Cluster) tellLeave() {
	if !x.Registered() {
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, leaveMost)
	defer cancel()
	var all sync.WaitGroup
	for _, m := range x.Others() {
		all.Go(func() { x.cfg.TellLeave(ctx, m) })
	}
	all.Wait()
}

// PeerLeaves answers PeerLeave: it notes that another machine is going to be stopped.
func (x *Cluster) PeerLeaves(_ context.Context, from identity.Subject, _ sigmap.None) (none sigmap.None, err error) {
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	x.own.left[from.Machine] = leaver{from.Incarnation, time.Now()}
	return none, nil
}

// empty gives procs their grace. It returns when none is left and who waited for them knows, or
// they had time for that.
func (x *Cluster) empty() {
	most := schedd.GraceDefault + leaveKill
	begun, asked := time.Now(), time.Time{}
	for time.Since(begun) < most && !x.own.now.Load() && x.ctx.Err() == nil {
		if time.Since(asked) >= drainAgain { // again for what was on its way here
			asked = time.Now()
			x.setLeaving()
			x.cfg.Procs.Step(schedd.Drained{Why: x.leaveWords()})
		}
		if x.cfg.Procs.Running() == 0 {
			break
		}
		retry.Pause(x.ctx, endsAgain)
	}
	x.cfg.Procs.Step(schedd.Drained{Queued: true, Why: x.leaveWords()})
	for begun = time.Now(); time.Since(begun) < answerMost && !x.own.now.Load() && x.cfg.Owes(); {
		retry.Pause(x.ctx, endsAgain)
	}
}

// lostOrLeft names the event that the life of a member is over.
func (m *membership) lostOrLeft(x identity.Member) string {
	if m.hasLeft(x) {
		return report.EventMachineLeft
	}
	return report.EventMachineLost
}
