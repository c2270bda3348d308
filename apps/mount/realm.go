package mount

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

const (
	// reachTimeout is how long requests wait for a system that is away: a sigmad that died is
	// started again within a second or two.
	reachTimeout = 5 * time.Second
	// reachAgain is the time between attempts to reach it.
	reachAgain = 100 * time.Millisecond
	// abandonAfter is how long it may be away before the mount is given up.
	abandonAfter = time.Minute
)

// realm is the connection to the realm, made again when it is lost.
type realm struct {
	cfg  Config
	over context.Context // ends with the mount
	end  context.CancelFunc

	mu     sync.Mutex
	life   *life         // mu; nil while there is none
	asking chan struct{} // mu; closed when the attempt under way has ended; nil = there is none
	err    error         // mu; of the last attempt
	away   time.Time     // mu; since when it cannot be reached; zero = it can
}

// life is one connection. Handles of a former one are of no use.
type life struct {
	client *sdk.Client
	lost   <-chan struct{} // closed when its sigmad is gone
	root   sigma.File
}

func newRealm(cfg Config) *realm {
	r := &realm{cfg: cfg}
	r.over, r.end = context.WithCancel(context.Background())
	return r
}

func (l *life) lives() bool {
	select {
	case <-l.lost:
		return false
	default:
		return true
	}
}

// serverOf names the server of a file by its path, where the file's handle does not know: each
// machine's scratch storage counts its files by itself.
func (l *life) serverOf(names []string) string {
	if len(names) < 2 || names[0] != sigma.NameUX {
		return ""
	}
	if m := names[1]; m != sigma.LocalName && m != sigma.AnyName {
		return m
	}
	return string(l.client.Info().Principal.Machine)
}

// get gives a connection that lives, waiting for one up to reachTimeout after the last was lost.
func (r *realm) get(ctx context.Context) (*life, error) {
	for {
		r.mu.Lock()
		if r.life != nil && r.life.lives() {
			defer r.mu.Unlock()
			return r.life, nil
		}
		if r.asking == nil {
			if !r.away.IsZero() { // given up
				defer r.mu.Unlock()
				return nil, r.err
			}
			r.startLocked()
		}
		asking := r.asking
		r.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return nil, sigma.Wrap("mount.realm", "", ctx.Err())
		}
		r.mu.Lock()
		life, err := r.life, r.err
		r.mu.Unlock()
		if life == nil {
			return nil, err
		}
	}
}

// startLocked begins to connect. It goes on until it succeeds, the mount ends, or the system was
// away for abandonAfter; those who wait are told after reachTimeout.
func (r *realm) startLocked() {
	if r.life != nil {
		go r.life.client.Close() // its servers behind endpoints too
	}
	first := r.life == nil && r.away.IsZero()
	r.life, r.away, r.asking = nil, time.Now(), make(chan struct{})
	go r.connect(first, r.asking)
}

func (r *realm) connect(first bool, asking chan struct{}) {
	told := false
	tell := func(l *life, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.life, r.err = l, err
		if l != nil {
			r.away = time.Time{}
		}
		if !told || l != nil {
			r.asking = nil
		}
		if !told {
			close(asking)
		}
		told = true
	}
	start := time.Now()
	for {
		l, err := r.once()
		switch {
		case err == nil:
			tell(l, nil)
			return
		case first || r.over.Err() != nil:
			tell(nil, err)
			return
		case time.Since(start) > abandonAfter:
			tell(nil, err)
			if r.cfg.Lost != nil {
				r.cfg.Lost()
			}
			return
		case !told && time.Since(start) > reachTimeout:
			r.mu.Lock()
			r.err = err
			told = true
			close(asking) // and r.asking stays: who comes next is told at once
			r.mu.Unlock()
		}
		select {
		case <-time.After(reachAgain):
		case <-r.over.Done():
		}
	}
}

func (r *realm) once() (*life, error) {
	ctx, cancel := context.WithTimeout(r.over, reachTimeout)
	defer cancel()
	c, err := r.cfg.Connect(ctx)
	if err != nil {
		return nil, err
	}
	lost := c.Lost()
	shown := resolve.Through{Tree: c.Tree, At: r.cfg.Path, Objects: r.cfg.Objects}
	root, err := shown.Attach(ctx, sigma.Principal{}, "")
	if err != nil {
		c.Close()
		return nil, err
	}
	return &life{client: c, lost: lost, root: root}, nil
}

// isSystems says whether the system serves the root of the mount, which it does not if a program of
// the realm serves it or if there is a link on the way.
func (l *life) isSystems(ctx context.Context, names []string) bool {
	top, err := resolve.Through{Tree: l.client.Tree, At: "/"}.Attach(ctx, sigma.Principal{}, "")
	if err != nil {
		return false
	}
	defer top.Close()
	f, _, err := top.Walk(ctx, names)
	if err != nil || f == nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat(ctx)
	s, ok := f.(interface{ Server() string })
	return err == nil && st.ID.Kind == sigma.KindDir && ok && servesSystem(s.Server())
}

func (r *realm) close() {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life != nil {
		r.life.client.Close()
	}
}
