package member

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/sigmap"
)

// A snapshot is all keys of the store at one moment, but for those that say who leads or is
// expelled: what is restored begins with one member and new machines.
//
//	"sigma names 1\n", number of keys u64,
//	for each key: its length u32, key, length of the value u32, value;
//	length 2^32-1 u32 and the SHA-256 of all before
const (
	snapshotMagic = "sigma names 1\n"
	snapshotEnd   = 1<<32 - 1
	snapshotsMax  = 2
	snapshotIdle  = time.Minute // since a piece was read last; what old values cost meanwhile is disk
	snapshotPiece = sigmap.DataMax - 1024
	keyMax        = 4096
	valueMax      = named.CommitBytesMax
)

// snapshot is one that is being read.
type snapshot struct {
	offset uint64 // of piece
	piece  []byte // the last that was read
	out    *io.PipeReader
	cancel context.CancelFunc
	idle   *time.Timer
	busy   chan struct{} // holds a token while nobody reads
}

func excluded(key string) bool {
	return strings.HasPrefix(key, leaderPrefix) || strings.HasPrefix(key, expelledPrefix)
}

// writeSnapshot writes the store as it was at a revision, when it had so many keys.
func (s *etcdStore) writeSnapshot(ctx context.Context, w io.Writer, revision int64, keys uint64) error {
	sum := sha256.New()
	b := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	b.WriteString(snapshotMagic)
	binary.Write(b, binary.LittleEndian, keys)
	var n uint64
	from, page := "\x00", int64(scanPage)
	for more := true; more; {
		r, err := s.client.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return err
		}
		size := 0
		for _, kv := range r.Kvs {
			if size += len(kv.Value); excluded(string(kv.Key)) {
				continue
			}
			n++
			writeBytes(b, kv.Key)
			if err := writeBytes(b, kv.Value); err != nil {
				return err
			}
		}
		if more = r.More; more {
			from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		}
		if page = scanPage; size > scanPageBytes {
			page = scanPageBig
		}
	}
	if n != keys {
		return fmt.Errorf("the store has %d keys instead of %d", n, keys)
	}
	binary.Write(b, binary.LittleEndian, uint32(snapshotEnd))
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

func writeBytes(w io.Writer, b []byte) error {
	if err := binary.Write(w, binary.LittleEndian, uint32(len(b))); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// snapshotAt returns the present revision and how many keys a snapshot of it has.
func (s *etcdStore) snapshotAt(ctx context.Context) (revision int64, keys uint64, err error) {
	r, err := s.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return 0, 0, err
	}
	keys = uint64(r.Count)
	for _, prefix := range []string{leaderPrefix, expelledPrefix} {
		x, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly(),
			clientv3.WithRev(r.Header.Revision))
		if err != nil {
			return 0, 0, err
		}
		keys -= uint64(x.Count)
	}
	return r.Header.Revision, keys, nil
}

// openSnapshot begins a snapshot of a realm; "" = of all. Nothing that it needs is compacted until
// it is closed.
func (l *leadership) openSnapshot(ctx context.Context, realm sigma.RealmID) (begun sigmap.Snapshot, err error) {
	const op = "named.snapshot"
	var revision int64
	var keys uint64
	var write func(w io.Writer) error
	term, cancel := context.WithCancel(l.ctx)
	if realm != "" {
		if err = realm.Check(); err == nil {
			keys, write, err = l.server.OpenRealmSnapshot(ctx, realm)
		}
		if err != nil {
			cancel()
			return begun, err
		}
	} else {
		if revision, keys, err = l.store.snapshotAt(ctx); err != nil {
			cancel()
			return begun, &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "the store of names does not answer",
				Err: err}
		}
		write = func(w io.Writer) error { return l.store.writeSnapshot(term, w, revision, keys) }
	}
	out, in := io.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.snapshots) >= snapshotsMax {
		cancel()
		return begun, &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: fmt.Sprintf("%d snapshots are being taken",
			snapshotsMax), Hint: "wait until they are done"}
	}
	if realm == "" && l.store.keep.Load() == 0 {
		l.store.keep.Store(revision) // an earlier one that is still read keeps more
	}
	l.number++
	number := l.number
	s := &snapshot{out: out, cancel: cancel, busy: make(chan struct{}, 1), idle: time.AfterFunc(snapshotIdle, func() {
		l.closeSnapshot(number)
	})}
	s.busy <- struct{}{}
	l.snapshots[number] = s
	go func() { in.CloseWithError(write(in)) }()
	return sigmap.Snapshot{Number: number, Keys: keys}, nil
}

func (l *leadership) readSnapshot(ctx context.Context, at sigmap.SnapshotAt) ([]byte, error) {
	const op = "named.snapshot"
	l.mu.Lock()
	s := l.snapshots[at.Number]
	l.mu.Unlock()
	if s == nil {
		return nil, sigma.Errorf(op, sigma.KindStale,
			"there is no such snapshot; the named that began it may have been replaced")
	}
	select {
	case <-s.busy:
	case <-ctx.Done():
		return nil, sigma.Wrap(op, "", ctx.Err())
	}
	defer func() { s.busy <- struct{}{} }()
	s.idle.Reset(snapshotIdle)
	switch {
	case at.Offset == s.offset && s.piece != nil:
		return s.piece, nil
	case at.Offset != s.offset+uint64(len(s.piece)):
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a snapshot is read in order; the next piece is at %d",
			s.offset+uint64(len(s.piece)))
	}
	piece := make([]byte, snapshotPiece)
	n, err := io.ReadFull(s.out, piece)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "the snapshot cannot go on",
			Hint: "begin it again", Err: err}
	}
	s.offset, s.piece = at.Offset, piece[:n:n]
	return s.piece, nil
}

