package client

import (
	"context"
	"fmt"
	"sync"

	"sigmaos.dev/sigma"
)

// watches are the files that programs of this machine watch. named has about one watch of each,
// whatever the number of those who wait for it: a thousand procs that wait for a configuration cost
// it what one does.
type watches struct {
	most int // set before use

	mu      sync.Mutex
	files   map[watchKey]*watch // mu
	waiters int                 // mu; of all
}

// waitersMax bounds the programs of one realm that wait for files here at a time, so that no tenant
// can take sigmad's memory by waiting: each costs it about 9 KiB.
const waitersMax = 32768

// watchKey tells those who watch for the realm's programs, whom named may refuse, from the
// provider.
type watchKey struct {
	id    uint64
	owner bool
}

func (f *File) watchKey() watchKey { return watchKey{f.id, f.owner} }

// watch is one at named, which goes on for as long as somebody waits for it.
type watch struct {
	start   sigma.Version // what it was begun with, by somebody's word
	end     context.CancelFunc
	waiters int           // watches.mu
	version sigma.Version // watches.mu; the newest that named told; 0 = none yet
	err     error         // watches.mu; how it ended
	news    chan struct{} // watches.mu; closed when either changes
}

// join gives the watch of a file for one more waiter, or says that there are too many. since is
// what a program claims, so nobody else is answered by it: who wants to know of earlier changes
// than the watch tells begins another, which later ones join.
func (w *watches) join(f *File, since sigma.Version) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiters >= w.most {
		return nil, &sigma.Error{Op: "client.Watch", Kind: sigma.KindNoSpace,
			Msg:  fmt.Sprintf("%d programs of the realm wait for names at this machine, and no more may", w.most),
			Hint: "let one program watch and tell the others, or watch a directory instead of each of its files"}
	}
	w.waiters++
	x := w.files[f.watchKey()]
	if x == nil || since < x.start && x.version == 0 {
		var ctx context.Context
		x = &watch{start: since, news: make(chan struct{})}
		ctx, x.end = context.WithCancel(context.Background())
		if w.files == nil {
			w.files = map[watchKey]*watch{}
		}
		w.files[f.watchKey()] = x
		go w.follow(ctx, f, x)
	}
	x.waiters++
	return x, nil
}

func (w *watches) leave(f *File, x *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters--
	if x.waiters--; x.waiters == 0 {
		x.end()
		w.dropLocked(f.watchKey(), x)
	}
}

func (w *watches) dropLocked(at watchKey, x *watch) {
	if w.files[at] == x {
		delete(w.files, at)
	}
}

// follow asks named for one version after another, until nobody waits, or it fails.
func (w *watches) follow(ctx context.Context, of *File, x *watch) {
	f := of.twin(ctx)
	defer f.Close()
	for since := x.start; ; {
		v, err := f.watch(ctx, since)
		w.mu.Lock()
		if err != nil {
			x.err = err
			w.dropLocked(f.watchKey(), x)
		} else {
			x.version, since = v, v
		}
		close(x.news)
		x.news = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// wait returns as Watch does.
func (w *watches) wait(ctx context.Context, x *watch, since sigma.Version) (sigma.Version, error) {
	for {
		w.mu.Lock()
		v, err, news := x.version, x.err, x.news
		w.mu.Unlock()
		switch {
		case v > since:
			return v, nil
		case err != nil:
			return 0, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, sigma.Wrap("client.Watch", "", ctx.Err())
		}
	}
}

// twin is another handle of the file, which lives when f is closed.
func (f *File) twin(ctx context.Context) *File {
	out := &File{realm: f.realm, id: f.id, owner: f.owner}
	if b := f.bound.Load(); b != nil && b.at.live() {
		if file, _, err := b.file.Walk(ctx, nil); err == nil {
			if own, err := asRoot(b.at, file); err == nil {
				out.bound.Store(own)
			}
		}
	}
	return out // else it is found by its id
}

// Watch implements sigma.Watcher. Versions are kept through restarts, so that nothing between two
// sessions is missed.
func (f *File) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	if f.closed.Load() {
		return 0, sigma.Errorf("client.Watch", sigma.KindInvalid, "the handle is closed")
	}
	w := &f.realm.watches
	if sigma.FenceOf(ctx).Name == "" && f.id != 0 { // a fence is the server's to check
		x, err := w.join(f, since)
		if err != nil {
			return 0, err
		}
		defer w.leave(f, x)
		return w.wait(ctx, x, since)
	}
	return f.watch(ctx, since)
}

// watch asks named.
func (f *File) watch(ctx context.Context, since sigma.Version) (v sigma.Version, err error) {
	err = f.await(ctx, func(ctx context.Context, b *binding) error { v, err = b.file.Watch(ctx, since); return err })
	if err != nil && sigma.KindOf(err) == sigma.KindStale &&
		sigma.FenceOf(ctx).Name == "" { // it was removed while there was no session
		err = &sigma.Error{Op: "client.Watch", Kind: sigma.KindNotFound, Msg: "the file was removed", Err: err}
	}
	f.realm.front.saw(v, err)
	return v, err
}
