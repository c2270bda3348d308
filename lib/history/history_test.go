package history

import (
	"bytes"
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// op makes an operation of "KIND ARGUMENT = RESULT" from one time to another.
func op(client int, call, ret int64, kind Kind, in string, result Result, out string, version uint64) Op {
	return Op{Client: client, Kind: kind, Key: "k", In: Text(in), Result: result, Out: Text(out), Version: version,
		Call: call, Return: ret}
}

func cas(call, ret int64, in string, at uint64, result Result, version uint64) Op {
	o := op(0, call, ret, CAS, in, result, "", version)
	o.IfVersion = at
	return o
}

func casValue(call, ret int64, in, old string, result Result) Op {
	o := op(0, call, ret, CASValue, in, result, "", 0)
	o.IfValue = Text(old)
	return o
}

func put(call, ret int64, in string, version uint64) Op {
	return op(0, call, ret, Put, in, OK, "", version)
}

func get(call, ret int64, out string, version uint64) Op {
	return op(1, call, ret, Get, "", OK, out, version)
}

func none(call, ret int64) Op { return op(1, call, ret, Get, "", Absent, "", 0) }

func lost(call int64, kind Kind, in string) Op { return op(2, call, 0, kind, in, Unknown, "", 0) }

func del(call, ret int64, result Result) Op { return op(3, call, ret, Delete, "", result, "", 0) }

// Goal: histories that cannot be are told from those that can, by each model.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		ops  []Op
		kv   bool // is linearizable
		also bool // as a register, if that has the operations
	}{
		"nothing": {nil, true, true},
		"seen": {[]Op{put(1, 2, "a", 0), get(3, 4, "a", 0)},
			true, true},
		"stale": {[]Op{put(1, 2, "a", 0), put(3, 4, "b", 0), get(5, 6, "a", 0)},
			false, false},
		"beside": {[]Op{put(1, 2, "a", 0), put(3, 6, "b", 0), get(4, 5, "a", 0)},
			true, true},
		"new and old": {[]Op{put(1, 2, "a", 0), put(3, 9, "b", 0), get(4, 5, "b", 0), get(6, 7, "a", 0)},
			false, false},
		"never written": {[]Op{put(1, 2, "a", 0), get(3, 4, "b", 0)},
			false, false},
		"empty at first": {[]Op{get(1, 2, "", 0)},
			false, true},
		"absent at first": {[]Op{none(1, 2)},
			true, true},
		"absent after a put": {[]Op{put(1, 2, "a", 0), none(3, 4)},
			false, false},
		"lost and never seen": {[]Op{put(1, 2, "a", 0), lost(3, Put, "b"), get(9, 10, "a", 0)},
			true, true},
		"lost and seen late": {[]Op{put(1, 2, "a", 0), lost(3, Put, "b"), get(4, 5, "a", 0), get(9, 10, "b", 0)},
			true, true},
		"lost and taken back": {[]Op{put(1, 2, "a", 0), lost(3, Put, "b"), get(4, 5, "b", 0), get(9, 10, "a", 0)},
			false, false},
		"lost twice over": {[]Op{lost(1, Put, "b"), get(2, 3, "b", 0), put(4, 5, "a", 0), get(6, 7, "b", 0)},
			false, false},
		"failed": {[]Op{op(0, 1, 2, Put, "a", Failed, "", 0), none(3, 4)},
			true, true},
		"failed and seen": {[]Op{op(0, 1, 2, Put, "a", Failed, "", 0), get(3, 4, "a", 0)},
			false, false},
		"lost get": {[]Op{put(1, 2, "a", 0), lost(3, Get, ""), get(4, 5, "a", 0)},
			true, true},
		"deleted": {[]Op{put(1, 2, "a", 0), del(3, 4, OK), none(5, 6)},
			true, true},
		"deleted and there": {[]Op{put(1, 2, "a", 0), del(3, 4, OK), get(5, 6, "a", 0)},
			false, true},
		"deleted twice": {[]Op{put(1, 2, "a", 0), del(3, 4, OK), del(3, 4, OK)},
			false, true},
		"deleted nothing": {[]Op{del(1, 2, Absent), put(3, 4, "a", 0), del(5, 6, Absent)},
			false, true},
		"lost delete": {[]Op{put(1, 2, "a", 0), lost(3, Delete, ""), get(4, 5, "a", 0), none(6, 7)},
			true, true},
		"versions": {[]Op{put(1, 2, "a", 5), get(3, 4, "a", 5), put(5, 6, "b", 6)},
			true, true},
		"another version": {[]Op{put(1, 2, "a", 5), get(3, 4, "a", 6)},
			false, false},
		"a version falls": {[]Op{put(1, 2, "a", 5), put(3, 4, "b", 4)},
			false, false},
		"versions begin anew": {[]Op{put(1, 2, "a", 5), del(3, 4, OK), put(5, 6, "b", 1)},
			true, true},
		"a version after loss": {[]Op{put(1, 2, "a", 5), lost(3, Put, "b"), get(4, 5, "b", 7), get(6, 7, "b", 8)},
			false, false},
		"cas": {[]Op{put(1, 2, "a", 5), cas(3, 4, "b", 5, OK, 6), get(5, 6, "b", 6)},
			true, true},
		"cas at an old version": {[]Op{put(1, 2, "a", 5), put(3, 4, "b", 6), cas(5, 6, "c", 5, OK, 7)},
			false, true},
		"cas refused": {[]Op{put(1, 2, "a", 5), cas(3, 4, "b", 4, Mismatch, 0), get(5, 6, "a", 5)},
			true, true},
		"cas refused for nothing": {[]Op{put(1, 2, "a", 5), cas(3, 4, "b", 5, Mismatch, 0)},
			false, true},
		"cas if absent": {[]Op{cas(1, 2, "a", 0, OK, 1), cas(3, 4, "b", 0, Mismatch, 0), get(5, 6, "a", 1)},
			true, true},
		"cas if absent, twice": {[]Op{cas(1, 2, "a", 0, OK, 0), cas(1, 2, "b", 0, OK, 0)},
			false, true},
		"cas of nothing": {[]Op{cas(1, 2, "a", 3, Absent, 0), none(3, 4)},
			true, true},
		"cas at what nobody knows": {[]Op{put(1, 2, "a", 0), cas(3, 4, "b", 9, Mismatch, 0),
			cas(3, 4, "b", 8, OK, 9)},
			true, true},
		"cas by value": {[]Op{put(1, 2, "a", 0), casValue(3, 4, "b", "a", OK), get(5, 6, "b", 0)},
			true, true},
		"cas by another value": {[]Op{put(1, 2, "a", 0), casValue(3, 4, "b", "c", OK)},
			false, false},
		"cas by value refused": {[]Op{put(1, 2, "a", 0), casValue(3, 4, "b", "c", Mismatch),
			casValue(5, 6, "b", "a", Mismatch)},
			false, false},
		"cas by value of nothing": {[]Op{casValue(1, 2, "b", "", OK), get(3, 4, "b", 0)},
			false, true},
	} {
		for m, want := range map[*Model]bool{&KV: c.kv, &Register: c.also} {
			if slices.ContainsFunc(c.ops, func(o Op) bool { return m.takes(o.Kind) != nil }) {
				continue
			}
			r, err := Check(&History{Ops: c.ops}, *m, time.Minute)
			if err != nil || (r.Verdict == Linearizable) != want || r.Verdict == Undecided {
				t.Errorf("%s as %s: %+v, %v, want %v", name, m.name, r, err, want)
			}
		}
	}
}

