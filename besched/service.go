package besched

import (
	"context"
	"os"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// Methods of the service's root file.
//
//	enqueue  []Job -> -            cancel  ProcID -> -
//	pull     memory -> []Job, lease    waits until there is a job that fits; or answers with a lease (not 0) if no job waits
//	hold     lease -> -                waits until the lease is recalled
const (
	CallEnqueue = "enqueue"
	CallCancel  = "cancel"
	CallPull    = "pull"
	CallHold    = "hold"
)

// CodeJobs is the payload of jobs.
func CodeJobs(c *sigmap.Coder, js *[]Job) {
	n := len(*js)
	c.Count(&n, 12)
	if c.Decoding() {
		*js = make([]Job, n)
	}
	for i := range *js {
		j := &(*js)[i]
		c.ProcID(&j.ID)
		c.RealmID(&j.Realm)
		c.U64((*uint64)(&j.Memory))
	}
}

// Service answers machines. It is a tree whose root is one callable file. Safe for concurrent use.
type Service struct {
	mu      sync.Mutex
	core    *Core                    // mu
	next    Ticket                   // mu
	waiting map[Ticket]chan []Job    // mu; each has room for its grant
	holding map[Ticket]chan struct{} // mu; closed by the recall of the lease
}

var _ sigma.Tree = (*Service)(nil)

// NewService makes an empty one.
func NewService() *Service {
	return &Service{core: NewCore(), waiting: map[Ticket]chan []Job{}, holding: map[Ticket]chan struct{}{}}
}

// Attach implements sigma.Tree; only the provider's programs may.
func (s *Service) Attach(_ context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	if !p.System {
		return nil, sigma.Errorf("besched.Attach", sigma.KindPermission, "besched is for machines")
	}
	return &root{s: s}, nil
}

type root struct {
	treekit.Base
	s *Service
}

func (r *root) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindCallable, Path: 1}, Perm: 0o600, Modified: time.Unix(0, 0)}, nil
}

// Call implements sigma.Caller.
func (r *root) Call(ctx context.Context, method string, payload []byte, _ []*os.File) ([]byte, []*os.File, error) {
	switch method {
	case CallEnqueue:
		var jobs []Job
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeJobs(c, &jobs) }); err != nil {
			return nil, nil, err
		}
		r.s.enqueue(jobs)
		return nil, nil, nil
	case CallCancel:
		var id sigma.ProcID
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) }); err != nil {
			return nil, nil, err
		}
		r.s.mu.Lock()
		r.s.grantLocked(r.s.core.Cancel(id))
		r.s.mu.Unlock()
		return nil, nil, nil
	case CallPull:
		var memory sigma.Bytes
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64((*uint64)(&memory)) }); err != nil {
			return nil, nil, err
		}
		jobs, lease, err := r.s.pull(ctx, memory)
		if err != nil {
			return nil, nil, err
		}
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { CodeJobs(c, &jobs); c.U64((*uint64)(&lease)) })
		return reply, nil, err
	case CallHold:
		var lease Ticket
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64((*uint64)(&lease)) }); err != nil {
			return nil, nil, err
		}
		return nil, nil, r.s.hold(ctx, lease)
	}
	return nil, nil, sigma.Errorf("besched.Call", sigma.KindUnsupported, "no method %.50q", method)
}

func (s *Service) enqueue(jobs []Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants, recalled := s.core.Enqueue(jobs)
	s.grantLocked(grants)
	for _, t := range recalled {
		if ch := s.holding[t]; ch != nil {
			close(ch)
			delete(s.holding, t)
		}
	}
}

func (s *Service) grantLocked(gs []Grant) {
	for _, g := range gs {
		s.waiting[g.Ticket] <- g.Jobs
		delete(s.waiting, g.Ticket)
	}
}

// pull parks a credit until it is granted jobs, or a lease. A grant that was made is never dropped: when the caller gives up at the same moment it gets the jobs after all.
func (s *Service) pull(ctx context.Context, memory sigma.Bytes) ([]Job, Ticket, error) {
	ch := make(chan []Job, 1)
	s.mu.Lock()
	s.next++
	t := s.next
	s.waiting[t] = ch
	s.grantLocked(s.core.Ask(t, memory))
	s.mu.Unlock()
	select {
	case jobs := <-ch:
		return granted(t, jobs)
	case <-ctx.Done():
	}
	s.mu.Lock()
	left := s.core.Leave(t)
	delete(s.waiting, t)
	s.mu.Unlock()
	if left {
		return nil, 0, sigma.Wrap("besched.pull", "", ctx.Err())
	}
	return granted(t, <-ch)
}

func granted(t Ticket, jobs []Job) ([]Job, Ticket, error) {
	if len(jobs) > 0 {
		t = 0
	}
	return jobs, t, nil
}

// hold waits until a lease is recalled. One whose holder gives up waiting is given back.
func (s *Service) hold(ctx context.Context, t Ticket) error {
	s.mu.Lock()
	if !s.core.Leased(t) {
		s.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	s.holding[t] = ch
	s.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.Leave(t)
	delete(s.holding, t)
	return sigma.Wrap("besched.hold", "", ctx.Err())
}
