// Package client is a machine's handle on the names of realms, which named keeps: for each realm
// one session that all the realm's programs here share.
//
// It promises: a Realm's files live as long as who holds them, whatever becomes of the session:
// they know their file by its id and are taken up again at the named that leads then. A read whose
// session was lost is asked again, and for a while whatever named refuses because too many wait. A
// mutation is numbered (sigma.Once), so that it can be sent again too, and is applied once; its
// error is KindLost only when named could not be asked for what became of it. What a caller was
// told is true for all who ask afterwards through the same Realm.
//
// It assumes that named remembers numbers for longer than resendMax, that file ids are never
// reused, and that who dials attaches as the system, which alone may take up files by their ids.
//
// It is used by kernel, which shows the names to procs.
//
// Where things are: realm.go sessions; file.go handles; once.go numbers and sending again; front.go
// where reads and mutations pass, and the feed by which what was read is remembered (package
// cache); watch.go watches.
//
// Locks: Realm.mu and file.mu; Realm.mu may be taken under file.mu, and watches.mu under none.
// Nothing is asked under Realm.mu; under file.mu only to take the file up again.
package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Root is the root of a realm at named.
type Root interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.Leaser
	sigma.Finder
	sigma.Conditional
}

// Session is one session to named.
type Session struct {
	Root  Root            // of the realm, as the provider has it
	Owner Root            // the same, as the realm's own programs have it, whom modes keep out (treeserver.Right)
	Done  <-chan struct{} // closed when the session has ended
	Close func()          // ends it; may be called more than once
}

// Config says how a Realm reaches named.
type Config struct {
	// Dial opens a session to the named that leads. It waits a while for one that is being
	// restarted, or is to be elected. KindNotFound: there is no such realm.
	Dial func(ctx context.Context) (Session, error)
	// Budget bounds what is remembered of what was read, and is shared by Realms. nil = nothing is
	// remembered.
	Budget *cache.Budget
}

// Realm is the names of one realm. Safe for concurrent use.
type Realm struct {
	cfg   Config
	front *front
	root  atomic.Pointer[File] // of the realm, shared by all; nil = not attached yet
	owner atomic.Pointer[File] // the same, as the realm's programs have it; set before root

	current atomic.Pointer[attachment]
	watches watches
	lanes   session.Lanes // number mutations

	mu      sync.Mutex
	now     *attachment   // mu; the newest, which may have ended; nil = none. Also in current
	dialing chan struct{} // mu; closed when a dial that is under way is over
	closed  bool          // mu
	gone    []uint64      // mu; clients of which named is to be told that they are gone
}

// attachment is a session to named with its number in the order of sessions.
type attachment struct {
	Session
	number uint64
}

// rootOf returns the root, for the realm's owner or the provider.
func (a *attachment) rootOf(owner bool) Root {
	if owner {
		return a.Owner
	}
	return a.Root
}

func (a *attachment) live() bool {
	select {
	case <-a.Done:
		return false
	default:
		return true
	}
}

// New makes a Realm. It dials when it is first used.
func New(cfg Config) *Realm {
	r := &Realm{cfg: cfg, watches: watches{most: waitersMax}}
	r.front = newFront(r, cfg.Budget)
	return r
}

// Close ends the session. Who still has files gets KindStale.
func (r *Realm) Close() {
	r.mu.Lock()
	now := r.now
	r.closed = true
	r.mu.Unlock()
	if now != nil {
		now.Close()
	}
	r.front.close()
}

// Root returns the realm's root, having attached to it, unless what is remembered of it is fresh.
// It is one for all, needs no Close, and is for what needs no Open: a clone of it is.
func (r *Realm) Root(ctx context.Context) (*File, error) {
	if root := r.root.Load(); root != nil {
		if at := r.current.Load(); at.live() || r.front.ready(ctx) {
			return root, nil
		}
	}
	if _, err := r.attached(ctx); err != nil {
		return nil, err
	}
	return r.root.Load(), nil
}

// Owner returns the realm's root as Root does, as the realm's own programs have it: whom the modes
// of files and directories keep from them.
func (r *Realm) Owner(ctx context.Context) (*File, error) {
	if _, err := r.Root(ctx); err != nil {
		return nil, err
	}
	return r.owner.Load(), nil
}

