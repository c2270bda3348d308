// Package proclog keeps what procs write to their standard output and error: bounded logs that can
// be read and watched while the proc runs and after it has ended. Most procs write a few lines or
// nothing and are gone soon; so a log is in memory until it is longer, and a pipe is not waited for
// before its proc is somewhat older (Collector).
//
// Of a long log the first and the last bytes are kept. The log of a proc that lives for some time
// is in a file, which the next sigmad goes on with.
//
// It promises that a proc that writes without end costs at most LogMax of disk and never blocks for
// good, and that watchers miss nothing. Users: kernel.
package proclog

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// RealmMax bounds what all logs of one realm keep together.
const RealmMax = 1 << 30

const (
	// memoryMax bytes of a log are kept in memory; one that is longer goes to a file.
	memoryMax = 4 << 10
	// realmMemoryMax bounds what the logs of one realm keep in memory; what comes after goes to
	// files at once.
	realmMemoryMax = 8 << 20
)

// Budget counts what the logs of one realm keep. The zero value is an empty one.
type Budget struct {
	used   atomic.Int64 // bytes
	memory atomic.Int64 // of which in memory
}

// take reserves up to n bytes and returns how many.
func (b *Budget) take(n int) int {
	if over := b.used.Add(int64(n)) - RealmMax; over > 0 {
		back := min(int64(n), over)
		b.used.Add(-back)
		n -= int(back)
	}
	return n
}

// Log is one stream of one proc. Safe for concurrent use.
type Log struct {
	path    string
	budget  *Budget
	written atomic.Uint64 // bytes that came, kept or not

	mu     sync.Mutex
	memory []byte // mu; all that is kept, until there is a file
	attend func() // mu; has a writer that may still be left waiting looked after; nil = there is none
	// mu; open from the first byte to the end, as a machine remembers more procs than it can hold
	// files open
	file     *os.File
	created  bool          // mu; there is a file at path
	settled  bool          // mu; nothing is kept in memory any more
	stamps   []Stamp       // mu; oldest first
	gap      time.Duration // mu; between stamps
	ended    bool          // mu
	size     uint64        // mu; bytes that came and were stored, even if newer ones have taken their place
	dropped  uint64        // mu; bytes that there was no room for
	version  sigma.Version // mu; grows with each piece, and at the end
	changed  chan struct{} // mu; closed and dropped with each change; nil = nobody waits
	modified time.Time     // mu

	heard func(from, kept uint64) // mu; told of each change: the bytes kept by it; nil = nobody is
}

// New makes an empty log that will be kept in the file at path and counted in budget.
func New(path string, budget *Budget) *Log {
	return &Log{path: path, budget: budget, version: 1, modified: time.Now()}
}

// Copy reads r to its end into the log, then marks the end.
func (l *Log) Copy(r io.Reader) {
	buf := make([]byte, pieceMax)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			l.write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	l.End()
}

// End marks the end of the log, of one that nothing was ever written to too. Once is enough.
func (l *Log) End() {
	l.mu.Lock()
	ended := l.ended
	l.mu.Unlock()
	if !ended {
		l.bump(l.endLocked)
	}
}

func (l *Log) endLocked() {
	l.ended = true
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

func (l *Log) write(p []byte) {
	l.bump(func() {
		l.written.Add(uint64(len(p)))
		n := 0
		if !l.ended {
			l.noteLocked(l.size, time.Now())
			more := int(kept(l.size+uint64(len(p))) - kept(l.size))
			granted := l.budget.take(more)
			n = l.storeLocked(p[:len(p)-more+granted]) // a full disk drops output and is counted; the proc goes on
			l.budget.used.Add(int64(kept(l.size+uint64(n))-kept(l.size)) - int64(granted))
		}
		l.size += uint64(n)
		l.dropped += uint64(len(p) - n)
	})
}

// storeLocked adds p at the end and returns how much of it was stored.
func (l *Log) storeLocked(p []byte) (n int) {
	if !l.created && !l.settled && len(l.memory)+len(p) <= memoryMax && l.budget.memory.Load() < realmMemoryMax {
		l.memory = append(l.memory, p...)
		l.budget.memory.Add(int64(len(p)))
		return len(p)
	}
	if len(p) == 0 || !l.created && !l.makeFileLocked() || l.file == nil {
		return 0
	}
	return writeFile(l.file, p, l.size)
}

// makeFileLocked moves what is in memory to a file, and reports whether there is one; else it stays
// there.
func (l *Log) makeFileLocked() bool {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return false
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false
	}
	if _, err = f.WriteAt(l.memory, 0); err != nil {
		f.Close()
		os.Remove(l.path)
		return false
	}
	l.created, l.file = true, f
	l.dropMemoryLocked()
	return true
}

