package history

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"sigmaos.dev/sigma"
)

const (
	// keyOpsMax bounds the operations on one key that are checked. The checker keeps n*n/8 bytes of
	// n: 300 MB.
	keyOpsMax = 50_000
	// htmlOpsMax bounds the operations of a picture, which has each of many orders in full.
	htmlOpsMax = 2000
	// violationsMax is how many keys' violations are explained.
	violationsMax = 4
)

// Verdict is what Check finds.
type Verdict string

// The verdicts.
const (
	Linearizable Verdict = "linearizable"
	Violated     Verdict = "not linearizable"
	Undecided    Verdict = "undecided" // in the time that was given
)

// Report is what became of a check.
type Report struct {
	Verdict    Verdict       `json:"verdict"`
	Model      string        `json:"model"`
	Ops        int           `json:"operations"`
	Unknown    int           `json:"unknown"` // operations with unknown result
	Failed     int           `json:"failed"`  // operations that did not happen
	Keys       int           `json:"keys"`
	Bad        []Text        `json:"violated,omitempty"`  // keys
	Undecided  []Text        `json:"undecided,omitempty"` // keys
	Took       time.Duration `json:"took_ns"`
	Violations []*Violation  `json:"violations,omitempty"` // the earliest ones, explained
}

// keyCheck is the history of one key.
type keyCheck struct {
	model   Model
	key     Text
	ops     []*Op // in order of their calls
	verdict Verdict
	until   time.Time
}

// Check looks for an order of the operations on each key that explains all answers, for as long as
// most (0 = without end), on all cores. KindInvalid: the model has not all operations.
func Check(h *History, m Model, most time.Duration) (*Report, error) {
	began := time.Now()
	r := &Report{Verdict: Linearizable, Model: m.name, Ops: len(h.Ops)}
	checks, err := partition(h, m, r)
	if err != nil {
		return nil, err
	}
	if most > 0 {
		for _, k := range checks {
			k.until = began.Add(most)
		}
	}
	checkAll(checks)
	bad := map[Text]*keyCheck{}
	for _, k := range checks {
		switch k.verdict {
		case Violated:
			r.Bad = append(r.Bad, k.key)
			bad[k.key] = k
		case Undecided:
			r.Undecided = append(r.Undecided, k.key)
		}
	}
	switch {
	case len(r.Bad) > 0:
		r.Verdict = Violated
	case len(r.Undecided) > 0:
		r.Verdict = Undecided
	}
	slices.Sort(r.Bad)
	slices.Sort(r.Undecided)
	for _, key := range r.Bad[:min(len(r.Bad), violationsMax)] {
		r.Violations = append(r.Violations, explain(h, bad[key]))
	}
	slices.SortStableFunc(r.Violations, func(a, b *Violation) int { return cmp.Compare(a.Op.Return, b.Op.Return) })
	r.Took = time.Since(began)
	return r, nil
}

// partition divides a history by key, and counts. The keys that are quickest to decide are first.
func partition(h *History, m Model, r *Report) ([]*keyCheck, error) {
	keys := map[Text]*keyCheck{}
	var checks []*keyCheck
	for i := range h.Ops {
		op := &h.Ops[i]
		if err := cmp.Or(m.takes(op.Kind), op.check()); err != nil {
			return nil, sigma.Wrap("history.Check", "", err)
		}
		k := keys[op.Key]
		if k == nil {
			k = &keyCheck{model: m, key: op.Key}
			keys[op.Key] = k
			checks = append(checks, k)
		}
		switch {
		case op.Result == Failed:
			r.Failed++
			continue
		case op.Result == Unknown:
			if r.Unknown++; op.Kind == Get {
				continue
			}
		}
		k.ops = append(k.ops, op)
	}
	r.Keys = len(keys)
	for _, k := range checks {
		slices.SortStableFunc(k.ops, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	}
	slices.SortStableFunc(checks, func(a, b *keyCheck) int { return cmp.Compare(len(a.ops), len(b.ops)) })
	return checks, nil
}

// checkAll decides each key.
func checkAll(checks []*keyCheck) {
	work := make(chan *keyCheck)
	var workers sync.WaitGroup
	for range min(len(checks), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for k := range work {
				k.verdict = k.decide(k.ops)
			}
		})
	}
	for _, k := range checks {
		work <- k
	}
	close(work)
	workers.Wait()
}

// decide checks operations of a key.
func (k *keyCheck) decide(ops []*Op) Verdict {
	most := time.Duration(0)
	if !k.until.IsZero() {
		if most = time.Until(k.until); most <= 0 {
			return Undecided
		}
	}
	if len(ops) > keyOpsMax {
		return Undecided
	}
	switch porcupine.CheckOperationsTimeout(k.model.porcupine(), operations(ops), most) {
	case porcupine.Ok:
		return Linearizable
	case porcupine.Illegal:
		return Violated
	}
	return Undecided
}

// operations are ops as the checker takes them, and the end.
func operations(ops []*Op) []porcupine.Operation {
	clients := map[int]int{} // numbered from 0, as pictures need it
	out := make([]porcupine.Operation, 0, len(ops)+1)
	last := int64(math.MinInt64)
	add := func(op *Op, client int, call, ret int64) {
		out = append(out, porcupine.Operation{ClientId: client, Input: op, Output: op, Call: call, Return: ret})
	}
	for _, op := range ops {
		if _, known := clients[op.Client]; !known {
			clients[op.Client] = len(clients)
		}
		ret := int64(math.MaxInt64)
		if last = max(last, op.Call); op.Result != Unknown {
			ret = op.Return
			last = max(last, ret)
		}
		add(op, clients[op.Client], op.Call, ret)
	}
	add(&Op{Kind: endKind, Result: OK}, len(clients), last+1, last+2)
	return out
}

// WriteHTML writes a picture of the history until the violation, for a browser.
func (v *Violation) WriteHTML(w io.Writer) error {
	if len(v.prefix) > htmlOpsMax {
		return &sigma.Error{Op: "history.WriteHTML", Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("%d operations on the key lead to the violation; a picture has %d at most", len(v.prefix),
				htmlOpsMax), Hint: "record fewer operations on a key"}
	}
	most := time.Minute
	_, info := porcupine.CheckOperationsVerbose(v.model.porcupine(), operations(v.prefix), most)
	return sigma.Wrap("history.WriteHTML", "", porcupine.Visualize(v.model.porcupine(), info, w))
}
