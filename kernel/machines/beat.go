package machines

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// A beat is a number, sent over a link that is for nothing else; the other side sends it back. Who
// beats is known from the link.
const (
	beatSize = 8
	beatLink = 10 * time.Second // without a beat, after which an observer gives the link up
)

// BeaterConfig is what a Beater is made of.
type BeaterConfig struct {
	Timing Timing // zero = DefaultTiming
	// Controls lists the control machines; it is asked at each beat.
	Controls func() []sigma.MachineID
	// Dial makes a link for beats.
	Dial func(ctx context.Context, m sigma.MachineID) (net.Conn, error)
	// Over is called once, if a control machine says that this machine's life was ended
	// (KindStale): by loss, or because the machine was removed. Its procs must be killed, and it
	// must register again.
	Over func(err error)
	// Silent is called, if set, with true once a control machine has not answered for Timing.Lost,
	// and with false when it answers again. Connections with it may hang for long: its sigmad may
	// stand still while its host takes what is sent.
	Silent func(m sigma.MachineID, silent bool)
}

// Beater sends this machine's beats to all control machines, each by a goroutine of its own, so
// that one that hangs does not keep beats from the others.
type Beater struct {
	cfg  BeaterConfig
	over sync.Once
}

// NewBeater makes one. Nothing runs yet.
func NewBeater(cfg BeaterConfig) *Beater {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	return &Beater{cfg: cfg}
}

// Run beats until ctx ends.
func (b *Beater) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	running := map[sigma.MachineID]context.CancelFunc{}
	tick := time.NewTicker(b.cfg.Timing.Interval)
	defer tick.Stop()
	for {
		wanted := b.cfg.Controls()
		for m, stop := range running {
			if !slices.Contains(wanted, m) {
				stop()
				delete(running, m)
			}
		}
		for _, m := range wanted {
			if running[m] == nil {
				own, stop := context.WithCancel(ctx)
				running[m] = stop
				all.Go(func() { b.keep(own, m) })
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range running {
				stop()
			}
			return
		case <-tick.C:
		}
	}
}

// keep beats to one control machine. When no answer comes in time a new link is tried, and soon
// another, beside the old one: after a gap TCP waits ever longer before it tries again, and a
// network that is back must be heard at once.
func (b *Beater) keep(ctx context.Context, m sigma.MachineID) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	created := make(chan *pulse)
	var now *pulse
	defer func() {
		if now != nil {
			now.conn.Close()
		}
	}()
	dials, patient := 0, false
	ear := &answers{heard: time.Now(), looked: time.Now()}
	defer func() {
		if ear.silent && b.cfg.Silent != nil { // nobody looks any more
			b.cfg.Silent(m, false)
		}
	}()
	tick := time.NewTicker(b.cfg.Timing.Interval)
	defer tick.Stop()
	dial := func() {
		if dials == dialsMax || now != nil && !now.silent() {
			return
		}
		dials++
		limit, long := (dialsMax-1)*b.cfg.Timing.Interval, !patient
		if patient = true; long {
			limit = 2 * b.cfg.Timing.Lost
		}
		all.Go(func() {
			p := b.try(ctx, m, limit)
			p.long = long
			select {
			case created <- p:
			case <-ctx.Done():
				if p.conn != nil {
					p.conn.Close()
				}
			}
		})
	}
	for dial(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			dial()
			if ear.changed(time.Now(), now, b.cfg.Timing) && b.cfg.Silent != nil {
				b.cfg.Silent(m, ear.silent)
			}
		case p := <-created:
			dials--
			patient = patient && !p.long
			if p.conn == nil {
				continue // the next is tried with the next tick
			}
			if now != nil {
				now.conn.Close()
			}
			now = p
			all.Go(p.read)
			all.Go(func() { p.write(ctx, b.cfg.Timing.Interval) })
		}
	}
}

// answers is how long ago one machine answered. Time in which this machine stood still itself does
// not count.
type answers struct {
	heard, looked time.Time
	silent        bool
}

// changed looks whether the machine has become silent, or answers again.
func (a *answers) changed(now time.Time, p *pulse, t Timing) bool {
	if !a.silent && now.Sub(a.looked) > t.Suspect {
		a.heard = now
	}
	a.looked = now
	before := a.heard
	if p != nil {
		p.mu.Lock()
		if p.last.After(a.heard) {
			a.heard = p.last
		}
		p.mu.Unlock()
	}
	was := a.silent
	a.silent = was && !a.heard.After(before) || now.Sub(a.heard) >= t.Lost
	return a.silent != was
}

