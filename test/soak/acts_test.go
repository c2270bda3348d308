//go:build system

package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// any picks one of the procs that were not known to have ended; "" if there is none.
func (x *soak) any() sigma.ProcID {
	var ids []sigma.ProcID
	for id := range x.live {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return ""
	}
	slices.SortFunc(ids, cmp.Compare) // the map's order is not the seed's
	return ids[x.random.IntN(len(ids))]
}

// services lists them by name.
func (x *soak) services() map[string]sigmap.Service {
	list, err := x.c.Services(x.ctx)
	if err != nil {
		x.t.Errorf("list services: %v", err)
	}
	out := map[string]sigmap.Service{}
	for _, s := range list {
		out[s.Name] = s
	}
	return out
}

// calm reports whether all services run, and have been started again since they were killed: sigmad
// may not have heard yet of the end of one.
func (x *soak) calm() bool {
	list := x.services()
	for name, s := range list {
		if s.State == "unused" { // until somebody asks for it
			continue
		}
		if before, killed := x.killed[name]; s.State != "running" || killed && s.Restarts <= before {
			return false
		}
	}
	return len(list) > 0
}

// spawn makes procs of random kinds, and a waiter or two for each.
func (x *soak) spawn(n int) {
	x.done["spawn"] += n
	ds, created := make([]sigma.Descriptor, n), make([]*proc, n)
	for i := range ds {
		k := x.kinds[x.random.IntN(len(x.kinds))]
		ds[i] = sigma.Descriptor{Program: x.program, Args: k.args, Memory: cmp.Or(k.memory, 8*sigma.MiB)}
		created[i] = &proc{kind: k}
	}
	fault := !x.calm()
	ids, err := x.c.Spawn(x.ctx, ds...)
	if err != nil {
		if !fault {
			x.t.Errorf("spawn when all services run: %v", err)
		}
		return
	}
	for i, id := range ids {
		created[i].id, created[i].fault, created[i].launcher = id, fault, fault &&
			len(x.deaths) > 0 // sigmad may not have heard of that yet
		x.live[id] = created[i]
		for range 1 + x.random.IntN(2) {
			x.wait(id)
		}
	}
}

// wait waits for a proc's end in the background.
func (x *soak) wait(id sigma.ProcID) {
	x.waiting++
	c := x.c
	x.waiters.Go(func() {
		st, err := c.WaitExit(x.ctx, id)
		a := answer{id: id, status: st, err: err}
		select {
		case <-c.Done():
			a.gone = true
		default:
		}
		x.answers <- a
	})
}

// take takes the answers that are there.
func (x *soak) take() {
	for {
		select {
		case a := <-x.answers:
			x.judge(a)
		default:
			return
		}
	}
}

// judge checks an answer.
func (x *soak) judge(a answer) {
	x.waiting--
	x.done["answer"]++
	if a.gone || x.dying { // whatever a dying system still says, it is an answer
		return
	}
	if first, ok := x.ended[a.id]; ok {
		if a.err != nil || a.status.Code != first.Code || a.status.ExitCode != first.ExitCode {
			x.t.Errorf("one waiter for %s was told %+v, another %+v, %v", a.id, first, a.status, a.err)
		}
		return
	}
	p := x.live[a.id]
	if a.err != nil {
		x.t.Errorf("wait for %s %q: %v", a.id, p.kind.args, a.err)
		return
	}
	delete(x.live, a.id)
	x.ended[a.id] = a.status
	x.done[a.status.Code.String()]++
	st, k := a.status, p.kind
	switch {
	case st.Code == k.ends && st.ExitCode == k.code && k.ends != sigma.StatusNone:
	case st.Code == sigma.StatusEvicted && p.ended:
	case p.adopted && p.ended: // the sigmad that it is told by does not know that it was asked to go
	case st.Code == sigma.StatusLost && p.fault:
	case st.Code == sigma.StatusCrashed && p.launcher && strings.Contains(st.Msg, "launcher"):
	case st.Code == sigma.StatusError && p.fault &&
		(st.Kind.Retryable() || st.Kind == sigma.KindLost): // it could not be started
	default:
		x.t.Errorf("%s %q ended as %+v (evicted or killed: %v, a service died: %v)", a.id, k.args, st, p.ended, p.fault)
	}
}

// end evicts or kills a proc that may have ended already.
func (x *soak) end(how string, id sigma.ProcID) {
	p := x.live[id]
	if p == nil {
		return
	}
	x.done[how]++
	p.ended = true
	var err error
	if how == "kill" {
		err = x.c.Kill(x.ctx, id)
	} else {
		err = x.c.Evict(x.ctx, id, time.Duration(1+x.random.IntN(200))*time.Millisecond)
	}
	if err != nil && !p.fault {
		x.t.Errorf("%s %s %q: %v", how, id, p.kind.args, err)
	}
}

// pause waits a moment for a proc, so that some get further than others.
func (x *soak) pause() {
	x.done["pause"]++
	ctx, cancel := context.WithTimeout(x.ctx, pauseMost)
	defer cancel()
	if id := x.any(); id != "" {
		x.c.WaitExit(ctx, id)
	}
}

// crash kills a service, if it runs. While those that a dying launcher takes with it are ending
// nobody could tell which of two ends the machine has heard of.
func (x *soak) crash(name string) {
	if x.ending = x.ending && !x.calm(); x.ending || x.s.PID(name) == 0 {
		return
	}
	x.done["kill -9 "+name]++
	x.killed[name] = x.services()[name].Restarts
	for _, p := range x.live {
		p.fault = true
	}
	x.s.Kill9(x.t, name)
}

