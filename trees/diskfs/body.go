package diskfs

import (
	"math"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// readAt fills p, or as much of it as the file has.
func (b *body) readAt(p []byte, offset uint64) (int, error) {
	done := 0
	for done < len(p) && offset <= math.MaxInt64-uint64(len(p)) {
		n, err := unix.Pread(b.fd, p[done:], int64(offset)+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

// edit is one change of the bytes of a file.
type edit struct {
	ifVersion sigma.Version            // if not 0: KindVersion unless the file is at it
	end       func(size uint64) uint64 // where it ends, given the size now; the file grows to there
	now       *sigma.Version           // where to tell the new version, if not nil
	cut       bool                     // the file ends there afterwards, also if it was longer
	apply     func() error
}

// change runs an edit alone. It charges the growth before, puts the charge right if the edit did
// not reach so far, and gives the file a new version.
func (b *body) change(op string, e edit) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	sp := b.sp
	if sp.t.cfg.Policy.Objects && b.temp == "" {
		return sigma.Errorf(op, sigma.KindUnsupported, "a published object cannot be changed")
	}
	if b.fixed {
		return unix.EROFS
	}
	if err := b.reclaimLocked(op); err != nil {
		return err
	}
	if e.ifVersion != 0 && !b.isAt(e.ifVersion) {
		return sigma.Errorf(op, sigma.KindVersion, "the file has changed")
	}
	old, want := b.size, e.end(b.size)
	if want > old {
		if err := sp.charge(op, want-old); err != nil {
			b.bad = true
			return err
		}
	} else if !e.cut {
		want = old
	}
	err := e.apply()
	if err != nil {
		b.bad = true
		want = b.settle(old, want)
	}
	if want < old {
		sp.uncharge(old - want)
	}
	v := b.changed(want)
	if e.now != nil {
		*e.now = v
	}
	if serr := stamp(b.fd, "", v); err == nil {
		err = serr
	}
	return err
}

// settle finds the size after an edit failed half-way, and charges no more than that of what was
// charged before.
func (b *body) settle(old, want uint64) uint64 {
	var st unix.Stat_t
	if unix.Fstat(b.fd, &st) != nil {
		return want
	}
	size := uint64(st.Size)
	if top := max(old, want); top > max(old, size) {
		b.sp.uncharge(top - max(old, size))
	}
	return size
}

// changed records the new size and gives a new version, in memory.
func (b *body) changed(size uint64) sigma.Version {
	sp := b.sp
	sp.mu.Lock()
	defer sp.mu.Unlock()
	v := b.version
	if b.node != nil {
		v = max(v, b.node.version)
	}
	v = sp.t.clock.after(v)
	b.size, b.version = size, v
	if n := b.node; n != nil {
		n.version = v
		n.wakeLocked()
	}
	return v
}

// place says where a write goes.
type place struct {
	offset    uint64
	atEnd     bool          // instead of offset
	ifVersion sigma.Version // if not 0: KindVersion unless the file is at it
	now       *sigma.Version
}

// writeAt writes all of p.
func (b *body) writeAt(op string, p []byte, at place) (int, error) {
	if len(p) == 0 && at.ifVersion == 0 {
		if at.now != nil {
			*at.now = b.fileID().Version
		}
		return 0, nil
	}
	if !at.atEnd && at.offset > math.MaxInt64-uint64(len(p)) {
		return 0, sigma.Errorf(op, sigma.KindTooBig, "no file reaches to offset %d", at.offset)
	}
	done := 0
	end := func(size uint64) uint64 {
		if at.atEnd {
			at.offset = size
		}
		return at.offset + uint64(len(p))
	}
	err := b.change(op, edit{ifVersion: at.ifVersion, now: at.now, end: end, apply: func() error {
		for done < len(p) {
			n, err := unix.Pwrite(b.fd, p[done:], int64(at.offset)+int64(done))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			done += n
		}
		return nil
	}})
	return done, err
}

// resize cuts the file or extends it by a hole.
func (b *body) resize(op string, size uint64) error {
	if size > math.MaxInt64 {
		return sigma.Errorf(op, sigma.KindTooBig, "no file can have %d bytes", size)
	}
	err := b.change(op, edit{end: func(uint64) uint64 { return size }, cut: true, apply: func() error {
		return retry(func() error { return unix.Ftruncate(b.fd, int64(size)) })
	}})
	return wrap(op, "", err)
}

func (b *body) fileID() sigma.FileID {
	b.sp.mu.Lock()
	defer b.sp.mu.Unlock()
	return sigma.FileID{Kind: sigma.KindFile, Path: b.id, Version: b.version}
}
