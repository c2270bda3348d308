// Package output keeps what procs write to their standard output and error: bounded files that can be read and watched while the proc runs and after it has ended.
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
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// LogMax bounds one stream of one proc; what comes after is counted and dropped.
const LogMax = 16 << 20

// RealmMax bounds what all logs of one realm keep together.
const RealmMax = 1 << 30

// Budget counts what the logs of one realm keep. The zero value is an empty one.
type Budget struct{ used atomic.Int64 }

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
	file     *os.File      // mu; open from the first byte to the end, as a machine remembers more procs than it can hold files open
	made     bool          // mu; there is a file at path
	ended    bool          // mu
	size     uint64        // mu; bytes kept
	dropped  uint64        // mu
	version  sigma.Version // mu; grows with each piece, and at the end
	changed  chan struct{} // mu; closed and replaced with each change
	modified time.Time     // mu
}

// New makes an empty log that will be kept in the file at path and counted in budget.
func New(path string, budget *Budget) *Log {
	return &Log{path: path, budget: budget, version: 1, changed: make(chan struct{}), modified: time.Now()}
}

// buffers are for output that has come. Most procs are silent most of the time, and a buffer for each stream would be most of what sigmad holds for one that sleeps.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// Copy reads r to its end into the log, then marks the end.
func (l *Log) Copy(r io.Reader) {
	raw := rawOf(r)
	for l.copySome(r, raw) == nil {
	}
	l.End()
}

// copySome waits until r has something, without a buffer if r is a file that can be waited for, and takes it.
func (l *Log) copySome(r io.Reader, raw syscall.RawConn) (err error) {
	var buf *[64 << 10]byte
	n := 0
	read := func(from func([]byte) (int, error)) bool {
		buf = buffers.Get().(*[64 << 10]byte)
		if n, err = from(buf[:]); err == syscall.EAGAIN {
			buffers.Put(buf)
			buf, err = nil, nil
			return false
		}
		return true
	}
	if raw == nil {
		read(r.Read)
	} else if failed := raw.Read(func(fd uintptr) bool { return read(func(p []byte) (int, error) { return readFile(int(fd), p) }) }); failed != nil {
		err = failed // closed
	}
	if buf != nil {
		if n > 0 {
			l.write(buf[:n])
		}
		buffers.Put(buf)
	}
	return err
}

// rawOf gives nil for what is no file.
func rawOf(r io.Reader) syscall.RawConn {
	f, ok := r.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

func readFile(fd int, p []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, p)
		switch {
		case err == syscall.EINTR:
		case n == 0 && err == nil:
			return 0, io.EOF
		default:
			return max(n, 0), err
		}
	}
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
	l.written.Add(uint64(len(p)))
	l.bump(func() {
		if l.file == nil && !l.ended {
			if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err == nil {
				l.file, _ = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
				l.made = true
			}
		}
		keep := p[:min(uint64(len(p)), LogMax-min(l.size, LogMax))]
		n := 0
		if l.file != nil {
			granted := l.budget.take(len(keep))
			n, _ = l.file.WriteAt(keep[:granted], int64(l.size)) // a full disk drops output and is counted; the proc goes on
			l.budget.used.Add(int64(n - granted))
		}
		l.size += uint64(n)
		l.dropped += uint64(len(p) - n)
	})
}

func (l *Log) bump(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.version++
	l.modified = time.Now()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Written is how many bytes have come. It never waits.
func (l *Log) Written() uint64 { return l.written.Load() }

// Dropped is how many bytes were not kept.
func (l *Log) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Remove deletes the log.
func (l *Log) Remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
	if l.made {
		os.Remove(l.path)
		l.budget.used.Add(-int64(l.size))
		l.made, l.size = false, 0
	}
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
	return nil
}

func (f *file) ReadAt(_ context.Context, p []byte, offset uint64) (int, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if offset >= f.log.size {
		return 0, nil
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
		v, ch := f.log.version, f.log.changed
		f.log.mu.Unlock()
		if v > since {
			return v, nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, sigma.Wrap("output.Watch", f.name, ctx.Err())
		}
	}
}
