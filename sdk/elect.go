package sdk

import (
	"bytes"
	"context"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/resolve"
)

// leaseOfLeader is how long a leader that is cut off, or stands still, keeps others from leading.
const leaseOfLeader = 5 * time.Second

// Election is what a program stands for (000 §3.6).
type Election struct {
	// Path is the leader's file: who makes it leads, the others wait for it in the order in which
	// they came. It is ephemeral. Its directory exists, and is kept by named. The epoch is beside
	// it, in Path+".epoch".
	Path string
	// Data and Kind are what the file is: bytes, or the text of an endpoint or symlink by which
	// clients find the leader.
	Data []byte
	Kind sigma.FileKind
	// TTL is how long after its last sign of life a leader is replaced, 5 s if 0; 1 s is the least.
	// A leader whose proc ends is replaced at once.
	TTL time.Duration
	// Fenced are directories that Campaign fences at the new epoch (FenceAtEpoch) before it
	// returns. A server refuses the former leader as soon as it has had a request of the new one's.
	Fenced []string
	// Succeeds: whoever made the leader's file with the same Data, of kind KindFile, is known to be
	// dead, as the former life of a program of which there is one at a machine, by what Data says.
	// The program leads in its place at once, before others who wait; it need not wait for the
	// lease of the dead.
	Succeeds bool
}

// Leadership is won by Campaign. Safe for concurrent use.
type Leadership struct {
	fence  sigma.Fence
	keeper *keeper
	leases sigma.Leaser
}

// Fence is that of the leader's epoch, for clients and for FenceAtEpoch.
func (l *Leadership) Fence() sigma.Fence { return l.fence }

// Lost is closed when the program may lead no more: because its lease has ended or cannot be
// renewed in time, or because it resigned. It is closed before another is elected, unless the
// program stood still, or was said to be dead by one that succeeds it (Election.Succeeds) and is
// not: then fences keep what it does from having an effect.
func (l *Leadership) Lost() <-chan struct{} { return l.keeper.lost }

// Resign lets the next candidate lead before it returns. The program's directories stay fenced at
// its epoch.
func (l *Leadership) Resign(ctx context.Context) error {
	l.keeper.stop()
	err := l.leases.Revoke(ctx, l.keeper.id)
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil { // it has expired
		return nil
	}
	return sigma.Wrap("sdk.Resign", "", err)
}

// Candidate is a connection to the system by which a program stands for election. *Client is one.
type Candidate interface {
	Campaign(ctx context.Context, e Election) (*Leadership, error)
}

// leadAgain is how long after it was deposed a program stands for election again.
const leadAgain = 50 * time.Millisecond

// Lead calls do each time the program leads, with a context that ends when it may lead no more. It
// returns what do returns, or Campaign, unless that is because the program was deposed or for a
// reason that passes: then the program stands for election again.
func Lead(ctx context.Context, c Candidate, e Election, do func(ctx context.Context, l *Leadership) error) error {
	for {
		err := leadOnce(ctx, c, e, do)
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindStale && kind != sigma.KindLost &&
			!kind.Retryable() {
			return err
		}
		if !retry.Pause(ctx, leadAgain) {
			return ctx.Err()
		}
	}
}

func leadOnce(ctx context.Context, c Candidate, e Election, do func(ctx context.Context, l *Leadership) error) error {
	l, err := c.Campaign(ctx, e)
	if err != nil {
		return err
	}
	defer l.Resign(context.WithoutCancel(ctx))
	term, cancel := l.Term(ctx)
	defer cancel()
	err = do(term, l)
	if cause := context.Cause(term); err != nil && cause != nil {
		return cause
	}
	return err
}