func (l *Log) dropMemoryLocked() {
	l.budget.memory.Add(-int64(len(l.memory)))
	l.memory = nil
}

func (l *Log) bump(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.size
	change()
	if l.heard != nil {
		l.heard(from, l.size-from)
	}
	l.version++
	l.modified = time.Now()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Written is how many bytes have come. It never waits.
func (l *Log) Written() uint64 { return l.written.Load() }

// Dropped counts the bytes that were not kept.
func (l *Log) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped + l.size - kept(l.size)
}

// InMemory reports whether the log has no file.
func (l *Log) InMemory() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.created
}

// Remove deletes the log.
func (l *Log) Remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
	if l.created {
		os.Remove(l.path)
		l.created = false
	}
	l.budget.used.Add(-int64(kept(l.size)))
	l.budget.memory.Add(-stampBytes * int64(len(l.stamps)))
	l.dropMemoryLocked()
	l.size, l.stamps = 0, nil
}

// File returns a handle of the log as a file of a tree. What is missing of it is what was missing
// when it was opened, so that what is added does not move what is read; what goes missing after
// cannot be read by it.
func (l *Log) File(name string, id uint64) sigma.File {
	f := &file{log: l, name: name, id: id}
	f.look()
	return f
}

type file struct {
	treeserver.Base
	log     *Log
	name    string
	id      uint64
	missing uint64 // between the first bytes and the last
}

var _ sigma.Watcher = (*file)(nil)

// lead is how much of the last bytes of a log that grows is not shown, so that who reads it has
// time before they go.
const lead = Tail / 4

// look notes what is missing now.
func (f *file) look() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.missing = f.log.size - kept(f.log.size)
	if f.missing > 0 && !f.log.ended {
		f.missing += lead
	}
}

func (f *file) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("proclog.Walk", sigma.KindNotDir, f.name)
	}
	return f.log.File(f.name, f.id), nil, nil
}

func (f *file) Stat(context.Context) (sigma.Stat, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	size := f.log.size
	if f.missing > 0 && size > 0 {
		size += MarkLen - f.missing
	}
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindFile, Path: f.id, Version: f.log.version}, Name: f.name,
		Perm: 0o444, Size: size, Modified: f.log.modified}, nil
}

func (f *file) Open(_ context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() {
		return sigma.PathError("proclog.Open", sigma.KindPermission, f.name)
	}
	f.log.mu.Lock()
	attend := f.log.attend
	f.log.mu.Unlock()
	if attend != nil {
		attend()
	}
	f.look()
	return nil
}

func (f *file) ReadAt(_ context.Context, p []byte, offset uint64) (n int, err error) {
	for n < len(p) {
		m, err := f.readPart(p[n:], offset+uint64(n))
		if n += m; err != nil && n == 0 {
			return 0, err
		}
		if m == 0 || err != nil { // an error is told when nothing else is read
			break
		}
	}
	return n, nil
}

// readPart reads of the first bytes, of the mark or of the last ones.
func (f *file) readPart(p []byte, offset uint64) (int, error) {
	switch {
	case f.missing == 0:
		return f.log.read(p, offset, f.name)
	case offset >= Head+MarkLen:
		return f.log.read(p, offset-MarkLen+f.missing, f.name)
	case offset >= Head:
		return copy(p, Mark(f.missing)[offset-Head:]), nil
	}
	return f.log.read(p[:min(uint64(len(p)), Head-offset)], offset, f.name)
}

// read reads bytes of the stream.
func (l *Log) read(p []byte, at uint64, name string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at >= l.size {
		return 0, nil
	}
	p = p[:min(uint64(len(p)), l.size-at)]
	if at < Head {
		p = p[:min(uint64(len(p)), Head-at)]
	} else if gone := l.size - kept(l.size); at < Head+gone {
		return 0, &sigma.Error{Op: "proclog.ReadAt", Path: name, Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("%d bytes that follow went missing while it was read: the proc prints faster",
				Head+gone-at), Hint: "sigma logs goes on behind them"}
	}
	if !l.created {
		return copy(p, l.memory[at:]), nil
	}
	from := l.file
	if from == nil {
		var err error
		if from, err = os.Open(l.path); err != nil {
			return 0, sigma.Wrap("proclog.ReadAt", name, err)
		}
		defer from.Close()
	}
	n, err := readFile(from, p, at)
	return n, sigma.Wrap("proclog.ReadAt", name, err)
}

// Watch implements sigma.Watcher.
func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	for {
		f.log.mu.Lock()
		v := f.log.version
		if v > since {
			f.log.mu.Unlock()
			return v, nil
		}
		if f.log.changed == nil {
			f.log.changed = make(chan struct{})
		}
		ch := f.log.changed
		f.log.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, sigma.Wrap("proclog.Watch", f.name, ctx.Err())
		}
	}
}

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
