package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"sigmaos.dev/lib/queue/record"
)

// Goal: a queue gives tasks out in order, and at any moment its snapshot makes the same queue.
// Method: random changes, of which some are repeated; a copy is made of a snapshot now and then.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		q := New()
		for seq := uint64(10); seq < 300; seq++ {
			q.Apply(change(rnd, q, seq))
			check(t, q)
			if seq%17 == 0 {
				copied := New()
				for _, chunk := range q.Chunks(200) {
					if err := record.Decode(chunk, copied.Apply); err != nil {
						t.Fatal(err)
					}
				}
				if a, b := describe(q), describe(copied); a != b {
					t.Fatalf("seed %d: the snapshot makes\n%s\nof\n%s", seed, b, a)
				}
				q = copied
			}
		}
	}
}

// change is a random one.
func change(rnd *rand.Rand, q *Core, seq uint64) *record.Record {
	some := func() (ids []uint64) {
		for range rnd.IntN(4) {
			ids = append(ids, rnd.Uint64N(q.Next+2))
		}
		return ids
	}
	switch rnd.IntN(8) {
	case 0, 1:
		r := &record.Record{Kind: record.Submitted, Client: fmt.Sprint(rnd.IntN(3)), Seq: seq, Oldest: seq - seq%5}
		if rnd.IntN(4) == 0 {
			r.Seq -= r.Seq % 3 // made again, perhaps
		}
		for range rnd.IntN(5) {
			r.Tasks = append(r.Tasks, record.Task{Data: []byte("data")})
		}
		return r
	case 2, 3:
		return &record.Record{Kind: record.Acquired, IDs: q.First(1 + rnd.IntN(3))}
	case 4, 5:
		r := &record.Record{Kind: record.Ended}
		for _, e := range q.Tasks {
			if e.State == record.InHand && rnd.IntN(2) == 0 {
				r.Ends = append(r.Ends, record.Ending{Result: record.Result{Hold: e.Hold, Data: []byte("r")},
					How: []record.State{record.Waiting, record.Finished, record.Buried}[rnd.IntN(3)]})
			}
		}
		return r
	case 6:
		return &record.Record{Kind: record.Forgotten, Seq: rnd.Uint64N(q.nextSeq + 1)}
	}
	return &record.Record{Kind: []record.Kind{record.Revived, record.Dropped}[rnd.IntN(2)], IDs: some()}
}

// check looks at what must always hold.
func check(t *testing.T, q *Core) {
	t.Helper()
	bytes, counts := 0, [record.StateEnd]int{}
	for _, e := range q.Tasks {
		bytes += e.Cost()
		counts[e.State]++
	}
	ids := q.First(1 << 20)
	if bytes != q.Bytes || counts != q.Counts || len(ids) != counts[record.Waiting] {
		t.Fatalf("%d bytes, %v, %d wait; counted %d, %v", bytes, counts, len(ids), q.Bytes, q.Counts)
	}
	for i := 1; i < len(ids); i++ {
		if ids[i] <= ids[i-1] {
			t.Fatalf("the order is %v", ids)
		}
	}
	for i, e := range q.Outcomes {
		if i > 0 && e.Seq <= q.Outcomes[i-1].Seq || q.Tasks[e.ID] != e {
			t.Fatalf("outcomes: %+v", e)
		}
	}
}

// describe is all that a state tells.
func describe(q *Core) string {
	var b bytes.Buffer
	fmt.Fprintln(&b, q.Next, q.nextSeq, q.Bytes, q.Counts, q.First(1<<20))
	for _, e := range q.Outcomes {
		fmt.Fprintf(&b, "%d=%d ", e.Seq, e.ID)
	}
	for id := range q.Next {
		if e := q.Tasks[id]; e != nil {
			fmt.Fprintf(&b, "%d:%d/%d/%d%s ", id, e.State, e.Attempt, e.Tries, e.Result.Data)
		}
	}
	for _, name := range []string{"0", "1", "2"} {
		if s := q.clients[name]; s != nil {
			fmt.Fprint(&b, name, s.oldest, s.requests)
		}
	}
	return b.String()
}
