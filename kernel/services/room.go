package services

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/diskspace"
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
func (s *Service) awaitRoom(ctx context.Context, soon bool) {
	if s.Name != Named || s.set.cfg.External() {
		return
	}
	defer s.setHeld(nil)
	for began := time.Now(); ctx.Err() == nil; {
		space, err := diskspace.Of(s.set.cfg.Data)
		if err != nil || !diskspace.Full(space) && !(soon && diskspace.Low(space) && time.Since(began) < roomTry) {
			return
		}
		why := diskspace.Error("kernel.service", s.set.cfg.Machine, space)
		if !diskspace.Full(space) { // it is tried again soon: who can wait shall
			why.Kind = sigma.KindUnavailable
		}
		s.setHeld(why)
		retry.Pause(ctx, roomPause)
	}
}

// setHeld notes why the service is not started.
func (s *Service) setHeld(why *sigma.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case why == nil && s.held != nil:
		s.held, s.hold = nil, make(chan struct{})
		s.set.cfg.Log.Info("there is room on the disk again", "service", s.Name)
	case why != nil && s.held == nil:
		s.state, s.since = stateDiskFull, time.Now()
		s.set.cfg.Log.Warn("service is not started", "service", s.Name, "err", why, "hint", why.Hint)
		close(s.hold)
		fallthrough
	case why != nil:
		s.held = why
	}
}

// stateDiskFull is the state of a service that waits for room on the disk.
const stateDiskFull = "disk full"

// waitRuns is waitReady for who has no use for a service that cannot be started now.
func (s *Service) waitRuns(ctx context.Context) error {
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
		return s.WhyHeld()
	case <-s.gone:
		return ErrNotNeeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WhyHeld is the error of a service that is not started, or was not until this moment.
func (s *Service) WhyHeld() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		return s.held
	}
	return &sigma.Error{Op: "kernel.address", Kind: sigma.KindUnavailable, Msg: s.Name + " is being started"}
}
