package services

import (
	"context"
	"time"

	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/wire/sigmap"
)

const (
	// silentAfter is how long a service or the launcher may take to answer before its state is
	// "silent". It leaves sigma status and sigma doctor enough of their 2 s.
	silentAfter = 700 * time.Millisecond
	// statusAtOnce services are asked at a time: those of the boot set and the dbds of most
	// machines at once.
	statusAtOnce = 64
)

// Status tells how the services, sigmad and the launcher are. Those that should be running are
// asked, since a process that is stopped, or hangs, does not end.
func (x *Set) Status(ctx context.Context) []sigmap.Service {
	ctx, cancel := context.WithTimeout(ctx, silentAfter)
	defer cancel()
	list := x.List()
	out := make([]sigmap.Service, len(list)+2)
	out[len(list)] = sigmap.Service{Name: Sigmad, State: "running", Since: x.cfg.Start,
		Restarts: x.launches.restarts(Sigmad)}
	asks := []func(){func() { out[len(list)+1] = x.cfg.Launcher.Status(ctx) }}
	for i, s := range list {
		asks = append(asks, func() { out[i] = s.status(ctx) })
	}
	EachOf(statusAtOnce, asks, func(ask func()) { ask() })
	return out
}

// status tells how the service is, and asks it if it should be running.
func (s *Service) status(ctx context.Context) sigmap.Service {
	now := s.noted()
	e, runs := s.Listens(false)
	if !runs {
		return now
	}
	c, err := s.Connect(ctx, e)
	switch {
	case err == nil:
		c.Close()
		if s.low() {
			now.State = stateDiskFull
		}
		return now
	case ctx.Err() != nil:
		now.State = launchers.StateSilent
		return now
	}
	if later := s.noted(); later.Proc != now.Proc || later.State != now.State { // it ended meanwhile
		return later
	}
	now.State = launchers.StateSilent
	return now
}

// noted is the service's state as far as it is known without asking it.
func (s *Service) noted() sigmap.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sigmap.Service{Name: s.Name, Proc: s.id, State: s.state, Since: s.since,
		Restarts: s.set.launches.restarts(s.Name)}
}

// low reports whether the service is a named that refuses names because its disk is low.
func (s *Service) low() bool {
	if s.Name != Named || s.set.cfg.External() {
		return false
	}
	space, err := diskspace.Of(s.set.cfg.Data)
	return err == nil && diskspace.Low(space)
}
