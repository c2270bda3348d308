package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// beforeMax is how many operations before a violation are shown, and faultsMax that of faults.
	beforeMax = 12
	faultsMax = 6
	// answersMax is how many other answers are tried.
	answersMax = 16
	// explainMax is how long the search for a key's first violation may take. When it is over a
	// later one may be shown.
	explainMax = 10 * time.Second
)

// Violation is the first operation on a key whose answer no order explains.
type Violation struct {
	Key    Text     `json:"key"`
	Op     Op       `json:"operation"`
	Could  []string `json:"possible"`         // answers that it could have had, as far as they were tried
	Why    []string `json:"why"`              // sentences
	Before []Op     `json:"before"`           // the operations on the key before and beside it, the last ones
	Total  int      `json:"before_total"`     // how many those are in all
	Faults []Fault  `json:"faults,omitempty"` // the last ones before it, or still in effect

	model  Model
	prefix []*Op
	first  int64 // of the history, from which times are shown
}

// explain finds a key's first violation. A part of a history that is a beginning of it is
// linearizable if the whole is, so it is found by halving.
func explain(h *History, k *keyCheck) *Violation {
	k.until = time.Now().Add(explainMax)
	var ends []*Op // operations that returned, in that order
	for _, op := range k.ops {
		if op.Result != Unknown {
			ends = append(ends, op)
		}
	}
	slices.SortStableFunc(ends, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	lowest, highest := 0, len(ends)-1 // the first violation is one of these
	for lowest < highest {
		mid := (lowest + highest) / 2
		if k.decide(k.asOf(ends[mid].Return)) == Violated {
			highest = mid
		} else { // or undecided: then the violation that is shown is not the first
			lowest = mid + 1
		}
	}
	op := ends[highest]
	v := &Violation{Key: k.key, Op: *op, Could: []string{}, model: k.model, prefix: k.asOf(op.Return),
		first: firstCall(h)}
	v.tryAnswers(k, op)
	v.say(k, op)
	v.context(h, k, op)
	return v
}

// asOf is the history of the key as it was known at a time: what had not returned may or may not
// have happened.
func (k *keyCheck) asOf(at int64) (ops []*Op) {
	for _, op := range k.ops {
		switch {
		case op.Call > at:
			return ops
		case op.Result == Unknown || op.Return <= at:
			ops = append(ops, op)
		case op.Kind != Get:
			pending := *op
			pending.Result = Unknown
			ops = append(ops, &pending)
		}
	}
	return ops
}

func firstCall(h *History) int64 {
	first := h.Ops[0].Call
	for i := range h.Ops {
		first = min(first, h.Ops[i].Call)
	}
	return first
}

// tryAnswers finds answers that would have been right.
func (v *Violation) tryAnswers(k *keyCheck, op *Op) {
	var others []Op
	answer := func(result Result, out Text) {
		other := *op
		other.Result, other.Out, other.Version = result, out, 0
		others = append(others, other)
	}
	if op.Kind == Get {
		answer(OK, op.Out) // at another version
		seen := map[Text]bool{op.Out: true}
		for i := len(v.prefix) - 1; i >= 0 && len(others) < answersMax; i-- {
			if w := v.prefix[i]; w.writes() && !seen[w.In] {
				seen[w.In] = true
				answer(OK, w.In)
			}
		}
		answer(Absent, "")
	} else {
		for _, r := range results[op.Kind] {
			answer(r, "")
		}
	}
	at := slices.Index(v.prefix, op)
	for i := range others {
		ops := slices.Clone(v.prefix)
		if ops[at] = &others[i]; k.decide(ops) == Linearizable {
			v.Could = append(v.Could, others[i].answer())
		}
	}
}

func (o *Op) writes() bool { return o.Kind == Put || o.Kind == CAS || o.Kind == CASValue }

// say puts into words what is wrong.
func (v *Violation) say(k *keyCheck, op *Op) {
	add := func(format string, args ...any) { v.Why = append(v.Why, fmt.Sprintf(format, args...)) }
	same := slices.Contains(v.Could, (&Op{Kind: op.Kind, Result: op.Result, Out: op.Out}).answer())
	switch {
	case same && op.Version != 0:
		add("Its answer could be but for version %d: versions grow, and a value keeps its version.", op.Version)
	case len(v.Could) > 0:
		add("It could have been answered: %s.", strings.Join(v.Could, ", or "))
	}
	if op.Kind != Get || op.Result != OK || same {
		return
	}
	var origin *Op
	for _, w := range k.ops {
		if w.writes() && w.In == op.Out && w.Result != Mismatch && w.Result != Absent && w.Call <= op.Return {
			origin = w
		}
	}
	switch {
	case origin == nil && op.Out != "":
		add("Nobody had written %v to this key.", op.Out)
	case origin != nil:
		add("%v was last written by: %s.", op.Out, v.line(origin))
		if w := v.overwriter(origin, op); w != nil {
			add("After that, and before the read began, came: %s.", v.line(w))
		}
	}
}

// overwriter is the last operation that came after origin and was over before op began, and changed
// the key.
func (v *Violation) overwriter(origin, op *Op) (last *Op) {
	for _, w := range v.prefix {
		if w != origin && w.Kind != Get && w.Result == OK && origin.Result == OK && w.Call > origin.Return &&
			w.Return < op.Call {
			last = w
		}
	}
	return last
}

// context notes what went before.
func (v *Violation) context(h *History, k *keyCheck, op *Op) {
	for _, other := range k.ops {
		if other != op && other.Call <= op.Return {
			v.Before = append(v.Before, *other)
		}
	}
	v.Total = len(v.Before)
	v.Before = v.Before[max(0, len(v.Before)-beforeMax):]
	for _, f := range h.Faults {
		if f.At <= op.Return {
			v.Faults = append(v.Faults, f)
		}
	}
	slices.SortStableFunc(v.Faults, func(a, b Fault) int { return cmp.Compare(max(a.At, a.Until), max(b.At, b.Until)) })
	v.Faults = v.Faults[max(0, len(v.Faults)-faultsMax):]
}

// String is a violation in plain words, several lines of them.
func (v *Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "key %v: no order of the operations explains this answer:\n  %s\n", v.Key, v.line(&v.Op))
	for _, why := range v.Why {
		fmt.Fprintf(&b, "%s\n", why)
	}
	if v.Total > 0 {
		fmt.Fprintf(&b, "Before and beside it (the last %d of %s on this key):\n", len(v.Before),
			count(v.Total, "operation"))
	}
	for i := range v.Before {
		fmt.Fprintf(&b, "  %s\n", v.line(&v.Before[i]))
	}
	if len(v.Faults) > 0 {
		b.WriteString("Faults until then (the last ones):\n")
	}
	for _, f := range v.Faults {
		fmt.Fprintf(&b, "  %s of %s", f.Fault, f.Target)
		if f.Proc != "" {
			fmt.Fprintf(&b, " (%s)", f.Proc)
		}
		if fmt.Fprintf(&b, " at %s", v.ms(f.At)); f.Until > f.At {
			fmt.Fprintf(&b, " to %s", v.ms(f.Until))
		}
		b.WriteString(" ms\n")
	}
	return b.String()
}