// possible tries all orders.
func possible(m Model, s state, left []*Op) bool {
	if !slices.ContainsFunc(left, func(o *Op) bool { return o.Result != Unknown }) {
		return true
	}
	for i, o := range left {
		if slices.ContainsFunc(left, func(p *Op) bool { return p != o && p.Result != Unknown && p.Return < o.Call }) {
			continue // that one comes first
		}
		rest := slices.Delete(slices.Clone(left), i, i+1)
		if o.Result == Unknown {
			if next, ok := m.unknown(s, o); ok && possible(m, next, rest) {
				return true
			}
		} else if ok, next := m.step(s, o); ok && possible(m, next, rest) {
			return true
		}
	}
	return false
}

// Goal: the checker finds the same as a search of all orders, on many small histories. Every
// violation that is shown is the answer after which the history cannot be.
func TestAgainstAllOrders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	bad := 0
	for range 3000 {
		h := &History{}
		for i := range 2 + rng.IntN(4) {
			o := Op{Client: i, Kind: []Kind{Get, Put, Delete, CAS, CASValue}[rng.IntN(5)], Call: int64(rng.IntN(12))}
			o.Return = o.Call + 1 + int64(rng.IntN(8))
			o.Result = append(slices.Clone(results[o.Kind]), Unknown)[rng.IntN(len(results[o.Kind])+1)]
			value := func() Text { return Text(rune('a' + rng.IntN(2))) }
			switch o.Kind {
			case Put, CAS, CASValue:
				o.In, o.IfVersion, o.IfValue = value(), uint64(rng.IntN(3)), value()
				o.Version = uint64(rng.IntN(4))
			case Get:
				o.Out = value()
				o.Version = uint64(rng.IntN(4))
			}
			if o.Result != OK {
				o.Out, o.Version = "", 0
			}
			h.Ops = append(h.Ops, o)
		}
		r, err := Check(h, KV, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var all []*Op
		for i := range h.Ops {
			if h.Ops[i].Kind != Get || h.Ops[i].Result != Unknown {
				all = append(all, &h.Ops[i])
			}
		}
		slices.SortStableFunc(all, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
		if want := possible(KV, state{}, all); (r.Verdict == Linearizable) != want {
			t.Fatalf("seed %d: %v, want linearizable %v: %v", seed, r.Verdict, want, all)
		}
		if r.Verdict == Violated {
			bad++
			before := (&keyCheck{ops: all}).asOf(r.Violations[0].Op.Return - 1)
			if !possible(KV, state{}, before) {
				t.Fatalf("seed %d: the violation is earlier than %v", seed, r.Violations[0])
			}
		}
	}
	if bad < 100 || bad > 2900 {
		t.Errorf("%d of 3000 histories are violations", bad)
	}
}

const ms = int64(time.Millisecond)

// Goal: a violation is told in words that name the answer, what it could have been, and what
// overwrote the value that was read.
func TestExplain(t *testing.T) {
	h := &History{Ops: []Op{
		op(0, 1*ms, 2*ms, Put, "old", OK, "", 1), op(1, 3*ms, 4*ms, Put, "new", OK, "", 2),
		op(2, 5*ms, 6*ms, Get, "", OK, "old", 1), op(2, 7*ms, 8*ms, Get, "", OK, "new", 2),
		{Client: 3, Kind: Put, Key: "other", In: "\xff", Result: OK, Call: 0, Return: ms},
		{Client: 3, Kind: Get, Key: "third", Result: Absent, Call: 0, Return: ms},
	}, Faults: []Fault{{Fault: "pause", Target: "kv@1", Proc: "abc", At: 2 * ms, Until: 4 * ms},
		{Fault: "kill", Target: "kv@1", At: 20 * ms}}}
	r, err := Check(h, KV, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := `not linearizable: 6 operations on 3 keys (model kv)

key "k": no order of the operations explains this answer:
  client 2, 5.000 to 6.000 ms: get = "old" @1
It could have been answered: "new".
"old" was last written by: client 0, 1.000 to 2.000 ms: put "old" = ok @1.
After that, and before the read began, came: client 1, 3.000 to 4.000 ms: put "new" = ok @2.
Before and beside it (the last 2 of 2 operations on this key):
  client 0, 1.000 to 2.000 ms: put "old" = ok @1
  client 1, 3.000 to 4.000 ms: put "new" = ok @2
Faults until then (the last ones):
  pause of kv@1 (abc) at 2.000 to 4.000 ms
`
	if got := r.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var html bytes.Buffer
	if err := r.Violations[0].WriteHTML(&html); err != nil || !strings.Contains(html.String(), "new") {
		t.Errorf("a picture of %d bytes, %v", html.Len(), err)
	}
	h.Ops[2].Out, h.Ops[2].Version = "new", 3
	if r, err = Check(h, KV, time.Minute); err != nil || !strings.Contains(r.Text(), "but for version 3") {
		t.Errorf("%v, %v", r.Text(), err)
	}
	h.Ops[2].Out = "never"
	if r, err = Check(h, KV, time.Minute); err != nil || !strings.Contains(r.Text(), `Nobody had written "never"`) {
		t.Errorf("%v, %v", r.Text(), err)
	}
}

// Goal: what clients do is noted with its times and results; what has not ended when the recorder
// is closed is noted as unknown, once.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := NewRecorder(&out)
		goOn, ended := make(chan bool), make(chan bool)
		go func() {
			defer close(ended)
			r.Do(Op{Client: 1, Kind: Put, Key: "k", In: "late"}, func(*Op) error { <-goOn; return nil })
		}()
		synctest.Wait()
		cause := sigma.Errorf("test", sigma.KindNotFound, "no key")
		err := r.Do(Op{Kind: Get, Key: "k"}, func(*Op) error { <-time.After(time.Second); return cause })
		if !errors.Is(err, cause) {
			t.Error(err)
		}
		r.Do(Op{Kind: Get, Key: "k"}, func(o *Op) error { o.Out, o.Version = "v\xff", 7; return nil })
		r.Do(Op{Kind: Put, Key: "k"}, func(o *Op) error { return cause }) // which no put may be told
		r.Do(Op{Kind: Put, Key: "k"}, func(o *Op) error { o.Result = Failed; return cause })
		if _, err := r.Close(); err != nil {
			t.Error(err)
		}
		close(goOn)
		<-ended
		if _, err := r.Close(); err != nil {
			t.Error(err)
		}
		h, err := Decode(&out)
		if err != nil || len(h.Ops) != 5 {
			t.Fatalf("%+v, %v", h, err)
		}
		for i, want := range []Op{{Kind: Get, Result: Absent}, {Kind: Get, Result: OK, Out: "v\xff", Version: 7},
			{Kind: Put, Result: Unknown}, {Kind: Put, Result: Failed},
			{Client: 1, Kind: Put, In: "late", Result: Unknown}} {
			got := h.Ops[i]
			if took := got.Return - got.Call; i == 0 && took != int64(time.Second) {
				t.Errorf("it took %d", took)
			}
			want.Key, got.Call, got.Return = "k", 0, 0
			if got != want {
				t.Errorf("%d: got %+v, want %+v", i, got, want)
			}
		}
	})
}

