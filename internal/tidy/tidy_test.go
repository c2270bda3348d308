package tidy

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// rules are the checks that need nothing but the tree.
var rules = []struct {
	name  string
	check func(*Tree) []Finding
}{
	{"layers", CheckLayers},
	{"package-name", CheckPackageNames},
	{"package-comment", CheckPackageComments},
	{"exit", CheckExits},
	{"state", CheckState},
	{"sleep", CheckSleeps},
	{"host", CheckHost},
	{"passing", CheckPassing},
	{"clock", CheckClock},
	{"size", CheckSizes},
	{"width", CheckWidth},
	{"package-size", CheckPackageSizes},
	{"struct-size", CheckStructSizes},
	{"task", CheckTasks},
	{"machine-path", func(t *Tree) []Finding { return CheckPaths(t, nil) }},
	{"unsafe", CheckUnsafe},
	{"fuzz", CheckFuzz},
	{"link", CheckLinks},
	{"command", CheckCommands},
	{"named-test", CheckNamedTests},
}

const root = "../.."

func load(t *testing.T, fsys fs.FS) *Tree {
	t.Helper()
	tree, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func report(t *testing.T, found []Finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

// TestRepository is the rule itself: this repository has no findings.
func TestRepository(t *testing.T) {
	tree := load(t, os.DirFS(root))
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) { report(t, r.check(tree)) })
	}
	t.Run("private-strings", func(t *testing.T) {
		dir, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		proxy, err := exec.CommandContext(t.Context(), "go", "env", "GOPROXY").Output()
		if err != nil {
			t.Fatal(err)
		}
		report(t, CheckPaths(tree, PrivateStrings(dir, strings.TrimSpace(string(proxy)))))
	})
	t.Run("weight", func(t *testing.T) {
		found, err := CheckWeight(tree, Weights, func(dir string) ([]listed, error) {
			return GoList(t.Context(), root, dir)
		})
		if err != nil {
			t.Fatal(err)
		}
		report(t, found)
	})
}

// TestCount prints the code lines of each package, largest first (make lint).
func TestCount(t *testing.T) {
	of := Count(load(t, os.DirFS(root)))
	dirs := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Compare(of[b], of[a]) })
	all := 0
	for _, dir := range dirs {
		t.Logf("%6d %s", of[dir], dir)
		all += of[dir]
	}
	t.Logf("%6d in all", all)
	if n := codeLines("package p\n\n// words\nvar s = `a\nb`\n"); n != 3 {
		t.Errorf("%d lines of code are counted, not 3", n)
	}
}

// Goal: every rule can fail, and says so at the right line. Method: each file of testdata/bad is a
// small tree, "-- name --" before each file, with a file "want" of the findings, one "file:line:
// rule: words" a line in any order; the words are a part of the message.
func TestBadExamples(t *testing.T) {
	seen := map[string]bool{}
	examples, err := filepath.Glob("testdata/bad/*.txt")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range examples {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			tree, want := example(t, file)
			var got []Finding
			for _, r := range rules {
				got = append(got, r.check(tree)...)
			}
			for _, f := range got {
				seen[f.Rule] = true
			}
			compare(t, got, want)
		})
	}
	for _, r := range rules {
		if !seen[r.name] {
			t.Errorf("no bad example makes rule %s fail", r.name)
		}
	}
}

// repeatLine stands for many lines, for the rule on sizes.
var repeatLine = regexp.MustCompile(`(?m)^repeat ([0-9]+): (.*)\n`)