// ms is a time in milliseconds since the history's first call.
func (v *Violation) ms(at int64) string { return fmt.Sprintf("%.3f", float64(at-v.first)/1e6) }

func (v *Violation) line(o *Op) string {
	ret := " and no answer"
	if o.Result != Unknown {
		ret = fmt.Sprintf(" to %s ms", v.ms(o.Return))
	}
	return fmt.Sprintf("client %d, %s%s: %v", o.Client, v.ms(o.Call), ret, o)
}

// String is an operation and its answer in words.
func (o *Op) String() string {
	what := string(o.Kind)
	switch o.Kind {
	case Put:
		what = fmt.Sprintf("put %v", o.In)
	case CAS:
		what = fmt.Sprintf("cas %v if at version %d", o.In, o.IfVersion)
	case CASValue:
		what = fmt.Sprintf("cas %v if %v", o.In, o.IfValue)
	}
	return what + " = " + o.answer()
}

// answer is what an operation was told, in words.
func (o *Op) answer() string {
	version := ""
	if o.Version != 0 {
		version = fmt.Sprintf(" @%d", o.Version)
	}
	if o.Kind == Get && o.Result == OK {
		return o.Out.String() + version
	}
	return string(o.Result) + version
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Text is the report in plain words.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s on %s", r.Verdict, count(r.Ops, "operation"), count(r.Keys, "key"))
	if r.Unknown > 0 {
		fmt.Fprintf(&b, ", %d of them with unknown result", r.Unknown)
	}
	fmt.Fprintf(&b, " (model %s)\n", r.Model)
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n%v", v)
	}
	if more := len(r.Bad) - len(r.Violations); more > 0 {
		fmt.Fprintf(&b, "\n%s more with an answer that no order explains.\n", count(more, "key"))
	}
	if len(r.Undecided) > 0 {
		fmt.Fprintf(&b, "\nNot decided in time, or with too many operations: %v.\n",
			r.Undecided[:min(len(r.Undecided), violationsMax)])
	}
	return b.String()
}
