package journal

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// A queue's log is a ring of files, each replaced when its turn comes, so that writing it makes no
// names and removes none. A file holds one batch: records of many requests. Batches are numbered;
// batch n is in file n modulo slots. Several are written at a time, and each counts once it and all
// before it are written: a batch after a gap was never acknowledged. It carries the epoch of the
// leader that wrote it. Batches of a log have epochs that never fall, by which a batch that an
// earlier leader left beyond a gap is told from the next leader's.
//
// A snapshot is a file `head` that names a set of chunks and the batch from which the log goes on.
// There are two sets, of which the one that is not named is being written.
const (
	slots = 2048
	// BatchMax bounds a record.
	BatchMax  = 56 << 10 // bytes of records: what one message carries, with room for the path
	putsMax   = 4        // full batches that are written at a time
	sealedMax = 32       // batches that wait for that; then requests wait
	together  = 16       // files that are read or written at a time, of snapshots and when a leader begins
	// a snapshot is due after so many bytes of log, or as many as the last one had
	snapshotAfter = 8 << 20
	retryPause    = 20 * time.Millisecond
)

// Names is what a journal needs of a realm's names.
type Names interface {
	Get(ctx context.Context, path string) ([]byte, sigma.FileID, error)
	Put(ctx context.Context, path string, data []byte, o sigma.PutOptions) (sigma.FileID, error)
	MkdirAll(ctx context.Context, path string, perm uint32) error
}

// Batch is records that are written together.
type Batch struct {
	number  uint64
	records []byte
	before  *Batch        // nil once it is written
	written chan struct{} // closed when it counts
}

// head is the file that names the latest snapshot.
type head struct {
	Chunks int    `json:"chunks"`
	Set    int    `json:"set"`   // 0 or 1
	From   uint64 `json:"from"`  // the first batch that is not in it
	Epoch  uint64 `json:"epoch"` // of who wrote it
}

