//go:build system

package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// daemonActs kill each daemon: those that every machine has at machines that have nothing else, the
// others where they are.
var daemonActs = []act{crash("sigmad", false), crash("launcher", false), crash("sigmad", true), crash("launcher", true),
	crash("named", true), crash("besched", true), crash("lcsched", true), crash("s3d", true), crash("machined", true)}

// Goal: each daemon of a system of five machines is killed in turn, time and again, under load:
// each waiter is answered, no proc starts twice, no acknowledged name is lost and nothing is left
// over (001 §3.4). Who waits for procs of a launcher is answered within a second; how long it takes
// until procs run by way of the machine again is printed.
func TestEachDaemonKilledUnderLoad(t *testing.T) { chaosOf(t, daemonActs) }

// launcherMost is how long who waits for a proc of a killed launcher may wait.
const launcherMost = time.Second

// crash kills one daemon with kill -9, and waits until what it is for works.
func crash(daemon string, control bool) act {
	name := daemon
	if control {
		name += " of a control machine"
	}
	return act{name: name, control: control, do: func(x *chaos, v *testenv.Machine) error {
		var ws []*waiter
		if daemon == "launcher" && v != x.watcher {
			var err error
			if ws, err = x.load.waitersFor(x.ctx, x.watcher, v); err != nil {
				return err
			}
		}
		x.load.disturb(v)
		defer x.load.calm(v)
		at := time.Now()
		if err := v.KillDaemon(daemon); err != nil {
			return err
		}
		if err := x.await(daemon+" is started again", func() error { return x.runs(v) }); err != nil {
			return err
		}
		if err := x.await("names are written", func() error { return x.writes(v) }); err != nil {
			return err
		}
		x.t.Logf("%s of %s killed: procs and names after %v", daemon, v.Name, time.Since(at).Round(time.Millisecond))
		for _, w := range ws {
			select {
			case <-w.done:
				d := w.when.Sub(at)
				x.took = append(x.took, d)
				if stalled := x.stalls.Between(at, w.when); d-stalled > launcherMost*testenv.Slow() {
					return fmt.Errorf("the waiter at %s for %s was answered after %v, of which the host stood still %v",
						w.at.Name, w.id, d, stalled)
				}
			case <-time.After(answersMost * testenv.Slow()):
				return fmt.Errorf("the waiter at %s for %s is not answered", w.at.Name, w.id)
			}
		}
		return x.await("all machines are members", func() error {
			return x.learn()
		}) // one whose sigmad takes long to come back may have been taken for lost
	}}
}

// writes makes a name by way of a machine.
func (x *chaos) writes(v *testenv.Machine) error {
	client, err := v.Client(x.ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(x.ctx, callMax)
	defer cancel()
	_, err = client.Put(ctx, "/written-again", nil, sigma.PutOptions{})
	return err
}
