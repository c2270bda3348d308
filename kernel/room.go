package kernel

import (
	"context"
	"time"

	"sigmaos.dev/diskspace"
	"sigmaos.dev/sigma"
)

// named cannot open its store on a disk that is full, and would end again and again while whoever
// wants a name waits. So it is not started meanwhile, and who asks is told why.

const (
	roomPause = 500 * time.Millisecond // between looks at the disk
	roomTry   = 5 * time.Second        // before it is started all the same, on a disk that is only low
)

// awaitRoom waits until the service can be started on the disk of the data directory, or ctx ends.
// soon says that it ended soon after it was started: then a disk that is low may be the reason, and
// it is tried less often.
func (s *service) awaitRoom(ctx context.Context, soon bool) {
	if s.name != serviceNamed || s.k.etcd != nil {
		return
	}
	defer s.setHeld(nil)
	for began := time.Now(); ctx.Err() == nil; {
		space, err := diskspace.Of(s.k.cfg.Data)
		if err != nil || !diskspace.Full(space) && !(soon && diskspace.Low(space) && time.Since(began) < roomTry) {
			return
		}
		why := diskspace.Error("kernel.service", s.k.cfg.Machine, space)
		if !diskspace.Full(space) { // it is tried again soon: who can wait shall
			why.Kind = sigma.KindUnavailable
		}
		s.setHeld(why)
		select {
		case <-time.After(roomPause):
		case <-ctx.Done():
		}
	}
}

// setHeld notes why the service is not started.
func (s *service) setHeld(why *sigma.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case why == nil && s.held != nil:
		s.held, s.hold = nil, make(chan struct{})
		s.k.cfg.Log.Info("there is room on the disk again", "service", s.name)
	case why != nil && s.held == nil:
		s.state, s.since = stateDiskFull, time.Now()
		s.k.cfg.Log.Warn("service is not started", "service", s.name, "err", why, "hint", why.Hint)
		close(s.hold)
		fallthrough
	case why != nil:
		s.held = why
	}
}

// stateDiskFull is the state of a service that waits for room on the disk.
const stateDiskFull = "disk full"

// waitRuns is waitReady for who has no use for a service that cannot be started now.
func (s *service) waitRuns(ctx context.Context) error {
	s.mu.Lock()
	ready, hold := s.ready, s.hold
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	default:
	}
	select {
	case <-ready:
		return nil
	case <-hold:
		return s.whyHeld()
	case <-s.gone:
		return errNotNeeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// whyHeld is the error of a service that is not started, or was not until this moment.
func (s *service) whyHeld() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		return s.held
	}
	return &sigma.Error{Op: "kernel.address", Kind: sigma.KindUnavailable, Msg: s.name + " is being started"}
}
