package proclog

import (
	"context"
	"sort"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// turnsMax bounds how often the streams of a Merged may take turns: what a proc prints to both in
// turns of a line each is followed for some thousand lines. A turn takes turnBytes, which the
// realm's budget counts.
const (
	turnsMax  = 4096
	turnBytes = 24
)

// Merged is what a proc has printed to two logs, in the order in which it came. It has no bytes of
// its own. It ends where the streams have taken turns turnsMax times, or one of them is longer than
// Head, or the realm's logs have used up their memory: the logs have the rest. Safe for concurrent
// use. Lock: Merged.mu may be taken under Log.mu.
type Merged struct {
	logs [2]*Log

	mu       sync.Mutex
	turns    []turn        // mu
	size     uint64        // mu
	over     bool          // mu; nothing is added any more
	version  sigma.Version // mu; grows with each piece, and at the end of either log
	changed  chan struct{} // mu; closed and dropped with each change; nil = nobody waits
	modified time.Time     // mu
}

// turn is some bytes of one log.
type turn struct {
	at, from uint64 // where they begin: in the Merged, in the log
	log      int
}

// Merge follows two empty logs of one realm.
func Merge(a, b *Log) *Merged {
	m := &Merged{logs: [2]*Log{a, b}, version: 1, modified: time.Now()}
	for i, l := range m.logs {
		l.mu.Lock()
		l.heard = func(from, kept uint64) { m.add(i, from, kept) }
		l.mu.Unlock()
	}
	return m
}

// add hears of bytes that a log has kept after from, or, if there are none, of another change of
// it.
func (m *Merged) add(log int, from, kept uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := len(m.turns) - 1
	m.over = m.over || from+kept > Head
	if kept > 0 && !m.over && (last < 0 || m.turns[last].log != log) {
		memory := &m.logs[log].budget.memory
		if m.over = len(m.turns) == turnsMax || memory.Load() >= realmMemoryMax; !m.over {
			memory.Add(turnBytes)
			m.turns = append(m.turns, turn{m.size, from, log})
		}
	}
	if !m.over {
		m.size += kept
	}
	m.version++
	m.modified = time.Now()
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// Remove forgets the order. The logs are removed by themselves.
func (m *Merged) Remove() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logs[0].budget.memory.Add(-turnBytes * int64(len(m.turns)))
	m.turns, m.size, m.over = nil, 0, true
}

// find says where bytes from offset on are, and how many of them at most.
func (m *Merged) find(offset uint64) (l *Log, from uint64, most uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if offset >= m.size {
		return nil, 0, 0
	}
	i := sort.Search(len(m.turns), func(i int) bool { return m.turns[i].at > offset }) - 1
	t, end := m.turns[i], m.size
	if i+1 < len(m.turns) {
		end = m.turns[i+1].at
	}
	return m.logs[t.log], t.from + offset - t.at, end - offset
}

// File returns a handle of it as a file of a tree.
func (m *Merged) File(name string, id uint64) sigma.File {
	return &mergedFile{m: m, name: name, id: id}
}

type mergedFile struct {
	treeserver.Base
	m    *Merged
	name string
	id   uint64
}

var _ sigma.Watcher = (*mergedFile)(nil)

func (f *mergedFile) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("proclog.Walk", sigma.KindNotDir, f.name)
	}
	return f.m.File(f.name, f.id), nil, nil
}

func (f *mergedFile) Stat(context.Context) (sigma.Stat, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindFile, Path: f.id, Version: f.m.version}, Name: f.name,
		Perm: 0o444, Size: f.m.size, Modified: f.m.modified}, nil
}

func (f *mergedFile) Open(ctx context.Context, flags sigma.OpenFlags) error {
	for _, l := range f.m.logs { // both writers may be left waiting
		if err := (&file{log: l, name: f.name}).Open(ctx, flags); err != nil {
			return err
		}
	}
	return nil
}

func (f *mergedFile) ReadAt(ctx context.Context, p []byte, offset uint64) (n int, err error) {
	for n < len(p) {
		l, from, most := f.m.find(offset + uint64(n))
		if l == nil {
			break
		}
		got, err := (&file{log: l, name: f.name}).ReadAt(ctx, p[n:min(uint64(len(p)), uint64(n)+most)], from)
		if n += got; err != nil || got == 0 {
			return n, err
		}
	}
	return n, nil
}

// Watch implements sigma.Watcher.
func (f *mergedFile) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	for {
		f.m.mu.Lock()
		v := f.m.version
		if f.m.changed == nil {
			f.m.changed = make(chan struct{})
		}
		changed := f.m.changed
		f.m.mu.Unlock()
		if v > since {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, sigma.Wrap("proclog.Watch", f.name, ctx.Err())
		}
	}
}
