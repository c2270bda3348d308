package op

import (
	"bytes"
	"testing"

	"sigmaos.dev/apps/cache/store"
)

// Goal: what becomes of a key under each operation and condition.
func TestApply(t *testing.T) {
	s, err := store.New(store.Config{Limit: store.LimitMin})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	do := func(o Op) Result {
		t.Helper()
		o.Key = []byte("k")
		r, err := Apply(s, &o, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	set := func(v string) Op { return Op{Kind: Set, Value: []byte(v)} }
	want("get of nothing", do(Op{Kind: Get}).Status, Missing)
	want("replace of nothing", do(Op{Kind: Set, Condition: IfPresent}).Status, Missing)
	want("compare with nothing", do(Op{Kind: Set, Condition: IfVersion}).Status, Missing)
	want("set", do(set("10")).Status, OK)
	want("add of what is there", do(Op{Kind: Set, Condition: IfAbsent}).Status, Refused)
	want("sum", do(Op{Kind: Add, Delta: -15}).Number, int64(-5))
	want("count of a negative", do(Op{Kind: Count, Delta: 1}).Status, NotNumber)
	do(set("9223372036854775807"))
	want("overflow", do(Op{Kind: Add, Delta: 1}).Status, Overflow)
	do(set("18446744073709551615"))
	want("wrap", do(Op{Kind: Count, Delta: 2}).Number, int64(1))
	want("below 0", do(Op{Kind: Count, Delta: 5, Negative: true}).Number, int64(0))
	want("append", do(Op{Kind: Append, Value: []byte("ab")}).Length, 3)
	want("prepend", do(Op{Kind: Prepend, Value: []byte("c")}).Length, 4)
	old := do(Op{Kind: Get})
	want("value", string(old.Value), "c0ab")
	want("swap", do(Op{Kind: Set, Condition: IfVersion, Version: old.Version}).Status, OK)
	want("swap of an old one", do(Op{Kind: Set, Condition: IfVersion, Version: old.Version}).Status, Refused)
	want("expire", do(Op{Kind: Expire, Expiry: 99}).Status, OK)
	want("expiry", do(Op{Kind: Peek}).Expiry, int64(99))
	do(Op{Kind: Set, Value: []byte("x"), KeepExpiry: true})
	want("kept expiry", do(Op{Kind: Peek}).Expiry, int64(99))
	want("old value", string(do(Op{Kind: Delete, Old: true}).Value), "x")
	want("delete of nothing", do(Op{Kind: Delete}).Status, Missing)
}

// FuzzDecode: what is decoded encodes to the same bytes, and nothing else is taken.
func FuzzDecode(f *testing.F) {
	o := Op{Kind: Set, Condition: IfVersion, Key: []byte("key"), Value: []byte("value"), Flags: 1, Expiry: -2,
		Version: 3, Delta: -4, Negative: true, KeepExpiry: true, Old: true}
	f.Add(o.Encode(nil))
	r := Result{Status: Overflow, Found: true, Value: []byte("v"), Length: 1, Flags: 2, Expiry: 3, Version: 4,
		Number: -5}
	f.Add(r.Encode(nil))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := Decode(b); err == nil {
			if again := o.Encode(nil); !bytes.Equal(again, b) {
				t.Errorf("%x became %x", b, again)
			}
		}
		if r, err := DecodeResult(b); err == nil {
			if again := r.Encode(nil); !bytes.Equal(again, b) {
				t.Errorf("%x became %x", b, again)
			}
		}
	})
}
