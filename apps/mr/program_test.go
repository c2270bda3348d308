package mr

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func sortLines(_ string, text []byte, out *Emitter) error {
	for line := range bytes.Lines(text) {
		out.Count(bytes.TrimSuffix(line, []byte("\n")), 1)
	}
	return nil
}

// TestSort wants lines of all bytes in order over all parts, none of them much larger than another;
// also where tables are so small that they are written out many times.
func TestSort(t *testing.T) {
	names := realm(t)
	texts := someTexts()
	storeTexts(t, names, texts)
	var want []string
	for _, text := range texts {
		for line := range strings.Lines(string(text)) {
			want = append(want, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(want)
	procs := newFakeProcs(t, names)
	procs.mapper, procs.reducer, procs.memory = Mapper{Map: sortLines, Ordered: true}, Each, 2<<20
	s, err := procs.client().Run(t.Context(), "job", testJob(5, 4))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for i := range 4 {
		part, _, err := names.Get(t.Context(), "/out/"+partName(i))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(part, []byte("\n")); n < len(want)/8 || n > len(want)/2 {
			t.Errorf("part %d has %d of %d lines", i, n, len(want))
		}
		got = append(got, part...)
	}
	if s.Records != int64(len(want)) || string(got) != strings.Join(want, "\n")+"\n" {
		t.Errorf("got %d bytes, %+v, want %d lines", len(got), s, len(want))
	}
}

// TestValues groups values by key, leaves some unread, and fails a job whose functions fail.
func TestValues(t *testing.T) {
	names := realm(t)
	texts := map[string][]byte{"a": []byte("x 1\ny 2\nx 3\n"), "b": []byte("x 1\ny 5\nz 9")}
	fill(t, names, texts)
	procs := newFakeProcs(t, names)
	procs.mapper.Between = nil
	procs.mapper.Map = func(path string, text []byte, out *Emitter) error {
		for line := range bytes.Lines(text) {
			key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
			out.Emit(key, append(value, path[len(path)-1]))
		}
		return nil
	}
	procs.reducer = func(key []byte, values Values, out *bufio.Writer) error {
		if string(key) == "y" {
			for v := range values {
				fmt.Fprintf(out, "y first %s\n", v)
				return nil
			}
		}
		for v, n := range values {
			fmt.Fprintf(out, "%s %s %d\n", key, v, n)
		}
		return nil
	}
	if _, err := procs.client().Run(t.Context(), "job", testJob(2, 1)); err != nil {
		t.Fatal(err)
	}
	got, _, err := names.Get(t.Context(), "/out/part-00000")
	if want := "x 1a 1\nx 1b 1\nx 3a 1\ny first 2a\nz 9b 1\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for name, broken := range map[string]func(){
		"map": func() { procs.mapper.Map = func(string, []byte, *Emitter) error { return errors.New("broken") } },
		"reduce": func() {
			procs.mapper.Map = countWords
			procs.reducer = func([]byte, Values, *bufio.Writer) error {
				return sigma.Errorf("test", sigma.KindInvalid, "broken")
			}
		},
	} {
		broken()
		names.RemoveAll(t.Context(), "/out")
		_, err := procs.client().Run(t.Context(), name, testJob(1, 1)) // of two maps either may be named
		if err == nil || !strings.Contains(err.Error(), name+" 0") || !strings.Contains(err.Error(), "broken") {
			t.Errorf("%s: got %v", name, err)
		}
		procs.checkUnregistered(t)
	}
}

// TestInput gives the same files by a prefix and by a manifest.
func TestInput(t *testing.T) {
	names := realm(t)
	want := fill(t, names, map[string][]byte{"log-1": []byte("a b"), "log-2/x": []byte("b c"),
		"log-2/y/z": []byte("d")})
	fill(t, names, map[string][]byte{"other": []byte("no"), "lo": []byte("no")})
	manifest := "/in/log-1\n\n/in/log-2\n"
	if _, err := names.Put(t.Context(), "/manifest", []byte(manifest), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	procs := newFakeProcs(t, names)
	for name, change := range map[string]func(*Job){
		"prefix":    func(j *Job) { j.Input, j.Prefix = "", "/in/log-" },
		"manifest":  func(j *Job) { j.Input, j.Manifest = "", "/manifest" },
		"directory": func(j *Job) { j.Input, j.Prefix = "", "/in/log" },
	} {
		job := testJob(2, 1)
		change(&job)
		names.RemoveAll(t.Context(), "/out")
		if s, err := procs.client().Run(t.Context(), name, job); err != nil || s.Files != 3 {
			t.Fatalf("%s: %+v, %v", name, s, err)
		}
		if got := output(t, names); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	job := testJob(1, 1)
	job.Prefix = "/in/log-"
	if err := job.Check(); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("an input given twice: %v", err)
	}
	if _, err := names.Put(t.Context(), "/manifest", []byte("/nowhere"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	job = testJob(1, 1)
	job.Input, job.Manifest, job.Output = "", "/manifest", "/out2"
	if _, err := procs.client().Run(t.Context(), "bad", job); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a manifest that names nothing: %v", err)
	}
}

// TestAttach leaves a job and follows it again, and lists it meanwhile; its result is read once.
func TestAttach(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	c := newFakeProcs(t, names).client()
	job := testJob(3, 2)
	job.Args = []string{"a b", "", "c\n"}
	if err := c.Submit(t.Context(), "job", job); err != nil {
		t.Fatal(err)
	}
	jobs, err := c.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].ID != "job" || !slices.Equal(jobs[0].Job.Args, job.Args) {
		t.Errorf("listed: %+v, %v", jobs, err)
	}
	if err := c.Submit(t.Context(), "job", job); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("a second one of its name: %v", err)
	}
	if _, err := c.Follow(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
	if _, err := c.Follow(t.Context(), "job"); sigma.KindOf(err) != sigma.KindNotFound || sigma.HintOf(err) == "" {
		t.Errorf("once more: %v", err)
	}
	if jobs, err := c.Jobs(t.Context()); err != nil || len(jobs) > 0 {
		t.Errorf("listed: %+v, %v", jobs, err)
	}
}

// TestNear starts mappers where their input is.
func TestNear(t *testing.T) {
	names := realm(t)
	fill(t, names, map[string][]byte{"x": []byte("a")})
	for _, m := range []string{"m1", "m2"} {
		names.MkdirAll(t.Context(), "/ux/"+m, 0o777)
		if _, err := names.Put(t.Context(), "/ux/"+m+"/text", []byte("b"), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := names.Put(t.Context(), "/manifest", []byte("/in\n/ux/m1/text\n/ux/m2/text"),
		sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	procs := newFakeProcs(t, names)
	near := map[sigma.MachineID]int{}
	procs.onSpawn = func(d sigma.Descriptor, _ int) sigma.Status {
		procs.mu.Lock()
		defer procs.mu.Unlock()
		if d.Args[0] == RoleMap {
			near[d.Near]++
		}
		return sigma.Status{}
	}
	job := testJob(3, 1)
	job.Input, job.Manifest = "", "/manifest"
	if _, err := procs.client().Run(t.Context(), "job", job); err != nil {
		t.Fatal(err)
	}
	if want := map[sigma.MachineID]int{"": 1, "m1": 1, "m2": 1}; !maps.Equal(near, want) {
		t.Errorf("got %v, want %v", near, want)
	}
}