// Term is a context that ends with ctx and when the program may lead no more: then its cause is of
// KindStale.
func (l *Leadership) Term(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-l.Lost():
			cancel(sigma.Errorf("sdk.Leadership", sigma.KindStale, "another program may lead"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Campaign waits until the program leads. To stop waiting, end ctx; that does not end the
// leadership that was won. A candidate whose lease ends while it waits, because its machine stood
// still, stands again, at the end of the queue, and so does one while there is nobody who keeps the
// names.
func (c *Client) Campaign(ctx context.Context, e Election) (*Leadership, error) {
	return elector{c.Tree, c.root, c.session.Done()}.campaign(ctx, e)
}

// elector is what an election needs of a Client.
type elector struct {
	tree *resolve.Tree
	root sigma.File
	done <-chan struct{} // closed when the session to the root's server ends
}

func (x elector) campaign(ctx context.Context, e Election) (*Leadership, error) {
	const op = "sdk.Campaign"
	if e.TTL == 0 {
		e.TTL = leaseOfLeader
	}
	leases, ok := x.root.(sigma.Leaser)
	if !ok {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "this tree grants no leases")
	}
	free := resolve.WithoutFence(ctx) // a leader that was deposed may stand again
	for {
		asked := time.Now()
		id, err := leases.Lease(free, e.TTL)
		again := false
		if err == nil {
			l := &Leadership{keeper: keep(leases, id, e.TTL, asked, x.done), leases: leases}
			if l.fence, err = x.stand(free, e, l.keeper); err == nil {
				return l, nil
			}
			again = l.keeper.expired() || ended(free, leases, id, err)
			l.Resign(context.WithoutCancel(ctx)) // which removes the file, should it have been made after all
		}
		if kind := sigma.KindOf(err); !again && kind != sigma.KindLost && !kind.Retryable() {
			return nil, sigma.Wrap(op, e.Path, err)
		}
		pause := time.NewTimer(e.TTL / 20) // whoever keeps the names is being replaced
		select {
		case <-pause.C:
			continue
		case <-x.done:
		case <-ctx.Done():
		}
		pause.Stop()
		return nil, sigma.Wrap(op, e.Path, err)
	}
}

// ended reports whether an error is that of a lease that its server has ended, of which a keeper
// that stood still may not know yet.
func ended(ctx context.Context, leases sigma.Leaser, id sigma.LeaseID, err error) bool {
	return sigma.KindOf(err) == sigma.KindNotFound && sigma.KindOf(leases.Renew(ctx, id)) == sigma.KindNotFound
}

// stand makes the leader's file and advances the epoch, as long as the lease lasts.
func (x elector) stand(ctx context.Context, e Election, k *keeper) (sigma.Fence, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	leads, err := false, error(nil)
	if e.Succeeds {
		leads, err = x.succeed(ctx, e, k)
	}
	if err == nil && !leads {
		_, err = x.tree.Put(ctx, e.Path, e.Data, sigma.PutOptions{Kind: e.Kind, Perm: 0o644, MustMake: true, Wait: true,
			Lease: k.id})
	}
	if err != nil {
		return sigma.Fence{}, err
	}
	f, err := x.tree.AdvanceEpoch(ctx, e.Path+".epoch")
	for _, dir := range e.Fenced {
		if err == nil {
			err = x.tree.FenceAtEpoch(ctx, f, dir)
		}
	}
	if err == nil {
		err = ctx.Err() // it was lost in between
	}
	return f, err
}

// succeed makes the leader's file the lease's, if it is there with the same data, and reports
// whether it did. Nobody leads meanwhile: it is done in one step, and only if the file is still the
// one that was read.
func (x elector) succeed(ctx context.Context, e Election, k *keeper) (bool, error) {
	data, id, err := x.tree.Get(ctx, e.Path)
	if err == nil {
		if e.Kind != sigma.KindFile || !bytes.Equal(data, e.Data) {
			return false, nil
		}
		_, err = x.tree.Put(ctx, e.Path, e.Data, sigma.PutOptions{Perm: 0o644, MustExist: true, IfVersion: id.Version,
			Lease: k.id})
	}
	switch kind := sigma.KindOf(err); {
	case err == nil:
		return true, nil
	case kind == sigma.KindNotFound, kind == sigma.KindVersion: // it is gone, or another's by now
		return false, nil
	}
	return false, err
}

// keeper renews a lease and notices when it is lost.
type keeper struct {
	id     sigma.LeaseID
	most   time.Duration // without having been renewed; a tenth less than what the server grants
	every  time.Duration
	leases sigma.Leaser
	ctx    context.Context // ends when the lease is not kept any more
	cancel context.CancelFunc
	lost   chan struct{}
	ended  chan struct{}

	mu   sync.Mutex
	over bool // mu; the lease was lost rather than given up
}

// keep starts to renew a lease that was asked for at a time. The server counts the lease's time
// from a later moment than that.
func keep(leases sigma.Leaser, id sigma.LeaseID, ttl time.Duration, asked time.Time, done <-chan struct{}) *keeper {
	k := &keeper{id: id, most: ttl - ttl/10, every: ttl / 3, leases: leases, lost: make(chan struct{}),
		ended: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	go k.run(asked, done)
	return k
}

func (k *keeper) run(good time.Time, done <-chan struct{}) {
	defer close(k.ended)
	defer close(k.lost)
	defer k.cancel()
	for {
		if k.wait(good, done) {
			return
		}
		asked := time.Now()
		if asked.Sub(good) >= k.most {
			k.expire()
			return
		}
		within, cancel := context.WithDeadline(k.ctx, good.Add(k.most))
		err := k.leases.Renew(within, k.id)
		cancel()
		switch {
		case err == nil:
			good = asked
		case sigma.KindOf(err) == sigma.KindNotFound:
			k.expire()
			return
		}
	}
}

// wait returns when the lease is to be renewed; true if it is not.
func (k *keeper) wait(good time.Time, done <-chan struct{}) (over bool) {
	pause := k.every
	if age := time.Since(good); age >= k.every { // the last attempt failed: try again soon
		pause = max(min(k.every/4, k.most-age), 0)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-k.ctx.Done():
	case <-done:
		k.expire()
	}
	return true
}

func (k *keeper) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
}

func (k *keeper) expired() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over
}

// stop ends the renewing and waits for that.
func (k *keeper) stop() {
	k.cancel()
	<-k.ended
}