// mayCrash notes a death of the launcher or sigmad. Too many in a short time would end the system.
func (x *soak) mayCrash() bool {
	x.deaths = slices.DeleteFunc(x.deaths, func(at time.Time) bool { return time.Since(at) > 12*time.Second })
	if len(x.deaths) == 3 {
		return false
	}
	testenv.Eventually(x.t, "all services run", x.restless)
	x.deaths = append(x.deaths, time.Now())
	return true
}

// crashSigmad kills sigmad. What ran goes on; what was queued or being started is gone. The waits
// of a client go on with the next sigmad until the client is closed; those of another client begin
// anew.
func (x *soak) crashSigmad() {
	if !x.mayCrash() {
		return
	}
	x.done["kill -9 sigmad"]++
	x.take()
	x.dying = true
	old := x.s.PID("sigmad")
	x.s.Kill9(x.t, "sigmad")
	testenv.Eventually(x.t, "another sigmad answers", func() error {
		if pid := x.s.PID("sigmad"); pid == 0 || pid == old {
			return fmt.Errorf("sigmad is %d", pid)
		}
		c, err := sdk.Connect(x.ctx, x.s.Socket(), sigma.DefaultRealm)
		if err == nil {
			x.c.Close()
			x.c = c
			x.t.Cleanup(c.Close)
		}
		return err
	})
	x.answered()
	x.dying, x.ending = false, false
	clear(x.killed)
	list, err := x.c.List(x.ctx, true)
	if err != nil {
		x.t.Fatalf("list procs after the death of sigmad: %v", err)
	}
	known := map[sigma.ProcID]bool{}
	for _, p := range list {
		known[p.ID] = true
		if _, ended := x.ended[p.ID]; ended && p.State != sigma.ProcEnded {
			x.t.Errorf("%s had ended, and is %v", p.ID, p.State)
		}
	}
	for id, p := range x.live {
		p.fault = true
		if !known[id] {
			delete(x.live, id)
			x.done["gone with sigmad"]++
			continue
		}
		x.done["adopted"]++
		p.adopted = true
		x.wait(id)
	}
}

// crashLauncher kills the launcher, and with it all procs and services.
func (x *soak) crashLauncher() {
	if !x.mayCrash() {
		return
	}
	x.done["kill -9 launcher"]++
	for name, s := range x.services() {
		if name != "sigmad" {
			x.killed[name] = s.Restarts
		}
	}
	for _, p := range x.live {
		p.fault, p.launcher = true, true
	}
	x.ending = true
	x.s.Kill9(x.t, "launcher")
}

// restless is nil when all services run.
func (x *soak) restless() error {
	if !x.calm() {
		return errors.New("one does not")
	}
	return nil
}

// die kills the whole system, whose waiters must hear of it, and starts it again.
func (x *soak) die(name string) {
	x.done["kill -9 "+name]++
	x.take()
	x.dying = true
	x.s.Kill9(x.t, name)
	x.answered()
	x.c.Close() // or it would go on with the next system
	x.dying = false
	clear(x.live)
	clear(x.ended)
	clear(x.killed)
	x.ending = false
	x.s.Restart(x.t)
	x.c = x.s.Connect(x.ctx, x.t, sigma.DefaultRealm)
	list, err := x.c.List(x.ctx, false)
	if err != nil || len(list) > 0 {
		x.t.Errorf("after the restart there are %d procs, %v", len(list), err)
	}
}

// answered waits until no waiter waits.
func (x *soak) answered() {
	late := time.After(answerMost * testenv.Slow())
	for x.waiting > 0 {
		select {
		case a := <-x.answers:
			x.judge(a)
		case <-late:
			x.t.Fatalf("%d waiters were not answered within %v", x.waiting, answerMost)
		}
	}
	x.waiters.Wait()
}

// finish ends all procs, and waits for all waiters.
func (x *soak) finish() {
	testenv.Eventually(x.t, "all services run", x.restless)
	for id := range x.live {
		x.end("kill", id)
	}
	x.answered()
	if list, err := x.c.List(x.ctx, false); err != nil || len(list) > 0 {
		x.t.Errorf("all were waited for, and %d are there, %v", len(list), err)
	}
}

// usable uses everything once.
func (x *soak) usable() {
	testenv.Eventually(x.t, "the system is usable", func() error {
		for _, path := range []string{"/soak", "/s3/soak"} {
			if err := x.c.MkdirAll(x.ctx, path, 0o755); err != nil {
				return err
			}
			if _, err := x.c.Put(x.ctx, path+"/file", []byte("text"), sigma.PutOptions{}); err != nil {
				return err
			}
			if text, _, err := x.c.Get(x.ctx, path+"/file"); err != nil || string(text) != "text" {
				return fmt.Errorf("%s has %q: %w", path, text, err)
			}
			if err := x.c.RemoveAll(x.ctx, path); err != nil {
				return err
			}
		}
		ids, err := x.c.Spawn(x.ctx, sigma.Descriptor{Program: x.program, Args: []string{"exit", "3"}})
		if err != nil {
			return err
		}
		if st, err := x.c.WaitExit(x.ctx, ids[0]); err != nil || st.ExitCode != 3 {
			return fmt.Errorf("a proc ended as %+v: %w", st, err)
		}
		return nil
	})
}