// example reads a tree and the findings it wants.
func example(t *testing.T, file string) (*Tree, []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	for _, section := range strings.Split("\n"+string(data), "\n-- ")[1:] {
		name, text, ok := strings.Cut(section, " --\n")
		if !ok {
			t.Fatalf("bad section %.40q", section)
		}
		text = repeatLine.ReplaceAllStringFunc(text+"\n", func(m string) string {
			parts := repeatLine.FindStringSubmatch(m)
			n, _ := strconv.Atoi(parts[1])
			return strings.Repeat(parts[2]+"\n", n)
		})
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	want := strings.Split(strings.TrimSpace(string(files["want"].Data)), "\n")
	delete(files, "want")
	return load(t, files), slices.DeleteFunc(want, func(s string) bool { return s == "" })
}

func compare(t *testing.T, got []Finding, want []string) {
	t.Helper()
	for _, w := range want {
		place, words, _ := strings.Cut(w, " ... ")
		i := slices.IndexFunc(got, func(f Finding) bool {
			return strings.HasPrefix(f.String(), place+":") && strings.Contains(f.Msg, words)
		})
		if i < 0 {
			t.Errorf("lacks %s", w)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	for _, f := range got {
		t.Errorf("not wanted: %v", f)
	}
}

func TestCheckWeight(t *testing.T) {
	tree := load(t, fstest.MapFS{"sdk/a.go": {Data: []byte("// Package sdk is.\npackage sdk\n")}})
	const out = `{"ImportPath":"net/http","Standard":true}
{"ImportPath":"log/slog","Standard":true,"Imports":["net/http"]}
{"ImportPath":"sigmaos.dev/sigma","Imports":["log/slog"]}
{"ImportPath":"golang.org/x/sys/unix"}
{"ImportPath":"example.org/heavy"}
{"ImportPath":"google.golang.org/protobuf/proto"}
{"ImportPath":"sigmaos.dev/sdk","Imports":["example.org/heavy","sigmaos.dev/sigma"]}
`
	found, err := CheckWeight(tree, Weights, func(string) ([]listed, error) {
		return parseList(strings.NewReader(out))
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, found, []string{
		"sdk: weight ... sigmaos.dev/sdk imports sigmaos.dev/sigma imports log/slog imports net/http: a proc",
		"sdk: weight ... sigmaos.dev/sdk imports example.org/heavy: every proc",
		"sdk: weight ... google.golang.org/protobuf/proto: every proc",
		"sdk: weight ... google.golang.org/protobuf/proto: a proc",
	})
}

func TestPrivateStrings(t *testing.T) {
	for _, c := range []struct {
		root, proxy string
		want        string
	}{
		{"/tmp/x1", "https://proxy.golang.org,direct", "/tmp/x1/"},
		{"/src", "direct", ""},
		{"/builder/clone", "https://mirror.example/go|https://proxy.golang.org",
			"/builder/clone/ /builder/ mirror.example"},
		{"/srv/a/b", "off", "/srv/a/b/"},
	} {
		if got := strings.Join(PrivateStrings(c.root, c.proxy), " "); got != c.want {
			t.Errorf("%s, %s: got %q, want %q", c.root, c.proxy, got, c.want)
		}
	}
	tree := load(t, fstest.MapFS{"a.md": {Data: []byte("see https://mirror.example/go\n")}})
	if found := CheckPaths(tree, []string{"mirror.example"}); len(found) != 1 || found[0].Line != 1 {
		t.Errorf("got %v", found)
	}
}

// Every layer's rule on sideways imports and the direction of every pair of layers.
func TestImportProblem(t *testing.T) {
	for _, c := range []struct {
		from, to string
		test     bool
		ok       bool
	}{
		{"wire/sigmap", "sigma", false, true},
		{"sigma", "wire/sigmap", false, false},
		{"sigma", "wire/sigmap", true, true}, // tests may
		{"trees/treeserver", "wire/session", false, true},
		{"trees/memfs", "trees/named", false, false},
		{"trees/memfs", "trees/treetest", true, true},
		{"trees/named/store", "trees/named", false, true},
		{"trees/view", "trees/resolve", false, false},
		{"trees/named", "trees/resolve", false, true},
		{"lib/queue", "lib/once", false, false},
		{"lib/fleet/core", "lib/shard", false, true},
		{"sdk", "kernel", false, false},
		{"kernel", "sdk", false, false},
		{"sched/schedd", "sdk", false, false},
		{"kernel", "kernel/procs", false, true},
		{"kernel/cluster", "kernel/procs", false, true},
		{"kernel/procs", "kernel/cluster", false, false},
		{"kernel/procs", "kernel", false, false},
		{"kernel/new", "kernel/procs", false, false}, // it has no place in the order
		{"kernel/placement", "kernel/connect", true, true},
		{"apps/mr", "apps/mr/split", false, true},
		{"apps/mr", "apps/other", false, false},
		{"cmd/sigma", "kernel", false, true},
		{"cmd/sigma/table", "cmd/sigma", false, true},
		{"cmd/sigma", "cmd/bench", false, false},
		{"bench/start", "cmd/sigma", true, false},
		{"sdk", "nowhere", false, false},
	} {
		if msg := importProblem(c.from, c.to, c.test); (msg == "") != c.ok {
			t.Errorf("%s imports %s (test %v): got %q", c.from, c.to, c.test, msg)
		}
	}
}

func TestLayersHaveNoDirTwice(t *testing.T) {
	seen := map[string]string{}
	for _, l := range Layers {
		for _, d := range l.Dirs {
			if other, ok := seen[d]; ok {
				t.Errorf("%s is in %s and %s", d, other, l.Name)
			}
			seen[d] = l.Name
		}
		if l.Why == "" {
			t.Errorf("%s has no reason", l.Name)
		}
	}
}

// layerRow is a row of the layer table of ARCHITECTURE.md: number, name, packages.
var layerRow = regexp.MustCompile("^\\| ([0-9]+) \\| ([a-z]+) \\| ([^|]*) \\|")

// Goal: ARCHITECTURE.md shows the table of layers.go. Method: the directories that a row names are
// those of the layer, or right below one of them.
func TestArchitectureShowsLayers(t *testing.T) {
	tree := load(t, os.DirFS(root))
	shown := map[string][]string{}
	_, table, _ := strings.Cut(strings.Join(tree.Texts["ARCHITECTURE.md"], "\n"), "\n## Layers\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		m := layerRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for i, word := range strings.Split(m[3], "`") {
			if i%2 == 1 { // within backquotes
				shown[m[1]+" "+m[2]] = append(shown[m[1]+" "+m[2]], strings.TrimSuffix(word, "/*"))
			}
		}
	}
	for i, l := range Layers {
		row := strconv.Itoa(i) + " " + l.Name
		for _, d := range l.Dirs {
			if !slices.ContainsFunc(shown[row], func(s string) bool { return within(s, d) }) {
				t.Errorf("%s of layers.go is not in the row %q of ARCHITECTURE.md: add it there", d, row)
			}
		}
		for _, s := range shown[row] {
			if !within(s, l.Dirs...) {
				t.Errorf("%s in the row %q of ARCHITECTURE.md is not in layers.go", s, row)
			}
		}
		delete(shown, row)
	}
	for row := range shown {
		t.Errorf("layers.go has no layer %q, as ARCHITECTURE.md does", row)
	}
}
