package memfs

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
)

// place is a name in a directory, which there need not be a file of.
type place struct {
	dir  *node
	name string
}

// waiter is a Put that waits until a name is free. All of it is guarded by Tree.mu.
type waiter struct {
	at   place
	wake chan struct{} // closed when it should look again; nil when it is not waiting
}

// queueLocked says whether a Put has to wait for p, because there is a file or because others came
// before, and makes it wait in the order of its coming.
func (t *Tree) queueLocked(w *waiter, p place) (wait bool) {
	if w.wake != nil && w.at != p { // the path leads elsewhere now
		t.leaveLocked(w)
	}
	q := t.waits[p]
	if p.dir.children[p.name] == nil && (len(q) == 0 || q[0] == w) {
		return false
	}
	if w.wake == nil {
		t.waits[p] = append(q, w)
	}
	w.at, w.wake = p, make(chan struct{})
	return true
}

// leaveLocked ends the waiting of w and lets the next one look.
func (t *Tree) leaveLocked(w *waiter) {
	if w.wake == nil {
		return
	}
	w.wake = nil
	q := t.waits[w.at]
	i := slices.Index(q, w)
	if q = slices.Delete(q, i, i+1); len(q) == 0 {
		delete(t.waits, w.at)
		return
	}
	t.waits[w.at] = q
	t.freedLocked(w.at)
}

// freedLocked wakes the first who waits for a name, if it is free.
func (t *Tree) freedLocked(p place) {
	if q := t.waits[p]; len(q) > 0 && p.dir.children[p.name] == nil {
		q[0].wakeLocked()
	}
}

// dirGoneLocked wakes all who wait for names of a directory that was removed.
func (t *Tree) dirGoneLocked(dir *node) {
	for p, q := range t.waits {
		if p.dir == dir {
			for _, w := range q {
				w.wakeLocked()
			}
		}
	}
}

func (w *waiter) wakeLocked() {
	select {
	case <-w.wake:
	default:
		close(w.wake)
	}
}

// putWaiting is Put that waits for the name.
func (f *file) putWaiting(ctx context.Context, op string, names []string, data []byte,
	o sigma.PutOptions) (sigma.FileID, *sigma.Stopped, error) {
	w := &waiter{}
	defer func() {
		f.t.mu.Lock()
		defer f.t.mu.Unlock()
		f.t.leaveLocked(w)
	}()
	for {
		id, stopped, wait, err := f.putNow(ctx, op, names, data, o, w)
		if wait == nil {
			return id, stopped, err
		}
		select {
		case <-wait.wake:
		case <-wait.raised:
		case <-ctx.Done():
		}
	}
}

// waiting is what ends a wait: whoever sees one of them looks again.
type waiting struct{ wake, raised <-chan struct{} }

// ReadAtIf implements sigma.Conditional.
func (f *file) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "memfs.ReadAtIf"
	if err := f.begin(ctx, op); err != nil {
		return 0, err
	}
	defer f.t.mu.Unlock()
	if err := f.wantOpenLocked(op, false); err != nil {
		return 0, err
	}
	if v != 0 && f.n.version != v {
		return 0, sigma.PathError(op, sigma.KindVersion, f.n.name)
	}
	return copy(p, f.n.data[min(offset, uint64(len(f.n.data))):]), nil
}

// WriteAtIf implements sigma.Conditional.
func (f *file) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	const op = "memfs.WriteAtIf"
	if err := f.begin(ctx, op); err != nil {
		return 0, 0, err
	}
	defer f.t.mu.Unlock()
	if err := f.wantOpenLocked(op, true); err != nil {
		return 0, 0, err
	}
	if v != 0 && f.n.version != v {
		return 0, 0, sigma.PathError(op, sigma.KindVersion, f.n.name)
	}
	if f.flags&sigma.OpenAppend != 0 {
		offset = uint64(len(f.n.data))
	}
	if err := f.t.writeLocked(op, f.n, p, offset); err != nil {
		return 0, 0, err
	}
	return len(p), f.n.version, nil
}
