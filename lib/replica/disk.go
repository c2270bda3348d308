package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"sigmaos.dev/sigma"
)

// A member's directory has
//
//	lock          held by the program that has the directory open
//	log/          etcd's write-ahead log: entries, votes, and which snapshots there are
//	TERM-INDEX    a snapshot, in hexadecimal digits, that the log names
//	*.tmp         a snapshot that was not finished
//
// A snapshot counts when the log names it, which it does when the file is on disk.

// disk is a member's directory.
type disk struct {
	dir   string
	lock  *fileutil.LockedFile
	log   *wal.WAL
	base  *pb.SnapshotMetadata // the latest snapshot; index 0 = none
	size  int64                // that snapshot's
	bytes int64                // of log since then
}

// logged is what a directory held.
type logged struct {
	hard    *pb.HardState
	entries []*pb.Entry
}

// openDisk opens a directory, or makes it. The id is the member's.
func openDisk(dir string, id uint64) (d *disk, l logged, err error) {
	d = &disk{dir: dir, base: pb.EnsureSnapshotMetadata(nil)}
	defer func() {
		if err != nil {
			d.close()
			err = sigma.Wrap("replica.Open", dir, err)
		}
	}()
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return d, l, err
	}
	d.lock, err = fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return d, l, &sigma.Error{Op: "replica.Open", Path: dir, Kind: sigma.KindBusy,
			Msg: "another program has the directory open", Hint: "each member has a directory of its own"}
	}
	if err != nil {
		return d, l, err
	}
	metadata := binary.LittleEndian.AppendUint64(nil, id)
	if !wal.Exist(d.logDir()) {
		d.log, err = wal.Create(nil, d.logDir(), metadata)
		return d, l, err
	}
	if err = d.findBase(); err != nil {
		return d, l, err
	}
	owner, l, err := d.read()
	if err == nil && string(owner) != string(metadata) {
		err = sigma.Errorf("replica.Open", sigma.KindInvalid, "the directory is that of another member")
	}
	return d, l, err
}

func (d *disk) logDir() string { return filepath.Join(d.dir, "log") }

func (d *disk) path(m *pb.SnapshotMetadata) string {
	return filepath.Join(d.dir, fmt.Sprintf("%016x-%016x", m.GetTerm(), m.GetIndex()))
}

// findBase finds the latest snapshot that the log names.
func (d *disk) findBase() error {
	all, err := wal.ValidSnapshotEntries(nil, d.logDir())
	if err != nil {
		return unreadable(err)
	}
	for _, s := range all {
		if s.GetIndex() >= d.base.GetIndex() {
			d.base = &pb.SnapshotMetadata{Index: new(s.GetIndex()), Term: new(s.GetTerm()),
				ConfState: pb.EnsureConfState(s.ConfState)}
		}
	}
	return nil
}

// read reads the log after the snapshot, and makes it ready to be written. What a crash left
// unfinished at its end was acknowledged to nobody, and is cut off.
func (d *disk) read() (owner []byte, l logged, err error) {
	at := &walpb.Snapshot{Index: new(d.base.GetIndex()), Term: new(d.base.GetTerm())}
	for repaired := false; ; repaired = true {
		if d.log, err = wal.Open(nil, d.logDir(), at); err != nil {
			return nil, l, unreadable(err)
		}
		owner, l.hard, l.entries, err = d.log.ReadAll()
		if err == nil {
			break
		}
		d.log.Close()
		d.log = nil
		if repaired || !errors.Is(err, io.ErrUnexpectedEOF) || !wal.Repair(nil, d.logDir()) {
			return nil, l, unreadable(err)
		}
	}
	for i, e := range l.entries {
		// What the member had when the leader's snapshot came, and the snapshot took the place of.
		if e.GetTerm() < d.base.GetTerm() {
			l.entries = l.entries[:i]
			break
		}
		d.bytes += entrySize(e)
	}
	return owner, l, nil
}

func unreadable(err error) error {
	return &sigma.Error{Op: "replica.Open", Kind: sigma.KindInvalid, Msg: "the log cannot be read", Err: err,
		Hint: "remove the member's directory and add the member again, with a new id"}
}

// file is a snapshot in a file.
type file struct {
	*os.File
	size int64
}

func (f file) Size() int64 { return f.size }

func openFile(path string) (file, error) {
	f, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return file{}, err
	}
	return file{f, st.Size()}, nil
}

// restore gives the state of the latest snapshot to c.
func (d *disk) restore(c *core) error {
	f, err := openFile(d.path(d.base))
	if err != nil {
		return sigma.Wrap("replica.Open", d.path(d.base), err)
	}
	defer f.Close()
	if err := check(f); err != nil {
		return err
	}
	d.size = f.size
	return c.restore(d.base, f)
}

// save writes entries and votes, and returns when they are on disk.
func (d *disk) save(hard *pb.HardState, entries []*pb.Entry) error {
	for _, e := range entries {
		d.bytes += entrySize(e)
	}
	if raft.IsEmptyHardState(hard) {
		hard = &pb.HardState{}
	}
	return d.log.Save(hard, entries)
}

// spool writes a snapshot into a file that does not count yet, and gives its size.
func (d *disk) spool(name string, write func(io.Writer) (int64, error)) (int64, error) {
	f, err := os.OpenFile(filepath.Join(d.dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := write(f)
	if err == nil {
		err = fileutil.Fsync(f)
	}
	return n, errors.Join(err, f.Close())
}

// install makes a spooled snapshot count.
func (d *disk) install(name string, meta *pb.SnapshotMetadata) error {
	if err := os.Rename(filepath.Join(d.dir, name), d.path(meta)); err != nil {
		return err
	}
	dir, err := fileutil.OpenDir(d.dir)
	if err != nil {
		return err
	}
	err = errors.Join(fileutil.Fsync(dir), dir.Close())
	if err != nil {
		return err
	}
	return d.log.SaveSnapshot(&walpb.Snapshot{Index: meta.Index, Term: meta.Term, ConfState: meta.ConfState})
}

// tidy removes what the snapshot meta makes needless. What cannot be removed is left to the next
// time.
func (d *disk) tidy(meta *pb.SnapshotMetadata) {
	if d.log.ReleaseLockTo(meta.GetIndex()) != nil {
		return
	}
	keep := filepath.Base(d.path(meta))
	all, _ := os.ReadDir(d.dir)
	for _, e := range all {
		if name := e.Name(); len(name) == len(keep) && name < keep && !strings.HasSuffix(name, ".tmp") {
			os.Remove(filepath.Join(d.dir, name))
		}
	}
	segments, _ := filepath.Glob(filepath.Join(d.logDir(), "*.wal")) // the oldest first
	for _, s := range segments {
		l, err := fileutil.TryLockFile(s, os.O_WRONLY, 0o600)
		if err != nil {
			return // the log holds it, and all later ones
		}
		os.Remove(s)
		l.Close()
	}
}

func (d *disk) close() error {
	var err error
	if d.log != nil {
		err = d.log.Close()
		d.log = nil
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
		d.lock = nil
	}
	return err
}
