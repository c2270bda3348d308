package replica

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sigmaos.dev/lib/replica/wal"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A member's directory has segments of the log (package wal), and snapshots:
//
//	N.log      what follows snapshot N. Its first record says which state that is, and has all
//	           entries after it that the log had when the segment began
//	N.state    snapshot N, made whole: a hidden file until then
//
// N is a number in 16 hexadecimal digits. The member goes on from the latest snapshot and all
// segments from its number on. A segment is begun before its snapshot is written, and may lack it:
// then it goes on where the segment before it ended.

// disk is a member's directory. Run's goroutine uses it; spool may be called beside it.
type disk struct {
	files sigma.Namespace
	dir   string
	id    uint64
	log   *wal.Log
	hard  *pb.HardState        // as it was written last
	next  uint64               // number of the next segment or snapshot
	from  uint64               // number of the latest snapshot; 0 = none
	base  *pb.SnapshotMetadata // that snapshot's; index 0 = none
	size  int64                // likewise
	bytes int64                // of log since then
	full  bool                 // the log cannot grow
	again time.Time            // when it is tried to grow again
	image time.Time            // before which no snapshot is tried again
}

// logged is what a directory held.
type logged struct {
	hard    *pb.HardState
	entries []*pb.Entry
}

// put adds entries as raft appends them: those that it had from the first one's index on are void.
func (l *logged) put(entries []*pb.Entry, after uint64) error {
	if len(entries) == 0 {
		return nil
	}
	at := entries[0].GetIndex()
	for len(l.entries) > 0 && l.entries[len(l.entries)-1].GetIndex() >= at {
		l.entries = l.entries[:len(l.entries)-1]
	}
	if n := len(l.entries); n > 0 {
		after = l.entries[n-1].GetIndex()
	}
	if at != after+1 {
		return sigma.Errorf("replica.Open", sigma.KindInvalid, "the log is damaged: entry %d follows %d", at, after)
	}
	l.entries = append(l.entries, entries...)
	return nil
}

// logRecord is a record of the log.
type logRecord struct {
	id      uint64 // the member's
	hard    pb.HardState
	base    pb.SnapshotMetadata // of the first record of a segment
	entries []*pb.Entry
}

const recordForm = 1

func (x *logRecord) code(c *sigmap.Coder) {
	form := uint8(recordForm)
	if c.U8(&form); form != recordForm {
		c.Fail("a record of the log has a form that this program does not know")
	}
	c.U64(&x.id)
	codeMessage(c, &x.hard)
	codeMessage(c, &x.base)
	sigmap.List(c, &x.entries, 4, func(e **pb.Entry) {
		if *e == nil {
			*e = &pb.Entry{}
		}
		codeMessage(c, *e)
	})
}

func codeMessage(c *sigmap.Coder, m proto.Message) {
	var b []byte
	if !c.Decoding() {
		b, _ = proto.Marshal(m) // raft's own, which has no errors
	}
	if c.Data(&b); c.Decoding() && proto.Unmarshal(b, m) != nil {
		c.Fail("a record of the log has a part that raft does not know")
	}
}

// openDisk opens a directory, or makes it. The id is the member's. reserve is the room that the
// log keeps.
func openDisk(ctx context.Context, cfg *Config, reserve int64) (d *disk, l logged, err error) {
	d = &disk{files: cfg.Files, dir: cfg.Dir, id: cfg.ID, hard: &pb.HardState{}, base: pb.EnsureSnapshotMetadata(nil)}
	defer func() {
		if err != nil {
			d.close()
			err = sigma.Wrap("replica.Open", d.dir, err)
		}
	}()
	if err = d.files.MkdirAll(ctx, d.dir, 0o700); err != nil {
		return d, l, err
	}
	entries, err := d.files.ReadDir(ctx, d.dir)
	if err != nil {
		return d, l, err
	}
	for _, e := range entries {
		n, isState := wal.Number(e.Name, ".state")
		if isState {
			d.from = max(d.from, n)
		}
		m, _ := wal.Number(e.Name, ".log")
		d.next = max(d.next, n, m)
	}
	first := true
	d.log, err = wal.Open(ctx, wal.Config{Files: d.files, Dir: d.dir, Reserve: reserve}, d.from,
		func(segment uint64, record []byte) error {
			var x logRecord
			if err := decode(record, x.code); err != nil {
				return unreadable(err)
			}
			if x.id != d.id {
				return sigma.Errorf("replica.Open", sigma.KindInvalid, "the directory is that of another member")
			}
			if first && segment == d.from {
				d.base = pb.EnsureSnapshotMetadata(proto.CloneOf(&x.base))
			}
			if first = false; !raft.IsEmptyHardState(&x.hard) {
				d.hard = proto.CloneOf(&x.hard)
			}
			for _, e := range x.entries {
				d.bytes += entrySize(e)
			}
			return l.put(x.entries, d.base.GetIndex())
		})
	if err != nil {
		return d, l, unreadable(err)
	}
	if d.from > 0 && d.base.GetIndex() == 0 {
		return d, l, unreadable(sigma.Errorf("replica.Open", sigma.KindInvalid, "no log follows the latest snapshot"))
	}
	l.hard = proto.CloneOf(d.hard)
	// A request of the program that had the directory before may still be under way. It writes to
	// the segment that ends here.
	if err = d.cut(ctx, d.number(), nil, nil); sigma.KindOf(err) == sigma.KindNoSpace && d.log.Segment() > 0 {
		err = nil
	}
	d.grow(time.Now())
	return d, l, err
}

