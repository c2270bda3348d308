package mr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// fill stores texts below /in and returns the right counts.
func fill(t *testing.T, names sigma.Namespace, texts map[string][]byte) map[string]uint64 {
	t.Helper()
	storeTexts(t, names, texts)
	return countTexts(texts)
}

func storeTexts(t *testing.T, names sigma.Namespace, texts map[string][]byte) {
	t.Helper()
	for name, text := range texts {
		path := "/in/" + name
		if err := names.MkdirAll(t.Context(), path[:strings.LastIndexByte(path, '/')], 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := names.Put(t.Context(), path, text, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func countTexts(texts map[string][]byte) map[string]uint64 {
	want := map[string]uint64{}
	for _, text := range texts {
		for w, n := range countNaively(text) {
			want[w] += n
		}
	}
	return want
}

// fillSome is fill of someTexts, which are counted once for all tests.
func fillSome(t *testing.T, names sigma.Namespace) map[string]uint64 {
	t.Helper()
	storeTexts(t, names, someTexts())
	return someCounts()
}

var someCounts = sync.OnceValue(func() map[string]uint64 { return countTexts(someTexts()) })

// someTexts has small and large files, an empty one, names that need quoting and a word that spans
// several bins. No test changes it.
var someTexts = sync.OnceValue(func() map[string][]byte {
	r := rand.New(rand.NewPCG(3, 4))
	texts := map[string][]byte{
		"empty": nil, "one": []byte("word"), "odd names/new\nline \"q\" \xff": []byte("odd names"),
		"large":     randomText(r, 3<<20),
		"long-word": []byte("before " + strings.Repeat("longWord", 100_000) + " after"),
		"one-word":  []byte(strings.Repeat("x", 700_000)),
	}
	for i := range 200 {
		texts[fmt.Sprintf("dir%d/sub/file%03d", i%7, i)] = randomText(r, r.IntN(20_000))
	}
	return texts
})

// output reads all parts and checks that each is sorted.
func output(t *testing.T, names sigma.Namespace) map[string]uint64 {
	t.Helper()
	entries, err := names.ReadDir(t.Context(), "/out")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, e := range entries {
		data, _, err := names.Get(t.Context(), "/out/"+e.Name)
		if err != nil || !strings.HasPrefix(e.Name, "part-") {
			t.Fatalf("%s: %v", e.Name, err)
		}
		last := ""
		for line := range strings.Lines(string(data)) {
			word, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil || word <= last || got[word] != 0 {
				t.Fatalf("%s: line %.100q after %.100q: %v", e.Name, line, last, err)
			}
			got[word], last = n, word
		}
	}
	return got
}

func checkOutput(t *testing.T, names sigma.Namespace, want map[string]uint64) {
	t.Helper()
	if got := output(t, names); !maps.Equal(got, want) {
		for w, n := range want {
			if got[w] != n {
				t.Errorf("%.50q: got %d, want %d", w, got[w], n)
				break
			}
		}
		t.Fatalf("got %d words, want %d", len(got), len(want))
	}
}