// AsOwner is a realm's root as the realm's own programs have it. f is what Root returned.
func (f *File) AsOwner() *File { return f.realm.owner.Load() }

// Doubt makes reads after it tell all that was changed before it, wherever. It is for who passes on
// news of another machine that came otherwise than by names.
func (r *Realm) Doubt() { r.front.doubt() }

// Recall is that of the realm's root, for the realm's owner or the provider.
func (r *Realm) Recall(owner bool, names []string, offset uint64, count int) (g sigma.GetResult, stop *sigma.Stopped,
	known bool, err error) {
	root := r.root.Load()
	if root != nil && owner {
		root = r.owner.Load()
	}
	if root != nil {
		return root.Recall(names, offset, count)
	}
	return g, nil, false, nil
}

// Use asks named what the realm may have, and how much of it it has, as far as named knows.
func (f *File) Use(ctx context.Context) (limits, use sigma.RealmLimits, err error) {
	var u sigmap.RealmUse
	err = f.read(ctx, func(ctx context.Context, b *binding) (err error) {
		var ok bool
		if u, ok, err = call(ctx, f.realm.front, b.at, sigmap.CallUse, sigmap.None{}); !ok {
			return treeserver.Unsupported("use")
		}
		return err
	})
	return u.Limits, u.Use, err
}

// attached returns a session that has not ended, as far as is known.
func (r *Realm) attached(ctx context.Context) (*attachment, error) {
	const op = "names.attached"
	for {
		r.mu.Lock()
		switch {
		case r.closed:
			r.mu.Unlock()
			return nil, sigma.Errorf(op, sigma.KindStale, "the realm is gone")
		case r.now != nil && r.now.live():
			defer r.mu.Unlock()
			return r.now, nil
		case r.dialing == nil:
			r.dialing = make(chan struct{})
			r.mu.Unlock()
			return r.dial(ctx)
		}
		wait := r.dialing
		r.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, sigma.Wrap(op, "", ctx.Err())
		}
	}
}

// dial is called by the one who has made r.dialing.
func (r *Realm) dial(ctx context.Context) (*attachment, error) {
	s, err := r.cfg.Dial(ctx)
	var root sigma.Stat
	if err == nil && r.root.Load() == nil {
		if root, err = s.Root.Stat(ctx); err != nil {
			s.Close()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.dialing)
	r.dialing = nil
	switch {
	case err != nil:
		return nil, err
	case r.closed:
		s.Close()
		return nil, sigma.Errorf("names.dial", sigma.KindStale, "the realm is gone")
	}
	a := &attachment{Session: s, number: 1}
	if r.now != nil {
		a.number = r.now.number + 1
	}
	r.now = a
	r.current.Store(a)
	if r.root.Load() == nil {
		r.owner.Store(&File{realm: r, id: root.ID.Path, root: true, owner: true})
		r.root.Store(&File{realm: r, id: root.ID.Path, root: true})
	}
	return a, nil
}

// How a request whose session was lost goes on.
const (
	// resendMax is how long after it was begun a request is sent again, if its caller's own
	// patience does not end before. named remembers much longer.
	resendMax = time.Minute
	// readMax is how long one attempt of a read waits for named, and resendMax that of a change, if
	// they wait for nothing else: as long as sigmad looks for one that is being restarted.
	readMax = 15 * time.Second
	// lostPause is how long a request that was answered with KindLost or KindUnavailable waits for
	// its session to end; if it does not, the answer was named's own.
	lostPause = 50 * time.Millisecond
	// toldMax is how often a mutation is sent again when named itself, over a session that goes on,
	// cannot tell its outcome, or cannot answer now.
	toldMax = 3
	// busyMax is for how long a request is made again that named refuses because too many wait
	// (KindBusy), after busyPause at first and busyPauseMost at most: what waits there is done in
	// less, unless more comes than named can do.
	busyMax       = 2 * time.Second
	busyPause     = 4 * time.Millisecond
	busyPauseMost = 128 * time.Millisecond
)