func (l *leadership) closeSnapshot(number uint64) {
	l.mu.Lock()
	s := l.snapshots[number]
	delete(l.snapshots, number)
	if len(l.snapshots) == 0 {
		l.store.keep.Store(0)
	}
	l.mu.Unlock()
	if s != nil {
		s.idle.Stop()
		s.cancel()
		s.out.Close()
	}
}

func (l *leadership) closeSnapshots() {
	l.mu.Lock()
	var numbers []uint64
	for n := range l.snapshots {
		numbers = append(numbers, n)
	}
	l.mu.Unlock()
	for _, n := range numbers {
		l.closeSnapshot(n)
	}
}

// readSnapshot calls f for each key of a snapshot and returns an error unless all of it is there
// and as it was written. total is told before the first.
func readSnapshot(r io.Reader, f func(total uint64, key string, value []byte) error) (keys uint64, err error) {
	bad := func(format string, args ...any) error {
		return &sigma.Error{Op: "named.readSnapshot", Kind: sigma.KindInvalid,
			Msg: "not a whole snapshot of names: " + fmt.Sprintf(format, args...)}
	}
	in := &summed{r: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
	head := make([]byte, len(snapshotMagic)+8)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:len(snapshotMagic)]) != snapshotMagic {
		return 0, bad("its beginning is wrong")
	}
	total := binary.LittleEndian.Uint64(head[len(snapshotMagic):])
	for {
		key, end, err := readBytes(in, keyMax)
		switch {
		case err != nil:
			return keys, bad("after %d of %d keys: %v", keys, total, err)
		case end:
			want := in.sum.Sum(nil)
			got := make([]byte, sha256.Size)
			if _, err := io.ReadFull(in.r, got); err != nil || string(got) != string(want) {
				return keys, bad("its checksum is wrong")
			}
			if _, err := in.r.Read(got[:1]); !errors.Is(err, io.EOF) || keys != total {
				return keys, bad("there are %d of %d keys, or bytes after the end", keys, total)
			}
			return keys, nil
		}
		value, end, err := readBytes(in, valueMax)
		if err != nil || end {
			return keys, bad("after %d of %d keys: %v", keys, total, err)
		}
		if keys++; keys > total {
			return keys, bad("more than %d keys", total)
		}
		if err := f(total, string(key), value); err != nil {
			return keys, err
		}
	}
}

type summed struct {
	r   io.Reader
	sum hash.Hash
}

func (s *summed) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.sum.Write(b[:n])
	return n, err
}

func readBytes(r io.Reader, most int) (b []byte, end bool, err error) {
	var n uint32
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return nil, false, err
	}
	switch {
	case n == snapshotEnd:
		return nil, true, nil
	case n > uint32(most):
		return nil, false, fmt.Errorf("%d bytes in one piece", n)
	}
	b = make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, false, err
}

// CheckSnapshot reads a snapshot to its end and says how many names it has.
func CheckSnapshot(r io.Reader) (keys uint64, err error) {
	return readSnapshot(r, func(uint64, string, []byte) error { return nil })
}

// restoreBatch bounds what is written at once.
const (
	restoreKeys  = 500
	restoreBytes = 1 << 20
)

// Restore makes a store of one member in cfg.Dir, which must have none, of a snapshot. progress may
// be nil. A store that was not restored to the end is of no use: remove cfg.Dir and begin again.
func Restore(ctx context.Context, cfg Config, r io.Reader, progress func(keys, total uint64)) (keys uint64, err error) {
	const op = "named.Restore"
	s, err := startEtcd(cfg.withDefaults(), func(c *embed.Config) { c.InitialClusterToken = clusterToken() })
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if err := s.awaitReady(ctx); err != nil {
		return 0, err
	}
	if _, n, err := s.snapshotAt(ctx); err != nil || n > 0 {
		return 0, &sigma.Error{Op: op, Path: cfg.Dir, Kind: sigma.KindExists, Msg: "there are names already",
			Hint: "restore into a directory without names", Err: err}
	}
	var ops []clientv3.Op
	size, done := 0, uint64(0)
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		_, err := s.client.Txn(ctx).Then(ops...).Commit()
		ops, size = ops[:0], 0
		return sigma.Wrap(op, cfg.Dir, err)
	}
	keys, err = readSnapshot(r, func(total uint64, key string, value []byte) error {
		if excluded(key) {
			return sigma.Errorf(op, sigma.KindInvalid, "the snapshot has the key %q", key)
		}
		ops = append(ops, clientv3.OpPut(key, string(value)))
		size += len(key) + len(value)
		if len(ops) < restoreKeys && size < restoreBytes {
			return nil
		}
		done += uint64(len(ops))
		err := flush()
		if progress != nil {
			progress(done, total)
		}
		return err
	})
	if err == nil {
		err = flush()
	}
	return keys, err
}
