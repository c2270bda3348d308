// Package fence is how servers refuse what a deposed leader asks for (000 §3.6): they know the
// newest epoch of each fence that they have seen, and answer KindStale to requests that carry an
// older one.
//
// It promises that once a request of an epoch was admitted no request of an older epoch takes
// effect any more, also after a restart of the server: Table cancels those that are under way,
// waits until they have ended, has the new epoch saved, and only then admits. What it knows is
// bounded by FencesMax and NamesMax for each realm; it never forgets a fence, because then the
// deposed would be admitted again.
//
// It assumes one Table, or one Epochs, for all ways to the same files; and handlers that end soon
// after their context does. Where one lock or one goroutine orders all changes (memfs, named), an
// Epochs under it is enough.
//
// It is used by the server kit for tenants' trees, by diskfs for ux and s3, by memfs, and by
// named.
//
// Lock: Table.mu; nothing is called under it.
package fence

import (
	"fmt"

	"sigmaos.dev/sigma"
)

// Bounds.
const (
	// FencesMax is how many fences one realm may have at one server. One belongs to a service that
	// elects leaders, of which a realm has some tens.
	FencesMax = 4096
	// NamesMax bounds the bytes of their names.
	NamesMax = 1 << 20
	// JumpMax is how far an epoch may be ahead of the newest one that is known (of 0, if none is).
	// A fence that is elected for a thousand times a second gets there in seven weeks without a
	// server hearing of it; so what is farther is a mistake, and would shut out all leaders of a
	// fence for good.
	JumpMax = 1 << 32
)

// Epochs are the newest epochs that are known, by the fence's name. The zero value knows none. It
// is not safe for concurrent use.
type Epochs struct {
	newest map[string]sigma.Epoch
	bytes  int // of names
}

// Newest returns the newest epoch of a fence; 0 if there is none.
func (e *Epochs) Newest(name string) sigma.Epoch { return e.newest[name] }

// Len is how many fences are known.
func (e *Epochs) Len() int { return len(e.newest) }

// All calls f with each fence, in no order.
func (e *Epochs) All(f func(sigma.Fence)) {
	for name, epoch := range e.newest {
		f(sigma.Fence{Name: name, Epoch: epoch})
	}
}

// Check says what is to be done with a request that carries f: refuse it (KindStale if there is a
// newer epoch; KindInvalid or KindNoSpace if it cannot be a fence of ours), admit it, or admit it
// after its epoch was noted by Raise (newer).
func (e *Epochs) Check(f sigma.Fence) (newer bool, err error) {
	const op = "fence.Check"
	if f.Name == "" {
		return false, nil
	}
	known, ok := e.newest[f.Name]
	switch {
	case len(f.Name) > sigma.PathMax || f.Epoch == 0:
		return false, sigma.Errorf(op, sigma.KindInvalid, "a fence has a name of up to %d bytes, and an epoch from 1",
			sigma.PathMax)
	case f.Epoch < known:
		return false, Stale(f, known)
	case f.Epoch == known:
		return false, nil
	case f.Epoch-known > JumpMax:
		return false, &sigma.Error{Op: op, Path: f.Name, Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("epoch %d is too far ahead of %d, the newest that this server knows", f.Epoch, known),
			Hint: "epochs are made by AdvanceEpoch, one after the other; is the file of the epoch damaged?"}
	case !ok && (len(e.newest) >= FencesMax || e.bytes+len(f.Name) > NamesMax):
		return false, &sigma.Error{Op: op, Path: f.Name, Kind: sigma.KindNoSpace,
			Msg:  fmt.Sprintf("the realm has %d fences at this server and may have no more", len(e.newest)),
			Hint: "elect leaders by few names, and for ever the same"}
	}
	return true, nil
}

// Raise notes an epoch that Check called newer.
func (e *Epochs) Raise(f sigma.Fence) {
	if e.newest == nil {
		e.newest = map[string]sigma.Epoch{}
	}
	if _, ok := e.newest[f.Name]; !ok {
		e.bytes += len(f.Name)
	}
	e.newest[f.Name] = max(f.Epoch, e.newest[f.Name])
}

// Stale is the error for a request that carries f where a newer epoch is known.
func Stale(f sigma.Fence, known sigma.Epoch) *sigma.Error {
	return &sigma.Error{Op: "fence.Check", Path: f.Name, Kind: sigma.KindStale,
		Msg:  fmt.Sprintf("fenced: the request is of epoch %d, and there is a leader of epoch %d", f.Epoch, known),
		Hint: "another one leads now: stop, look up the new configuration, or stand for election again"}
}
