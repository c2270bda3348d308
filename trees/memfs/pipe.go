package memfs

import (
	"context"

	"sigmaos.dev/sigma"
)

// Named pipes. Opening one never waits; reading waits for a writer and for what it writes, writing
// for a reader and for room. A reader is at the end when the last writer that was there since it
// opened the pipe has gone and all is read; a writer whose readers have gone is told so. What is in
// the pipe is forgotten when nobody has it open.

const (
	// PipeMax is how many bytes a pipe holds that nobody has read yet, as on Linux. A pipe is
	// charged for all of them as long as it is there.
	PipeMax = 64 << 10
	// PipeAtomic is the longest piece that is never mixed with those of other writers, as on Linux.
	PipeAtomic = sigma.PipeAtomic
)

// pipe is guarded by Tree.mu, as the node that it belongs to.
type pipe struct {
	buf  []byte
	ends [2]struct {
		open int    // handles now
		ever uint64 // handles that there have been
	}
	wake chan struct{} // closed at the next change; nil when nobody waits
}

// The ends of a pipe.
const (
	reading = iota
	writing
)

// end is what a handle of an open pipe knows.
type end struct {
	side  int
	since uint64 // how many had been at the other end and gone when this one was opened
}

func (p *pipe) wakeLocked() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// openPipeLocked makes f one end of its pipe.
func (f *file) openPipeLocked(op string, flags sigma.OpenFlags) error {
	side := reading
	if flags.Writes() {
		side = writing
	}
	if flags&sigma.OpenReadWrite != 0 {
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: "a pipe is open for reading or for writing",
			Hint: "open it twice"}
	}
	p := f.n.pipe
	other := p.ends[1-side]
	f.end = end{side: side, since: other.ever - uint64(other.open)}
	if side == reading && len(p.buf) > 0 { // whose writers may have gone already
		f.end.since--
	}
	p.ends[side].open++
	p.ends[side].ever++
	f.open, f.flags = true, flags
	p.wakeLocked()
	return nil
}

// closePipeLocked takes f's end away.
func (f *file) closePipeLocked() {
	p := f.n.pipe
	if p == nil || !f.open {
		return
	}
	p.ends[f.end.side].open--
	if p.ends[reading].open+p.ends[writing].open == 0 {
		p.buf = nil
	}
	p.wakeLocked()
}

// awaitLocked gives up Tree.mu until the pipe has changed, and fails if the caller gives up or
// closes the handle.
func (f *file) awaitLocked(ctx context.Context, op string) error {
	p := f.n.pipe
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	wake := p.wake
	f.t.mu.Unlock()
	defer f.t.mu.Lock()
	select {
	case <-wake:
	case <-ctx.Done():
		return sigma.Wrap(op, "", ctx.Err())
	}
	if f.closed.Load() {
		return sigma.Errorf(op, sigma.KindCanceled, "the handle was closed")
	}
	return nil
}

// goneLocked says whether somebody was at the other end since f was opened, and nobody is now.
func (f *file) goneLocked() bool {
	other := f.n.pipe.ends[1-f.end.side]
	return other.open == 0 && other.ever > f.end.since
}

// readPipeLocked takes what is there, once something is.
func (f *file) readPipeLocked(ctx context.Context, op string, to []byte) (int, error) {
	p := f.n.pipe
	for len(p.buf) == 0 && len(to) > 0 && !f.goneLocked() {
		if err := f.awaitLocked(ctx, op); err != nil {
			return 0, err
		}
	}
	n := copy(to, p.buf)
	if p.buf = p.buf[n:]; len(p.buf) == 0 {
		p.buf = nil
	}
	if n > 0 {
		p.wakeLocked()
	}
	return n, nil
}

// writePipeLocked puts all of data into the pipe, which may take several readings. With an error,
// what was counted has gone.
func (f *file) writePipeLocked(ctx context.Context, op string, data []byte) (int, error) {
	p := f.n.pipe
	for done := 0; ; {
		if f.goneLocked() && done < len(data) {
			kind := sigma.KindUnavailable
			if done > 0 {
				kind = sigma.KindLost
			}
			return done, &sigma.Error{Op: op, Path: f.n.name, Kind: kind, Msg: "nobody reads the pipe any more"}
		}
		room, left := PipeMax-len(p.buf), len(data)-done
		if left == 0 {
			return done, nil
		}
		if p.ends[reading].open > 0 && (room >= left || room > 0 && len(data) > PipeAtomic) {
			n := min(room, left)
			p.buf = append(p.buf, data[done:done+n]...)
			done += n
			p.wakeLocked()
			continue
		}
		if err := f.awaitLocked(ctx, op); err != nil {
			return done, err
		}
	}
}

// FileID implements sigma.Identified.
func (f *file) FileID() sigma.FileID {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	return f.n.fileID()
}
