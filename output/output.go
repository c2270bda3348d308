// Package output keeps what procs write to their standard output and error: bounded logs that can be read and watched while the proc runs and after it has ended. Most procs
// write a few lines or nothing and are gone soon; so a log is in memory until it is longer, and a pipe is not waited for before its proc is somewhat older (Collector).
//
// It promises that a proc that writes without end costs at most LogMax of disk and never blocks for good, and that watchers miss nothing. Users: kernel.
package output

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// LogMax bounds one stream of one proc; what comes after is counted and dropped.
const LogMax = 16 << 20

// RealmMax bounds what all logs of one realm keep together.
const RealmMax = 1 << 30

const (
	// memoryMax bytes of a log are kept in memory; one that is longer goes to a file.
	memoryMax = 4 << 10
	// realmMemoryMax bounds what the logs of one realm keep in memory; what comes after goes to files at once.
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

	mu       sync.Mutex
	memory   []byte        // mu; all that is kept, until there is a file
	attend   func()        // mu; has a writer that may still be left waiting looked after; nil = there is none
	file     *os.File      // mu; open from the first byte to the end, as a machine remembers more procs than it can hold files open
	made     bool          // mu; there is a file at path
	ended    bool          // mu
	size     uint64        // mu; bytes kept
	dropped  uint64        // mu
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
		keep := p[:min(uint64(len(p)), LogMax-min(l.size, LogMax))]
		n := 0
		if !l.ended {
			granted := l.budget.take(len(keep))
			n = l.storeLocked(keep[:granted]) // a full disk drops output and is counted; the proc goes on
			l.budget.used.Add(int64(n - granted))
		}
		l.size += uint64(n)
		l.dropped += uint64(len(p) - n)
	})
}

// storeLocked adds p at the end and returns how much of it was stored.
func (l *Log) storeLocked(p []byte) (n int) {
	if !l.made && len(l.memory)+len(p) <= memoryMax && l.budget.memory.Load() < realmMemoryMax {
		l.memory = append(l.memory, p...)
		l.budget.memory.Add(int64(len(p)))
		return len(p)
	}
	if !l.made {
		if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
			return 0
		}
		f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return 0
		}
		l.made = true
		if _, err = f.WriteAt(l.memory, 0); err != nil { // what is in memory stays there
			f.Close()
			os.Remove(l.path)
			l.made = false
			return 0
		}
		l.file = f
		l.dropMemoryLocked()
	}
	if l.file != nil {
		n, _ = l.file.WriteAt(p, int64(l.size))
	}
	return n
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

// Dropped is how many bytes were not kept.
func (l *Log) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// InMemory reports whether the log has no file.
func (l *Log) InMemory() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.made
}

// Remove deletes the log.
func (l *Log) Remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
	if l.made {
		os.Remove(l.path)
		l.made = false
	}
	l.budget.used.Add(-int64(l.size))
	l.dropMemoryLocked()
	l.size = 0
}

// File returns a handle of the log as a file of a tree.
func (l *Log) File(name string, id uint64) sigma.File { return &file{log: l, name: name, id: id} }

type file struct {
	treekit.Base
	log  *Log
	name string
	id   uint64
}

var _ sigma.Watcher = (*file)(nil)

func (f *file) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("output.Walk", sigma.KindNotDir, f.name)
	}
	return &file{log: f.log, name: f.name, id: f.id}, nil, nil
}

func (f *file) Stat(context.Context) (sigma.Stat, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindFile, Path: f.id, Version: f.log.version}, Name: f.name, Perm: 0o444, Size: f.log.size, Modified: f.log.modified}, nil
}

func (f *file) Open(_ context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() {
		return sigma.PathError("output.Open", sigma.KindPermission, f.name)
	}
	f.log.mu.Lock()
	attend := f.log.attend
	f.log.mu.Unlock()
	if attend != nil {
		attend()
	}
	return nil
}

func (f *file) ReadAt(_ context.Context, p []byte, offset uint64) (int, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if offset >= f.log.size {
		return 0, nil
	}
	if !f.log.made {
		return copy(p, f.log.memory[offset:]), nil
	}
	from := f.log.file
	if from == nil {
		var err error
		if from, err = os.Open(f.log.path); err != nil {
			return 0, sigma.Wrap("output.ReadAt", f.name, err)
		}
		defer from.Close()
	}
	n, err := from.ReadAt(p[:min(uint64(len(p)), f.log.size-offset)], int64(offset))
	if err == io.EOF {
		err = nil
	}
	return n, sigma.Wrap("output.ReadAt", f.name, err)
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
			return 0, sigma.Wrap("output.Watch", f.name, ctx.Err())
		}
	}
}