// Settle waits until a batch, and so all before it, is written.
func (b *Batch) Settle(ctx context.Context) error {
	select {
	case <-b.written:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Journal writes batches. Its methods but Write need a lock of the caller's.
type Journal struct {
	names Names
	dir   string
	epoch uint64

	open     *Batch   // takes records
	sealed   []*Batch // full, or due, and not yet being written
	writing  int
	since    int // bytes since the last snapshot began
	last     head
	size     int  // of the last snapshot
	snapping bool // a snapshot is being written
}

// Open reads what is in a directory, which it makes if there is none: apply is called with the
// parts of the snapshot and with the batches after it, in order.
func Open(ctx context.Context, n Names, dir string, epoch uint64, apply func(records []byte) error) (*Journal, error) {
	j := &Journal{names: n, dir: dir, epoch: epoch}
	for _, dir := range []string{"/log", "/snapshot"} {
		if err := j.names.MkdirAll(ctx, j.dir+dir, 0o755); err != nil {
			return nil, err
		}
	}
	j.last = head{From: 1, Set: 1}
	text, _, err := j.names.Get(ctx, j.dir+"/head")
	if err == nil {
		j.last, err = decodeHead(text)
	} else if sigma.KindOf(err) == sigma.KindNotFound {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	chunks := make([][]byte, j.last.Chunks)
	err = each(ctx, len(chunks), func(ctx context.Context, i int) (err error) {
		chunks[i], _, err = j.names.Get(ctx, j.chunk(j.last.Set, i))
		return err
	})
	for _, c := range chunks {
		if j.size += len(c); err == nil {
			err = apply(c)
		}
	}
	if err != nil {
		return nil, err
	}
	number, epoch := j.last.From, j.last.Epoch
	for gap := false; !gap; {
		var files [together]([]byte)
		err := each(ctx, together, func(ctx context.Context, i int) (err error) {
			files[i], _, err = j.names.Get(ctx, j.slot(number+uint64(i)))
			if sigma.KindOf(err) == sigma.KindNotFound {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			n, e, records := decodeBatch(f)
			if gap = n != number || e < epoch; gap {
				break
			}
			epoch = e
			if err := apply(records); err != nil {
				return nil, err
			}
			number, j.since = number+1, j.since+len(records)
		}
	}
	if epoch > j.epoch {
		return nil, &sigma.Error{Op: "journal.Open", Path: j.dir, Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("the queue was written by a leader of epoch %d, and this is epoch %d", epoch, j.epoch),
			Hint: "leader.epoch was lost: write a higher epoch into it"}
	}
	before := &Batch{written: make(chan struct{})}
	close(before.written)
	j.open = &Batch{number: number, before: before, written: make(chan struct{})}
	return j, nil
}

func (j *Journal) slot(n uint64) string { return fmt.Sprintf("%s/log/%04d", j.dir, n%slots) }

func (j *Journal) chunk(set, i int) string { return fmt.Sprintf("%s/snapshot/%d-%05d", j.dir, set, i) }

// decodeBatch reads a file of the log; an empty one is batch 0, which there is not.
func decodeBatch(b []byte) (number, epoch uint64, records []byte) {
	number, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, 0, nil
	}
	epoch, m := binary.Uvarint(b[n:])
	if m <= 0 {
		return 0, 0, nil
	}
	return number, epoch, b[n+m:]
}

// decodeHead reads the file that names the snapshot.
func decodeHead(b []byte) (h head, err error) {
	if err = json.Unmarshal(b, &h); err == nil && (h.Chunks < 0 || h.Chunks > 1<<16 || h.Set&^1 != 0 || h.From == 0) {
		err = fmt.Errorf("it has %d chunks from batch %d", h.Chunks, h.From)
	}
	if err != nil {
		return head{}, &sigma.Error{Op: "journal.decodeHead", Path: "head", Kind: sigma.KindInvalid,
			Msg: "this names no snapshot", Hint: "restore the queue's directory from a snapshot of the names", Err: err}
	}
	return h, nil
}

// Add has a record written, and gives its batch. It has at most BatchMax bytes.
func (j *Journal) Add(record []byte) *Batch {
	if len(j.open.records)+len(record) > BatchMax {
		j.seal()
	}
	j.open.records = append(j.open.records, record...)
	return j.open
}

// Latest is the last batch that has something in it.
func (j *Journal) Latest() *Batch {
	if len(j.open.records) == 0 && j.open.before != nil {
		return j.open.before
	}
	return j.open
}

func (j *Journal) seal() {
	j.sealed = append(j.sealed, j.open)
	j.since += len(j.open.records)
	j.open = &Batch{number: j.open.number + 1, before: j.open, written: make(chan struct{})}
}

// Next gives a batch to write now, or nil. Records that fill no batch are written at once if
// nothing is being written, and else wait for that: all that come meanwhile cost one put together,
// where each would soon have had one of its own. Full batches wait while putsMax are being written,
// and all wait while the ring has no room.
func (j *Journal) Next() *Batch {
	if len(j.sealed) == 0 && len(j.open.records) > 0 && j.writing == 0 {
		j.seal()
	}
	if len(j.sealed) == 0 || j.writing == putsMax || j.sealed[0].number >= j.last.From+slots {
		return nil
	}
	b := j.sealed[0]
	j.sealed = j.sealed[1:]
	j.writing++
	return b
}

// Write writes a batch and waits for those before it.
func (j *Journal) Write(ctx context.Context, b *Batch) error {
	file := binary.AppendUvarint(binary.AppendUvarint(nil, b.number), j.epoch)
	if err := j.put(ctx, j.slot(b.number), append(file, b.records...)); err != nil {
		return err
	}
	if err := b.before.Settle(ctx); err != nil {
		return err
	}
	b.before = nil
	close(b.written)
	return nil
}

// Written is to be called when Write has returned.
func (j *Journal) Written() { j.writing-- }

// Behind is a batch to wait for before more is added, or nil.
func (j *Journal) Behind() *Batch {
	if len(j.sealed) < sealedMax {
		return nil
	}
	return j.sealed[0]
}

// SnapshotDue tells whether it is time for Snapshot.
func (j *Journal) SnapshotDue() bool {
	return !j.snapping && (j.since > max(snapshotAfter, j.size) || j.open.number-j.last.From > slots/2)
}

// Snapshot begins to replace the log so far by chunks, which have the whole state as it is now in
// parts of up to BatchMax bytes. write is to be called without the lock, and finish with it after
// that.
func (j *Journal) Snapshot(chunks [][]byte) (write func(ctx context.Context) error, finish func()) {
	if len(j.open.records) > 0 {
		j.seal()
	}
	size, before := 0, j.open.before
	for _, c := range chunks {
		size += len(c)
	}
	h := head{Chunks: len(chunks), Set: 1 - j.last.Set, From: j.open.number, Epoch: j.epoch}
	j.snapping, j.since = true, 0
	write = func(ctx context.Context) error {
		err := each(ctx, len(chunks), func(ctx context.Context, i int) error {
			return j.put(ctx, j.chunk(h.Set, i), chunks[i])
		})
		if err == nil && before != nil {
			err = before.Settle(ctx)
		}
		if err != nil {
			return err
		}
		text, err := json.Marshal(h)
		if err != nil {
			return err
		}
		return j.put(ctx, j.dir+"/head", text)
	}
	return write, func() { j.last, j.size, j.snapping = h, size, false }
}

// put writes a file, as often as it takes: doing it twice does no harm.
func (j *Journal) put(ctx context.Context, path string, data []byte) error {
	for {
		_, err := j.names.Put(ctx, path, data, sigma.PutOptions{Perm: 0o644})
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindLost && !kind.Retryable() {
			return err
		}
		if !retry.Pause(ctx, retryPause) {
			return ctx.Err()
		}
	}
}

// each calls do for 0 to n-1, several at a time, and gives an error of one.
func each(before context.Context, n int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(before)
	all.SetLimit(together)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		all.Go(func() error { return do(ctx, i) })
	}
	err := all.Wait()
	if cause := context.Cause(before); cause != nil {
		return cause
	}
	return err
}
