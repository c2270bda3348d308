package history

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// Recorder notes operations as clients perform them. Safe for concurrent use.
type Recorder struct {
	began time.Time
	w     io.Writer

	mu      sync.Mutex
	ops     []Op           // mu; if w is nil
	pending map[uint64]*Op // mu; by number
	count   uint64         // mu; of operations that began
	err     error          // mu; the first of writing
}

// NewRecorder makes a recorder. Each operation that has ended is written to w as a line at once;
// with nil it is kept in memory.
func NewRecorder(w io.Writer) *Recorder {
	return &Recorder{began: time.Now(), w: w, pending: map[uint64]*Op{}}
}

// now is the time in nanoseconds since 1970, as of the recorder's start, and from then on by the
// monotonic clock. Recorders of one machine agree as long as its clock is not set.
func (r *Recorder) now() int64 { return r.began.UnixNano() + int64(time.Since(r.began)) }

// Do has an operation performed and notes what became of it. Of op it takes Client, Kind, Key and
// what the kind needs. perform fills in Out and Version of what it is given, and may set Result; if
// it does not, ResultOf its error is noted. Do returns perform's error as it is. It fails by
// itself, with KindTooBig and without performing the operation, if OpsMax have begun.
func (r *Recorder) Do(op Op, perform func(op *Op) error) error {
	r.mu.Lock()
	if r.count >= OpsMax {
		r.mu.Unlock()
		return &sigma.Error{Op: "history.Do", Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("%d operations were recorded", OpsMax), Hint: "record for a shorter time"}
	}
	r.count++
	id := r.count
	op.Call, op.Result = r.now(), ""
	begun := op
	r.pending[id] = &begun
	r.mu.Unlock()

	err := perform(&op)
	op.Return = r.now()
	if op.Result == "" {
		op.Result = ResultOf(op.Kind, err)
	}
	if op.Result == Unknown {
		op.Return = 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[id] != nil { // else Close has written it
		delete(r.pending, id)
		r.noteLocked(&op)
	}
	return err
}

func (r *Recorder) noteLocked(op *Op) {
	if r.w == nil {
		r.ops = append(r.ops, *op)
		return
	}
	b, err := op.Encode()
	if err == nil {
		_, err = r.w.Write(b)
	}
	if r.err == nil {
		r.err = err
	}
}

// Close notes operations that have not ended as unknown. It returns the first error of writing, and
// all operations that were kept in memory, in order of their calls. Operations that end later are
// not noted again.
func (r *Recorder) Close() ([]Op, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, op := range r.pending {
		op.Result = Unknown
		r.noteLocked(op)
		delete(r.pending, id)
	}
	slices.SortStableFunc(r.ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	return r.ops, sigma.Wrap("history.Close", "", r.err)
}

// ResultOf is the result of an operation that ended with an error, or nil: KindNotFound is Absent,
// KindVersion and KindExists are Mismatch, what was certainly refused is Failed, and all else is
// Unknown, as is a result that the operation cannot have.
func ResultOf(k Kind, err error) Result {
	result := Unknown
	switch sigma.KindOf(err) {
	case sigma.KindNotFound:
		result = Absent
	case sigma.KindVersion, sigma.KindExists:
		result = Mismatch
	case sigma.KindUnavailable, sigma.KindBusy, sigma.KindInvalid, sigma.KindPermission, sigma.KindTooBig,
		sigma.KindUnsupported:
		return Failed
	}
	if err == nil {
		result = OK
	}
	if !slices.Contains(results[k], result) {
		return Unknown
	}
	return result
}

// Digest stands for a value in a history: the value itself, or the size and hash of a long one.
func Digest(value []byte) Text {
	if len(value) <= 256 {
		return Text(value)
	}
	return Text(fmt.Sprintf("%d bytes, sha256 %x", len(value), sha256.Sum256(value)))
}
