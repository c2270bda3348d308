package mr

import (
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
		counts[string(e.word)] += e.count
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

// TestScan compares the quick search with the definition, at all alignments and with the text cut
// anywhere.
func TestScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		text := randomText(r, r.IntN(400))
		tab := newTable()
		buf := append(append([]byte{}, text...), make([]byte, padding)...)
		for j := range padding {
			buf[len(text)+j] = "a "[r.IntN(2)]
		}
		rest := tab.scan(buf, len(text))
		for k := rest; k < len(text); k++ {
			if !isLetter(text[k]) {
				t.Fatalf("case %d: rest %q has no letter", i, text[rest:])
			}
		}
		if rest < len(text) {
			tab.add(text[rest:], 1)
		}
		if got, want := tab.toMap(), countNaively(text); !maps.Equal(got, want) {
			t.Fatalf("case %d: %q: got %v, want %v", i, text, got, want)
		}
	}
}

func TestIsLetter(t *testing.T) {
	for c := range 256 {
		want := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if got := isLetter(byte(c)); got != want {
			t.Errorf("isLetter(%#x): got %v", c, got)
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

func BenchmarkScan(b *testing.B) {
	text := goSource(b, 32<<20)
	n := len(text)
	buf := append(text, make([]byte, padding)...)
	b.SetBytes(int64(n))
	for b.Loop() {
		newTable().scan(buf, n)
	}
}
