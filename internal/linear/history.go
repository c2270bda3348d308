package linear

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"sigmaos.dev/sigma"
)

const (
	// checkMax is how long the checker may take for one pair. Usual ones take milliseconds.
	checkMax = 20 * time.Second
	// LoyalID is the client that asks without waiting for answers. Of what waited longer than
	// loyalLong the last loyalKept are checked: the checker would try all subsets of them.
	LoyalID   = 1000
	loyalLong = int64(20 * time.Millisecond)
	loyalKept = 3
)

// History is what clients did and were told. The zero value is empty; all times are of one clock.
// Safe for concurrent use.
type History struct {
	mu       sync.Mutex
	start    time.Time             // mu
	ops      []porcupine.Operation // mu
	versions []uint64              // mu; some that were told
	texts    uint64                // mu; makes contents differ
}

// Choose draws an operation on one of so many pairs.
func (h *History) Choose(rng *rand.Rand, pairs int) In {
	dos := []Do{Get, Get, Get, Make, Make, Create, Put, PutAt, PutAt, Append, Append, Remove, Rename, Rename}
	in := In{Do: dos[rng.IntN(len(dos))], Pair: rng.IntN(pairs), Name: uint8(rng.IntN(2))}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch in.Do {
	case Make, Put, PutAt, Append:
		h.texts++
		in.Data = fmt.Sprintf("%d;", h.texts)
	}
	if in.Do == PutAt {
		in.Version = 1
		if n := len(h.versions); n > 0 {
			in.Version = h.versions[rng.IntN(n)]
		}
	}
	return in
}

// Ask has an operation performed and notes what became of it. known says whether that is known; err
// is one that no operation may answer.
func (h *History) Ask(client int, in In, perform func() (data string, version sigma.Version, err error)) (known bool,
	err error) {
	call := h.now()
	data, version, err := perform()
	o := porcupine.Operation{ClientId: client, Input: in, Call: call, Return: h.now()}
	out := Out{Data: data, Version: uint64(version)}
	if err != nil {
		out = Out{}
		switch kind := sigma.KindOf(err); kind {
		case sigma.KindNotFound:
			out.Result = None
		case sigma.KindExists:
			out.Result = Exists
		case sigma.KindVersion:
			out.Result = Other
		case sigma.KindUnavailable, sigma.KindBusy:
			return false, nil // it promises that it has not happened
		case sigma.KindLost, sigma.KindTimeout, sigma.KindCanceled,
			sigma.KindStale: // stale: the caller's machine was taken for lost
			if in.Do == Get {
				return false, nil
			}
			out.Result, o.Return = Lost, math.MaxInt64
		default:
			return false, fmt.Errorf("%s: %w (%v)", Describe(in, out), err, kind)
		}
	}
	o.Output = out
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	if out.Version != 0 && client != LoyalID { // whose answers may be left out
		if h.versions = append(h.versions, out.Version); len(h.versions) > 12 {
			h.versions = h.versions[1:]
		}
	}
	return out.Result != Lost, nil
}

func (h *History) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.start.IsZero() {
		h.start = time.Now()
	}
	return int64(time.Since(h.start))
}

// Check looks for an order that explains all. It counts the operations and those whose outcome is
// not known. What it cannot explain, or not within its time, is an error that says where the
// history is kept.
func (h *History) Check(name string) (total, lost int, err error) {
	h.mu.Lock()
	all := h.ops
	h.mu.Unlock()
	pairs := map[int][]porcupine.Operation{}
	for _, o := range all {
		in := o.Input.(In)
		pairs[in.Pair] = append(pairs[in.Pair], o)
		if o.Output.(Out).Result == Lost {
			lost++
		}
	}
	for pair, ops := range pairs {
		slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		ops = thinned(ops)
		result, info := Check(ops, checkMax)
		if result == porcupine.Ok {
			continue
		}
		base := filepath.Join(os.TempDir(), fmt.Sprintf("linear-%s-%d", name, pair))
		err = errors.Join(err, fmt.Errorf("%v: see %s.txt and .html", result, base),
			os.WriteFile(base+".txt", []byte(Print(ops)), 0o600), porcupine.VisualizePath(model(), info, base+".html"))
	}
	return len(all), lost, err
}

func thinned(ops []porcupine.Operation) []porcupine.Operation {
	left := [2]int{loyalKept, loyalKept}
	for i := len(ops) - 1; i >= 0; i-- {
		o := ops[i]
		if name := o.Input.(In).Name; o.ClientId == LoyalID && o.Return-o.Call > loyalLong {
			if left[name]--; left[name] < 0 {
				ops = slices.Delete(ops, i, i+1)
			}
		}
	}
	return ops
}
