package mr

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// countNaively is the definition, byte by byte.
func countNaively(text []byte) map[string]uint64 {
	counts := map[string]uint64{}
	for i := 0; i < len(text); {
		j := i
		for j < len(text) && (text[j] >= 'A' && text[j] <= 'Z' || text[j] >= 'a' && text[j] <= 'z') {
			j++
		}
		if j > i {
			counts[string(text[i:j])]++
		}
		i = max(j, i+1)
	}
	return counts
}

func (t *table) toMap() map[string]uint64 {
	counts := map[string]uint64{}
	for e := range t.all() {
		counts[string(e.key)] += e.count
	}
	return counts
}

// randomText has words of all lengths and separators of all bytes, biased to what is near letters.
func randomText(r *rand.Rand, n int) []byte {
	text := make([]byte, 0, n+100)
	for len(text) < n {
		for range r.IntN(4) {
			text = append(text, "@[`{ \n\x00\xc1\xe1\xff\x80az09"[r.IntN(15)])
		}
		length := r.IntN(12)
		if r.IntN(20) == 0 {
			length = r.IntN(200)
		}
		for range length {
			text = append(text, "abcXYZAaZz"[r.IntN(10)])
		}
		if r.IntN(3) == 0 {
			text = append(text, byte(r.IntN(256)))
		}
	}
	return text[:n]
}

// TestWords compares the quick search with the definition, at all lengths and alignments.
func TestWords(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		text := randomText(r, r.IntN(400))
		tab := newTable(1 << 30)
		for word := range Words(text) {
			tab.add(word, nil, 1)
		}
		if got, want := tab.toMap(), countNaively(text); !maps.Equal(got, want) {
			t.Fatalf("case %d: %q: got %v, want %v", i, text, got, want)
		}
	}
}

// TestTable has keys and values of all bytes and lengths, also zeros at their ends, against a map.
func TestTable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	type pair struct{ key, value string }
	random := func() string {
		b := make([]byte, r.IntN(20))
		for i := range b {
			b[i] = "\x00\x00ab\xff"[r.IntN(5)]
		}
		return string(b[:len(b):cap(b)])
	}
	want := map[pair]uint64{}
	tab := newTable(1 << 30)
	for range 50_000 {
		p := pair{key: random()}
		if r.IntN(2) == 0 {
			p.value = random()
		}
		want[p]++
		tab.add([]byte(p.key), []byte(p.value), 1)
	}
	got := map[pair]uint64{}
	last := pair{}
	next := tab.sorted()
	for e, more, _ := next(); more; e, more, _ = next() {
		p := pair{string(e.key), string(e.value)}
		if got[p] != 0 || len(got) > 0 && (p.key < last.key || p.key == last.key && p.value <= last.value) {
			t.Fatalf("%q comes after %q", p, last)
		}
		got[p], last = e.count, p
	}
	if !maps.Equal(got, want) {
		t.Fatalf("got %d entries, want %d", len(got), len(want))
	}
	hashes := map[string]uint64{}
	for e := range tab.all() {
		if h, seen := hashes[string(e.key)]; seen && partition(h, 1000) != partition(e.hash, 1000) {
			t.Fatalf("%q is in two partitions", e.key)
		}
		hashes[string(e.key)] = e.hash
	}
}

// TestRecords cuts a text into splits anywhere and wants each line once, whole, and in its split.
func TestRecords(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var text []byte
		for range r.IntN(30) {
			text = append(text, bytes.Repeat([]byte("x"), r.IntN(8)*r.IntN(3000))...)
			text = append(text, "\ny"[r.IntN(2)])
		}
		read := func(p []byte, offset int64) (int, error) {
			return copy(p, text[min(offset, int64(len(text))):]), nil
		}
		rd := &reader{}
		var got []byte
		for from := int64(0); from < int64(len(text)); {
			to := min(from+1+r.Int64N(9000), int64(len(text)))
			n, err := rd.records(read, from, to, func(piece []byte) error {
				if at := len(got); at > 0 && got[at-1] != '\n' || int64(at) >= to {
					t.Fatalf("[%d, %d): a piece begins at %d", from, to, at)
				}
				got = append(got, piece...)
				return nil
			})
			if err != nil || n != to-from {
				t.Fatalf("%d bytes of %d, %v", n, to-from, err)
			}
			from = to
		}
		if !bytes.Equal(got, text) {
			t.Fatalf("got %q, want %q", got, text)
		}
	}
}

func TestIsLetter(t *testing.T) {
	for c := range 256 {
		want := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if got := IsLetter(byte(c)); got != want {
			t.Errorf("IsLetter(%#x): got %v", c, got)
		}
	}
}

// goSource reads some of the Go distribution's source, real text that every developer has.
func goSource(tb testing.TB, n int) []byte {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src/*/*.go"))
	if err != nil || len(files) == 0 {
		tb.Skip("no Go source tree here")
	}
	var text []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		if text = append(text, b...); len(text) >= n {
			break
		}
	}
	return text
}

func BenchmarkWords(b *testing.B) {
	text := goSource(b, 32<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		out := newEmitter(1<<30, nil)
		countWords("", text, out)
	}
}
