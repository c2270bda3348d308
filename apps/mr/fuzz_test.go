package mr

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// FuzzRun feeds any bytes to the reader of intermediate files: it must end, and say the same twice.
func FuzzRun(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(oneRun(f, map[string]uint64{"a": 1, "word": 300, string(bytes.Repeat([]byte("x"), 1000)): 2}))
	f.Fuzz(func(t *testing.T, data []byte) {
		counts, err := readRun(data)
		if again, err2 := readRun(data); (err == nil) != (err2 == nil) || !maps.Equal(counts, again) {
			t.Fatalf("got %v, %v, then %v, %v", counts, err, again, err2)
		}
	})
}

// TestRunIsRead wants what was written, through several blocks, and an error for every cut.
func TestRunIsRead(t *testing.T) {
	want := map[string]uint64{string(bytes.Repeat([]byte("z"), 3*pieceMax)): 1 << 60}
	for i := range 30_000 {
		want[fmt.Sprintf("word%d", i)] = uint64(i + 1)
	}
	data := oneRun(t, want)
	if got, err := readRun(data); err != nil || !maps.Equal(got, want) {
		t.Fatalf("got %d words, %v, want %d", len(got), err, len(want))
	}
	for n := 0; n < len(data); n += 1 + n/3 {
		if _, err := readRun(data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are taken for a whole run", n, len(data))
		}
		damaged := bytes.Clone(data)
		damaged[n] ^= 0x10
		if got, err := readRun(damaged); err == nil && maps.Equal(got, want) {
			t.Errorf("damage at %d makes no difference", n)
		} else if err == nil {
			t.Errorf("damage at %d is not noticed", n)
		}
	}
}

// FuzzBin feeds any bytes to the reader of bins.
func FuzzBin(f *testing.F) {
	f.Add(encodeBin([]split{{"/in/a", 10, 0, 10}, {"/in/b \n\"", 1 << 40, 5, 1 << 39}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		splits, err := decodeBin(data)
		if err != nil {
			return
		}
		for i := range splits {
			splits[i].path = "/d/f" // names that are no paths do not come back the same
		}
		if again, err := decodeBin(encodeBin(splits)); err != nil || !slices.Equal(again, splits) {
			t.Fatalf("got %v, %v, want %v", again, err, splits)
		}
	})
}

// FuzzScan compares the quick search for words with the definition.
func FuzzScan(f *testing.F) {
	f.Add([]byte("The quick (brown) fox_jumps"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tab := newTable(1 << 30)
		for word := range Words(text) {
			tab.add(word, nil, 1)
		}
		if got, want := tab.toMap(), countNaively(text); !maps.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func oneRun(tb testing.TB, counts map[string]uint64) []byte {
	names := realm(tb)
	w := newRunWriter(tb.Context(), names, "/run")
	for word, n := range counts {
		if err := w.add(&entry{key: []byte(word), count: n}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.close(); err != nil {
		tb.Fatal(err)
	}
	data, _, err := names.Get(tb.Context(), "/run")
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func readRun(data []byte) (map[string]uint64, error) {
	r := newRunReader("/run", bytes.NewReader(data), uint64(len(data)), nil)
	counts := map[string]uint64{}
	for {
		more, err := r.next()
		if !more || err != nil {
			return counts, err
		}
		counts[string(r.entry.key)] += r.entry.count
	}
}
