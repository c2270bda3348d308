package resolve

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// Following a directory is comparing listings: watches only say when to look again. So nothing is
// lost that lasts: whatever the events were, who applies them has what is there; and nothing is
// told that was not so. What came and went between two looks is not told.

// EventKind says what happened to a name.
type EventKind uint8

// The kinds of events. A name is Created once before it is Changed or Removed.
const (
	Created EventKind = iota + 1 // it is there; first of all, everything that is there
	Removed                      // it is not there any more
	Changed                      // it has other content, or stands for another file. Not told of directories
	// Overflow: something may have come and gone untold, or changes of content will not be told of
	// all files. The connection to the server was lost for a while, or there are more than
	// FollowMax files.
	Overflow
)

func (k EventKind) String() string {
	return [...]string{"none", "created", "removed", "changed", "overflow"}[min(k, 4)]
}

// Event is one change of a directory.
type Event struct {
	Kind EventKind
	Name string       // in the directory; "" with Overflow
	ID   sigma.FileID // of the file, as it was when its name was read; that of Removed is the last that was told
}

// FollowMax is how many files of one directory are watched for changes of their content. Each costs
// a request that waits.
const FollowMax = 512

// followAgain is how long a server that cannot be reached is left alone between attempts.
const followAgain = 100 * time.Millisecond

// Follow tells what happens in the directory at path, until ctx ends, the directory is removed or
// the loop is left. An error is the last that it yields.
func (t *Tree) Follow(ctx context.Context, path string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f := &follower{t: t, path: path, known: map[string]sigma.FileID{}, wake: make(chan struct{}, 1)}
		for {
			again, err := f.rounds(ctx, yield)
			if !again {
				return
			}
			if kind := sigma.KindOf(err); kind != sigma.KindLost && kind != sigma.KindUnavailable || ctx.Err() != nil {
				yield(Event{}, withPath(err, path))
				return
			}
			f.interrupted = len(f.known) > 0 || f.interrupted
			select {
			case <-time.After(followAgain):
			case <-ctx.Done():
			}
		}
	}
}

// follower is one loop of Follow.
type follower struct {
	t           *Tree
	path        string
	known       map[string]sigma.FileID // as was told
	wake        chan struct{}
	interrupted bool // since the last listing
	crowded     bool // that was told

	mu      sync.Mutex
	watched map[string]sigma.FileID // mu; files that are being watched, or of which that failed
	err     error                   // mu; of the directory's watch
}

// rounds lists whenever something has changed, over one life of the server's session. again is
// false when the loop was left.
func (f *follower) rounds(ctx context.Context, yield func(Event, error) bool) (again bool, err error) {
	dir, _, err := f.t.walk(ctx, f.path, true)
	if err != nil {
		return true, err
	}
	defer dir.Close()
	w, ok := dir.(sigma.Watcher)
	if !ok {
		return true, sigma.PathError("resolve.Follow", sigma.KindUnsupported, f.path)
	}
	f.watched, f.err = map[string]sigma.FileID{}, nil
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer all.Wait()
	defer cancel()
	st, err := dir.Stat(ctx) // the version before the listing, so that what changes meanwhile makes another
	if err != nil {
		return true, err
	}
	all.Go(func() {
		err := pursue(ctx, w, st.ID.Version, f.look)
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
		f.look()
	})
	for {
		es, err := list(ctx, dir, listMax)
		if err != nil {
			return true, err
		}
		if !f.tell(es, yield) {
			return false, nil
		}
		for _, e := range es {
			f.watch(ctx, &all, dir, e)
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return true, sigma.Wrap("resolve.Follow", "", ctx.Err())
		}
		f.mu.Lock()
		err = f.err
		f.mu.Unlock()
		if err != nil {
			return true, err
		}
	}
}

// look has the directory listed again.
func (f *follower) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pursue calls each for every change, until watching fails.
func pursue(ctx context.Context, w sigma.Watcher, since sigma.Version, each func()) error {
	for {
		v, err := w.Watch(ctx, since)
		if err == nil && v <= since {
			err = errors.New("the server told a change that was none")
		}
		if err != nil {
			return sigma.Wrap("resolve.Follow", "", err)
		}
		since = v
		each()
	}
}

// watch follows the content of one file, unless that is done already or cannot be.
func (f *follower) watch(ctx context.Context, all *sync.WaitGroup, dir sigma.File, e sigma.DirEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, ok := f.watched[e.Name]; e.ID.Kind == sigma.KindDir || ok && was.Path == e.ID.Path ||
		len(f.watched) >= FollowMax {
		return
	}
	f.watched[e.Name] = e.ID
	all.Go(func() {
		file, _, err := dir.Walk(ctx, []string{e.Name})
		if err != nil || file == nil {
			f.look()
			return
		}
		defer file.Close()
		if st, err := file.Stat(ctx); err == nil &&
			st.ID.Path == e.ID.Path { // else it is another already, which the next look finds
			if w, ok := file.(sigma.Watcher); ok {
				pursue(ctx, w, e.ID.Version, f.look)
			}
		}
		f.look()
	})
}

// tell yields how a listing differs from the last.
func (f *follower) tell(es []sigma.DirEntry, yield func(Event, error) bool) bool {
	files, now := 0, make(map[string]sigma.FileID, len(es))
	for _, e := range es {
		now[e.Name] = e.ID
		if e.ID.Kind != sigma.KindDir {
			files++
		}
	}
	if crowd := files > FollowMax; f.interrupted || crowd && !f.crowded {
		f.interrupted, f.crowded = false, crowd
		if !yield(Event{Kind: Overflow}, nil) {
			return false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		if _, ok := now[name]; !ok {
			if !yield(Event{Removed, name, f.known[name]}, nil) {
				return false
			}
			delete(f.known, name)
			f.mu.Lock()
			delete(f.watched, name)
			f.mu.Unlock()
		}
	}
	for _, e := range es {
		kind := Created
		if was, ok := f.known[e.Name]; ok {
			if kind = Changed; was.Path == e.ID.Path && (was.Version == e.ID.Version || e.ID.Kind == sigma.KindDir) {
				continue
			}
		}
		f.known[e.Name] = e.ID
		if !yield(Event{kind, e.Name, e.ID}, nil) {
			return false
		}
	}
	return true
}