// Goal: the result of an error is what the error promises, and unknown if that is nothing.
func TestResultOf(t *testing.T) {
	for kind, want := range map[sigma.Kind]Result{sigma.KindNotFound: Absent, sigma.KindVersion: Mismatch,
		sigma.KindExists: Mismatch, sigma.KindUnavailable: Failed, sigma.KindBusy: Failed, sigma.KindLost: Unknown,
		sigma.KindTimeout: Unknown, sigma.KindCanceled: Unknown, sigma.KindOther: Unknown} {
		if got := ResultOf(CAS, sigma.Errorf("test", kind, "x")); got != want {
			t.Errorf("%v is %s, want %s", kind, got, want)
		}
	}
	if ResultOf(Put, nil) != OK || ResultOf(Put, sigma.Errorf("test", sigma.KindNotFound, "x")) != Unknown {
		t.Error("of a put")
	}
}

// Goal: malformed lines are refused with the line's number and a sentence.
func TestDecodeRefuses(t *testing.T) {
	const good = `{"client":0,"op":"put","key":"k","in":"v","result":"ok","call":1,"return":2}` + "\n\n"
	const put = `{"client":0,"op":"put","result":"ok","call":1,"return":2`
	for text, want := range map[string]string{
		"x":  "line 3: invalid character",
		"[]": "line 3: json:",
		`{"client":0,"op":"take","result":"ok","call":1}`:       `"take" is no operation`,
		`{"client":0,"op":"put","result":"absent","call":1}`:    `"absent" is no result of a put`,
		`{"client":-1,"op":"put","result":"ok","call":1}`:       "the client is -1",
		`{"client":0,"op":"put","result":"ok","call":3}`:        "before its call",
		`{"client":0,"op":"put","result":"ok","call":-1}`:       "is no time",
		put + `,"versoin":3}`:                                   "unknown field",
		put + `} {"client":1}`:                                  "more after the object",
		put + `,"in":"` + strings.Repeat("x", TextMax+1) + `"}`: "4097 bytes",
		`{"in":"` + strings.Repeat("x", lineMax) + `"}`:         "line 3: it has more than",
	} {
		_, err := Decode(strings.NewReader(good + text))
		if err == nil || !strings.Contains(err.Error(), want) || sigma.HintOf(err) == "" {
			t.Errorf("%.80s: %v, want %s", text, err, want)
		}
	}
	if _, err := ModelOf("queue"); sigma.HintOf(err) == "" {
		t.Error(err)
	}
	h, err := Decode(strings.NewReader(`{"client":0,"op":"delete","result":"ok","call":1,"return":2}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Check(h, Register, 0); sigma.KindOf(err) != sigma.KindInvalid {
		t.Error(err)
	}
}

// Goal: a key that is too long to decide, or for which there is no time, is named and is no
// violation.
func TestUndecided(t *testing.T) {
	h := &History{}
	for i := range keyOpsMax + 1 {
		h.Ops = append(h.Ops, op(0, int64(2*i), int64(2*i+1), Put, "v", OK, "", 0))
	}
	r, err := Check(h, KV, time.Minute)
	if err != nil || r.Verdict != Undecided || !slices.Equal(r.Undecided, []Text{"k"}) {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = Check(&History{Ops: h.Ops[:9]}, KV, 1); err != nil || r.Verdict != Undecided {
		t.Errorf("%+v, %v", r, err)
	}
}

// FuzzDecode: no input breaks the decoder or the checker, and what is decoded is encoded again as
// the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"client":0,"op":"put","key":"k","in":{"base64":"/w=="},"result":"ok","call":1,"return":2}`))
	f.Add([]byte(`{"client":1,"op":"cas","if_version":3,"result":"unknown","call":1,"note":"x"}` + "\n" +
		`{"fault":"kill","target":"kv","at":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Decode(bytes.NewReader(b))
		if err != nil || len(h.Ops) > 6 {
			return
		}
		var again bytes.Buffer
		for i := range h.Ops {
			line, err := h.Ops[i].Encode()
			if err != nil {
				t.Fatal(err)
			}
			again.Write(line)
		}
		h2, err := Decode(&again)
		if err != nil || !slices.Equal(h.Ops, h2.Ops) {
			t.Errorf("%+v became %+v, %v", h.Ops, h2, err)
		}
		if r, err := Check(h, KV, time.Second); err == nil && r.Text() == "" {
			t.Error("nothing is said")
		}
	})
}