// dialsMax bounds the links to one machine that are tried at once. One of them is patient, for a
// network whose ways are long; the others are given up so soon that with each tick a new one can
// begin, for a network that comes back.
const dialsMax = 5

// try makes one link; without a conn it failed.
func (b *Beater) try(ctx context.Context, m sigma.MachineID, limit time.Duration) *pulse {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := b.cfg.Dial(ctx, m)
	if err == nil {
		return &pulse{conn: conn, patience: 2*b.cfg.Timing.Interval + time.Since(began), last: time.Now()}
	}
	if sigma.KindOf(err) == sigma.KindStale &&
		b.cfg.Over != nil { // other refusals, such as of a wrong clock, end no life
		b.over.Do(func() { b.cfg.Over(err) })
	}
	return &pulse{}
}

// pulse is a link that beats go over.
type pulse struct {
	conn     net.Conn
	long     bool          // it was tried patiently
	patience time.Duration // how long answers may take: the link's making tells how far away the other side is

	mu   sync.Mutex
	last time.Time // mu; of the last answer
}

func (p *pulse) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.last) > p.patience
}

// write sends beats whether or not they are answered: they may be late and still be in time.
func (p *pulse) write(ctx context.Context, interval time.Duration) {
	defer p.conn.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		p.conn.SetWriteDeadline(time.Now().Add(beatLink))
		if _, err := p.conn.Write(binary.LittleEndian.AppendUint64(nil, n)); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *pulse) read() {
	var back [beatSize]byte
	for {
		if _, err := io.ReadFull(p.conn, back[:]); err != nil {
			p.conn.Close()
			return
		}
		p.mu.Lock()
		p.last = time.Now()
		p.mu.Unlock()
	}
}

// Try reaches for a machine as a judge asks: one beat, answered within the time of ctx. Its error
// is nil if the machine lives.
func Try(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	beat := binary.LittleEndian.AppendUint64(nil, 1)
	if _, err := conn.Write(beat); err != nil {
		return sigma.Wrap("machines.Try", "", err)
	}
	_, err = io.ReadFull(conn, beat)
	return sigma.Wrap("machines.Try", "", err)
}

// Observe answers the beats that come over a link, and tells each to hear (nil for a machine that
// is only probed), until the link ends or is silent for long. It closes conn.
func Observe(ctx context.Context, conn net.Conn, hear func(at time.Time)) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var beat [beatSize]byte
	for {
		conn.SetDeadline(time.Now().Add(beatLink))
		if _, err := io.ReadFull(conn, beat[:]); err != nil {
			return
		}
		if hear != nil {
			hear(time.Now())
		}
		if _, err := conn.Write(beat[:]); err != nil {
			return
		}
	}
}

// Ear is what an observer heard: it is reported to the judge, and is what the observer knows should
// it become the judge. Safe for concurrent use.
type Ear struct {
	mu    sync.Mutex
	heard map[sigma.MachineID]hearing // mu
}

type hearing struct {
	incarnation sigma.Incarnation
	at          time.Time
}

// NewEar makes one that has heard nobody.
func NewEar() *Ear { return &Ear{heard: map[sigma.MachineID]hearing{}} }

// Hear notes a beat.
func (e *Ear) Hear(id sigma.MachineID, inc sigma.Incarnation, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.heard[id]; inc >= h.incarnation && len(e.heard) < identity.MembersMax {
		e.heard[id] = hearing{inc, at}
	}
}

// Evidence is what to report, by name. What is older than any judge cares for is forgotten.
func (e *Ear) Evidence(now time.Time, t Timing) (out []Evidence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, h := range e.heard {
		if age := now.Sub(h.at); age > 2*t.Vouched {
			delete(e.heard, id)
		} else {
			out = append(out, Evidence{id, h.incarnation, max(age, 0)})
		}
	}
	slices.SortFunc(out, func(a, b Evidence) int { return int(int64(a.Age) - int64(b.Age)) })
	return out
}

// Heard is Config.Heard for an observer that becomes the judge.
func (e *Ear) Heard() map[sigma.MachineID]time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[sigma.MachineID]time.Time, len(e.heard))
	for id, h := range e.heard {
		out[id] = h.at
	}
	return out
}

// ReportMax is how much evidence fits one report; an observer of more machines sends several, each
// with what is freshest of the rest.
const ReportMax = 700
