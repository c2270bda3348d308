package health

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/stores"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

const (
	// partsMax bounds how long status and doctor wait for the parts of a running system: what they
	// say is there within 2 s.
	partsMax = 1200 * time.Millisecond
	// restartRecent is how long ago a service must have been started again not to be told of.
	restartRecent = 30 * time.Second
)

// parts is what a running system tells of itself.
type parts struct {
	machine  sigma.MachineID
	version  string
	services []sigmap.Service
	member   machines.Membership
	err      error     // why sigmad did not tell these
	found    []finding // what is to be said of all parts
}

// askParts asks the parts of a system that runs, all at once, for at most partsMax.
func (a *app) askParts(ctx context.Context) (p parts) {
	ctx, cancel := context.WithTimeout(ctx, partsMax)
	defer cancel()
	var names, stores []finding
	var asking sync.WaitGroup
	asking.Go(func() { p.err = a.askSigmad(ctx, &p) })
	asking.Go(func() { names = a.nameFindings(ctx) })
	asking.Go(func() { stores = a.storeFindings(ctx) })
	asking.Wait()
	if p.err != nil {
		p.found = []finding{sigmadFinding(ctx, p.err)}
		return p
	}
	p.found = slices.Concat(serviceWords(p.services, time.Now()), memberWords(p.member, p.machine), names, stores)
	return p
}

// runs reports whether a system runs where the flags say, as far as this user may know.
func (a *app) runs() bool {
	if a.Addr != "" {
		return true
	}
	dir, err := a.DataDir()
	if err != nil {
		return false
	}
	_, up, err := datadir.Running(dir)
	return err == nil && up
}

// down are the parts of which something does not answer.
func (p *parts) down() []finding {
	out := []finding{}
	for _, f := range p.found {
		if f.State == findingDown {
			out = append(out, f)
		}
	}
	return out
}

// askSigmad asks for what sigmad itself knows.
func (a *app) askSigmad(ctx context.Context, p *parts) error {
	m, err := members.Open(ctx, a.App)
	if err != nil {
		return err
	}
	p.machine, p.version = m.Self, m.Realm.Info().Version
	if p.services, err = m.Realm.Services(ctx); err != nil {
		return err
	}
	p.member, err = m.Membership(ctx)
	return err
}

// sigmadFinding is for a sigmad that did not answer, or would not.
func sigmadFinding(ctx context.Context, err error) finding {
	f := unknown(ctx, "sigmad", err)
	if f.State == findingDown {
		f.Advice =
			"one that died is started again within 5 s; if one hangs or is stopped, kill -9 it, and another takes " +
				"over what runs. Why is in the log, DATA/sigma.log"
	}
	return f
}

// serviceWords judges the services of this machine.
func serviceWords(services []sigmap.Service, now time.Time) (out []finding) {
	const check = "service"
	for _, s := range services {
		age, times := term.Short(now.Sub(s.Since)), ""
		if s.Restarts > 0 {
			times = fmt.Sprintf(", started again %s since sigma up", cli.Count(int(s.Restarts), "time"))
		}
		switch {
		case s.State == "running" && s.Restarts > 0 && now.Sub(s.Since) < restartRecent:
			out = append(out, weak(check, fmt.Sprintf("%s runs since %s%s", s.Name, age, times),
				"why it ended is in the log, DATA/sigma.log"))
		case s.State == "running", s.State == "starting" && s.Restarts == 0:
		default:
			out = append(out, finding{check, findingDown, fmt.Sprintf("%s: %s%s", s.Name, s.State, times),
				serviceAdvice(s.State)})
		}
	}
	if len(out) == 0 {
		out = append(out, ok(check, fmt.Sprintf("%d run and answer", len(services))))
	}
	return out
}

func serviceAdvice(state string) string {
	switch state {
	case "silent":
		return "it is stopped, hangs, or has too much to do: if that lasts, kill -9 its process, and it is started " +
			"again"
	case "disk full":
		return "names are read and removed, and none are written, until there is room on the disk of DATA"
	}
	return "it is started again by itself, at most 5 s after its end; why it ended is in the log, DATA/sigma.log"
}

// nameFindings says whether the names of the realm can be read.
func (a *app) nameFindings(ctx context.Context) []finding {
	const check = "names"
	c, err := a.Client(ctx)
	if err == nil {
		_, err = c.Stat(ctx, "/sigma-doctor") // that it is not there is an answer
	}
	switch sigma.KindOf(err) {
	case sigma.KindTimeout, sigma.KindUnavailable, sigma.KindLost:
		return []finding{unknown(ctx, check, err)}
	}
	return []finding{ok(check, "they answer")}
}

// storeFindings says how the object stores are, if any is set.
func (a *app) storeFindings(ctx context.Context) []finding {
	c, err := a.ClientOf(ctx, sigma.SystemRealm) // which needs no names
	if err != nil {                              // sigmad is told of elsewhere
		return nil
	}
	return storeWords(ctx, c)
}

// storeWords judges the stores that c lists.
func storeWords(ctx context.Context, c stores.Lister) (out []finding) {
	const check = "object store"
	list, err := stores.List(ctx, c, true)
	if err != nil {
		out = append(out, unknown(ctx, check, err))
	}
	for _, s := range list {
		found := s.URL + " of the realm " + string(s.Realm)
		if s.Realm == sigma.SystemRealm {
			found = s.URL + " of all realms without one of their own"
		}
		if s.State == "ok" {
			out = append(out, ok(check, found+" answers"))
			continue
		}
		advice := s.Hint
		if advice == "" || strings.Contains(advice, "doctor") {
			advice = "is it up, and does HOST still have these addresses? sigma s3 store set looks them up again"
		}
		out = append(out, finding{check, findingDown, found + ": " + s.State, advice})
	}
	return out
}
