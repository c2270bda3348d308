package record_test

import (
	"bytes"
	"testing"

	"sigmaos.dev/lib/queue/core"
	"sigmaos.dev/lib/queue/record"
)

// sample is the log of a queue that had one of each change.
func sample() []byte {
	c := &record.Coder{}
	hold := record.Hold{ID: 1, Attempt: 1}
	for _, r := range []record.Record{
		{Kind: record.Submitted, Client: "c", Seq: 1, Oldest: 1,
			Tasks: []record.Task{{Key: "k", Data: []byte("x")}, {}, {}}},
		{Kind: record.Acquired, IDs: []uint64{1, 2}},
		{Kind: record.Ended, Ends: []record.Ending{{Result: record.Result{Hold: hold, Data: []byte("y")},
			How: record.Finished}, {Result: record.Result{Hold: record.Hold{ID: 2, Attempt: 1}, Failed: "no"},
			How: record.Buried}}},
		{Kind: record.Revived, IDs: []uint64{2}},
		{Kind: record.Dropped, IDs: []uint64{2}},
		{Kind: record.Forgotten, Seq: 1},
	} {
		r.Code(c)
	}
	return c.B
}

// apply gives the state after records, and whether they could all be read.
func apply(b []byte) (*core.Core, error) {
	q := core.New()
	return q, record.Decode(b, q.Apply)
}

// FuzzDecode: whatever a log holds is refused or makes a state whose snapshot makes the same state.
func FuzzDecode(f *testing.F) {
	f.Add(sample())
	q, err := apply(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Join(q.Chunks(64), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := apply(b)
		if err != nil {
			return
		}
		first := bytes.Join(q.Chunks(100), nil)
		again, err := apply(first)
		if err != nil {
			t.Fatalf("the snapshot cannot be read: %v", err)
		}
		if len(again.Tasks) != len(q.Tasks) || again.Next != q.Next || again.Bytes != q.Bytes ||
			len(again.Outcomes) != len(q.Outcomes) || again.Counts != q.Counts {
			t.Errorf("the snapshot has another state:\n%+v\n%+v", q, again)
		}
	})
}
