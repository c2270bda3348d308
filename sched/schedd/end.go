package schedd

import (
	"fmt"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// statusOf reads how the main process ended. What the proc said by Exited stands, unless the system
// ended it before it could.
func statusOf(p *Proc, x launch.Exited) sigma.Status {
	code := x.Wait.ExitStatus()
	if x.Wait.Signaled() {
		code = 128 + int(x.Wait.Signal())
	}
	switch {
	case p.doomed:
		return lost("this machine was taken for lost, and its procs were ended")
	case p.exited != nil:
		s := *p.exited
		if s.ExitCode = max(code, 1); s.Code == sigma.StatusOK {
			s.ExitCode = 0
		}
		return s
	case x.OOM && code != 0:
		return sigma.Status{Code: sigma.StatusOOM, ExitCode: 137, Msg: fmt.Sprintf("exceeded its memory limit of %v",
			p.Memory)}
	case p.evicting || x.Killed: // the latter maybe by a sigmad before this one
		return evicted(p, sigma.Status{ExitCode: code, Msg: "evicted"})
	case x.Wait.Signaled():
		return sigma.Status{Code: sigma.StatusCrashed, ExitCode: code,
			Msg: "died of signal " + x.Wait.Signal().String()}
	case code != 0:
		return sigma.Status{Code: sigma.StatusError, ExitCode: code, Msg: fmt.Sprintf("exit code %d", code)}
	}
	return sigma.Status{Code: sigma.StatusOK}
}

func (c *Core) evict(now time.Time, p *Proc, grace time.Duration) []Effect {
	switch {
	case p.State == sigma.ProcQueued, p.State == sigma.ProcStarting && !p.asked:
		return c.kill(now, p)
	case p.State == sigma.ProcStarting:
		// its program may execute already, and have said so, before the launcher's word comes
		p.grace = &grace
		return nil
	}
	if grace <= 0 {
		grace = GraceDefault
	}
	p.evicting = true
	var out []Effect
	if !p.noticed { // once, whoever asks again
		p.noticed = true
		n := Notice{Proc: p}
		if p.evictable == 0 {
			n.Signal = syscall.SIGTERM
		}
		out = append(out, n)
	}
	return append(out, p.until(now.Add(min(grace, GraceMax)))...)
}

// until has the proc killed at a time, if it is not to be killed before that anyway.
func (p *Proc) until(at time.Time) []Effect {
	if !p.deadline.IsZero() && !at.Before(p.deadline) {
		return nil
	}
	p.deadline = at
	return []Effect{Timer{p.ID, at}}
}

// unstarted is the status of a proc that was ended before there was a process of it.
func unstarted(p *Proc) sigma.Status {
	return evicted(p, sigma.Status{ExitCode: 137, Msg: "evicted before it was started"})
}

// evicted completes the status of a proc that was asked to go. KindUnavailable: its machine was the
// reason, not the proc.
func evicted(p *Proc, s sigma.Status) sigma.Status {
	s.Code = sigma.StatusEvicted
	if p.why != "" {
		s.Kind, s.Msg = sigma.KindUnavailable, p.why
	}
	return s
}

func (c *Core) kill(now time.Time, p *Proc) []Effect {
	p.evicting = p.evicting || p.exited == nil
	switch p.State {
	case sigma.ProcQueued:
		if p.Class == sigma.LatencyCritical && c.reserved.sent[p.ID] == nil { // no scheduler knows of it
			return c.end(now, p, unstarted(p))
		}
		return append([]Effect{Dequeue{p.ID, p.Class, p.Shard}}, c.end(now, p, unstarted(p))...)
	case sigma.ProcStarting:
		if !p.asked && !p.killing { // its program may be long in coming
			p.killing = true
			return []Effect{Abandon{p.ID}}
		}
	case sigma.ProcRunning:
		if !p.killing { // once, however often it is asked for
			p.killing = true
			return []Effect{Kill{p}}
		}
	}
	p.killing = true
	return nil
}