// unreadable tells what to do about a log that cannot be read. Errors of the way to it stay as they
// are.
func unreadable(err error) error {
	if err == nil || sigma.KindOf(err) != sigma.KindInvalid {
		return err
	}
	return &sigma.Error{Op: "replica.Open", Kind: sigma.KindInvalid, Msg: "the log cannot be read", Err: err,
		Hint: "remove the member's directory and add the member again, with a new id"}
}

func (d *disk) number() uint64 { d.next++; return d.next }

func (d *disk) state(number uint64) string { return fmt.Sprintf("%s/%016x.state", d.dir, number) }

// cut begins the segment after a snapshot, with the entries after that, or with base nil one that
// goes on.
func (d *disk) cut(ctx context.Context, number uint64, base *pb.SnapshotMetadata, entries []*pb.Entry) error {
	b, err := d.record(base, entries)
	if err != nil {
		return err
	}
	return d.log.Cut(ctx, number, b)
}

func (d *disk) record(base *pb.SnapshotMetadata, entries []*pb.Entry) ([]byte, error) {
	size := 256
	for _, e := range entries {
		size += int(entrySize(e))
	}
	x := logRecord{id: d.id, entries: entries}
	proto.Merge(&x.hard, d.hard)
	if base != nil {
		proto.Merge(&x.base, base)
	}
	return encode(x.code, size)
}

// file is a snapshot in a file.
type file struct {
	sigma.Handle
	size int64
}

func (f file) Size() int64 { return f.size }

// open opens a snapshot that is whole.
func (d *disk) open(ctx context.Context, number uint64) (file, error) {
	f, err := d.files.Open(ctx, d.state(number), sigma.OpenRead)
	if err != nil {
		return file{}, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return file{}, err
	}
	return file{f, int64(st.Size)}, nil
}

// restore gives the state of the latest snapshot to c.
func (d *disk) restore(ctx context.Context, c *core) error {
	f, err := d.open(ctx, d.from)
	if err != nil {
		return sigma.Wrap("replica.Open", d.state(d.from), err)
	}
	defer f.Close()
	if err := check(f); err != nil {
		return err
	}
	d.size = f.size
	return c.restore(d.base, f)
}

// Bounds of the entries in one record of save.
const (
	recordEntries = 8 << 20 // bytes, unless one entry has more
	recordCount   = 60_000  // a list has at most 65,535
)

// save writes entries and votes, and returns when they are on disk.
func (d *disk) save(hard *pb.HardState, entries []*pb.Entry) error {
	if raft.IsEmptyHardState(hard) && len(entries) == 0 {
		return nil
	}
	if !raft.IsEmptyHardState(hard) {
		d.hard = proto.CloneOf(hard)
	}
	for more := true; more; more = len(entries) > 0 {
		n, size := 0, int64(0)
		for n < len(entries) && n < recordCount && (n == 0 || size+entrySize(entries[n]) <= recordEntries) {
			size += entrySize(entries[n])
			n++
		}
		b, err := d.record(nil, entries[:n])
		if err == nil {
			err = d.log.Append(b)
		}
		if err != nil {
			return err
		}
		d.bytes += size
		entries = entries[n:]
	}
	return nil
}

// What failed for want of space is tried again after a while. A snapshot costs the more.
const (
	growPause  = time.Second
	imagePause = 30 * time.Second
)

// grow has the log make room in advance, and notes whether it could.
func (d *disk) grow(now time.Time) error {
	if now.Before(d.again) {
		return nil
	}
	err := d.log.Grow()
	if d.full = sigma.KindOf(err) == sigma.KindNoSpace; d.full {
		d.again = now.Add(growPause)
		return nil
	}
	return err
}

// spool makes the file of a snapshot, which nobody sees until it is closed, and gives its size.
func (d *disk) spool(ctx context.Context, number uint64, write func(io.Writer) (int64, error)) (file, error) {
	f, err := d.files.Create(ctx, d.state(number), sigma.OpenReadWrite|sigma.OpenHidden, 0o600)
	if err != nil {
		return file{}, err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	n, err := write(out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		f.Discard()
		return file{}, err
	}
	return file{f, n}, nil
}

// based notes that a snapshot is the one to go on from, and removes what it makes needless. What
// cannot be removed is left to the next time.
func (d *disk) based(ctx context.Context, number uint64, meta *pb.SnapshotMetadata, size int64) {
	d.from, d.base, d.size = number, meta, size
	d.log.Trim(ctx, number)
	entries, _ := d.files.ReadDir(ctx, d.dir)
	for _, e := range entries {
		if n, is := wal.Number(e.Name, ".state"); is && n < number {
			d.files.Remove(ctx, d.state(n))
		}
	}
}

// install makes a snapshot of the leader's the one to go on from. The segment is there first, since
// the snapshot needs it.
func (d *disk) install(ctx context.Context, in *incoming, meta *pb.SnapshotMetadata) error {
	if err := d.cut(ctx, in.number, meta, nil); err != nil {
		return err
	}
	if err := in.state.(file).Close(); err != nil {
		return err
	}
	f, err := d.open(ctx, in.number)
	if err == nil {
		in.state, in.whole = f, true
		d.bytes = 0
	}
	return err
}

func (d *disk) close() {
	if d.log != nil {
		d.log.Close()
	}
}
