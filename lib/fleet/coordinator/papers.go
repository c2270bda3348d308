package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// Limits of what is kept of a fleet among the names.
const (
	decisionsMax = 256       // decisions
	historyMax   = 32        // records
	fileMax      = 128 << 10 // bytes of a file of these
	showEvery    = time.Second
	showMost     = 200 // members of which the status file tells
)

// papers are the files of a fleet. The record is written at once; the policy, the decisions and the
// status by one goroutine, each as it is then. Safe for concurrent use.
type papers struct {
	c    *Coordinator
	name string
	wake chan struct{} // takes one: something is to be written

	mu        sync.Mutex
	decided   []fleet.Decision // mu; oldest first
	past      []fleet.Record   // mu; oldest first; the last is in force
	wanted    *sdk.Policy      // mu; nil = it is written
	status    *fleet.Status    // mu; nil = it is written
	unwritten bool             // mu; of decided
	shown     time.Time        // mu; when status was last written
	closed    bool             // mu; nothing is written any more
	writing   sync.Mutex       // taken before mu: one file at a time
}

func (p *papers) init(c *Coordinator, name string) {
	p.c, p.name, p.wake = c, name, make(chan struct{}, 1)
}

// recall reads what other coordinators wrote. What cannot be read of decisions and history is left
// out.
func (p *papers) recall(ctx context.Context) error {
	for file, add := range map[string]func(line []byte){
		"decisions": func(line []byte) {
			if d := (fleet.Decision{}); json.Unmarshal(line, &d) == nil {
				p.decided = append(p.decided, d)
			}
		},
		"history": func(line []byte) {
			if r, err := fleet.ParseRecord(line); err == nil {
				p.past = append(p.past, r)
			}
		},
	} {
		text, _, err := p.c.c.Get(ctx, fleet.Dir(p.name)+"/"+file)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		for line := range bytes.Lines(text[:min(len(text), 2*fileMax)]) {
			add(line)
		}
	}
	return nil
}

// seq is the number of the last decision.
func (p *papers) seq() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.decided); n > 0 {
		return p.decided[n-1].Seq
	}
	return 0
}

func (p *papers) note(d fleet.Decision, by string) {
	d.By = by
	p.mu.Lock()
	p.decided = append(p.decided, d)
	if n := len(p.decided) - decisionsMax; n > 0 {
		p.decided = p.decided[n:]
	}
	p.unwritten = true
	p.mu.Unlock()
	p.due()
}

func (p *papers) policy(x sdk.Policy) {
	x.Weights = maps.Clone(x.Weights)
	p.mu.Lock()
	p.wanted = &x
	p.mu.Unlock()
	p.due()
}

func (p *papers) show(s fleet.Status) {
	s.Members = s.Members[:min(len(s.Members), showMost)]
	p.mu.Lock()
	due := time.Since(p.shown) >= showEvery
	if due {
		p.status, p.shown = &s, time.Now()
	}
	p.mu.Unlock()
	if due {
		p.due()
	}
}

func (p *papers) close() {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *papers) due() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// write writes what is due until ctx ends.
func (p *papers) write(ctx context.Context, log *slog.Logger) {
	for {
		select {
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		if err := p.flush(ctx); err != nil && ctx.Err() == nil {
			log.Warn("what a fleet's coordinator says is not written", "fleet", p.name, "err", err)
			retry.Pause(ctx, againAfter)
			p.due()
		}
	}
}

// flush writes what is due, the policy first: clients wait for it.
func (p *papers) flush(ctx context.Context) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	policy, status, decided := p.wanted, p.status, []fleet.Decision(nil)
	if p.unwritten {
		decided = p.decided
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil
	}
	if policy != nil {
		if err := p.c.c.SetPolicy(ctx, fleet.Members(p.name), *policy); err != nil {
			return err
		}
	}
	if decided != nil {
		if err := p.put(ctx, "decisions", lines(decided)); err != nil {
			return err
		}
	}
	if status != nil {
		b, err := json.Marshal(status)
		if err != nil {
			return err
		}
		if err := p.put(ctx, "status", append(b, '\n')); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted == policy {
		p.wanted = nil
	}
	if p.status == status {
		p.status = nil
	}
	if decided != nil && len(p.decided) > 0 && p.decided[len(p.decided)-1].Seq == decided[len(decided)-1].Seq {
		p.unwritten = false
	}
	return nil
}

// record writes the record in force, and then the history.
func (p *papers) record(ctx context.Context, r fleet.Record) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := p.put(ctx, "spec", append(b, '\n')); err != nil {
		return err
	}
	p.mu.Lock()
	if n := len(p.past); n > 0 && !r.Removed && p.past[n-1].Revision == r.Revision &&
		len(fleet.Changes(&p.past[n-1].Spec, &r.Spec)) == 0 { // how far a roll has come is no history
		r.At, r.By, r.What = p.past[n-1].At, p.past[n-1].By, p.past[n-1].What
		p.past = p.past[:n-1]
	}
	p.past = append(p.past, r)
	if n := len(p.past) - historyMax; n > 0 {
		p.past = p.past[n:]
	}
	past := p.past
	p.mu.Unlock()
	return p.put(ctx, "history", lines(past)) // a lost line of it is made up for by the next
}

func (p *papers) put(ctx context.Context, file string, text []byte) error {
	_, err := p.c.c.Put(ctx, fleet.Dir(p.name)+"/"+file, text, sigma.PutOptions{Perm: 0o644})
	return err
}

// lines are the latest of xs as JSON lines, as many as a file has.
func lines[T any](xs []T) []byte {
	var all [][]byte
	size := 0
	for i := len(xs) - 1; i >= 0; i-- {
		b, err := json.Marshal(xs[i])
		if size += len(b) + 1; err != nil || size > fileMax {
			break
		}
		all = append(all, append(b, '\n'))
	}
	var text []byte
	for i := len(all) - 1; i >= 0; i-- {
		text = append(text, all[i]...)
	}
	return text
}
