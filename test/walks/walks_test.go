//go:build system

// Package walks holds the numbered walks of ARCHITECTURE.md to what the system does: it counts the
// code that a Spawn, an Open and a Dial run, in all processes that take part.
package walks

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	acts    = 48           // of one round
	enough  = acts * 7 / 8 // more times than in the idle time that a block of the walk runs
	rounds  = 3            // that are counted; a file is crossed that is so in all of them
	warmups = 1            // rounds before that are not
	settle  = time.Second  // after the acts were undone: what is written of that later is no part of the next
	testMax = 5 * time.Minute
)

// daemons are the programs that are built with counters and the hook.
var daemons = []string{"sigmad", "named", "besched", "lcsched", "machined", "s3d", "dbd"}

// A walk is what a section of ARCHITECTURE.md tells, step by step.
type walk struct {
	name, section string
	goal          int // how many files it is to cross at most
	most          int // how many are let pass: what it crosses today, until that is the goal
}

var walks = []walk{
	{"spawn", "## One Spawn", 25, 52},
	{"open", "## One Open", 18, 22},
	{"dial", "## One Dial", 14, 14},
}

// Goal: the numbered walks of ARCHITECTURE.md name every package that such an act crosses, and an
// act crosses few files.
//
// Method: the programs are built with counters. A proc makes a number of acts, one after the other,
// and is idle for as long, several times. A file is crossed if in every round some function of it
// was entered once more for each act than in the idle time; an eighth is allowed for what else goes
// on. So what the machine does beside does not count, nor what is done once for many acts.
func TestWalks(t *testing.T) {
	testenv.RequireRoot(t)
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	programs := build(t, root) // which takes minutes where others compile too
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	s := testenv.Boot(t, testenv.Options{})
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	m := &measure{ctx: ctx, s: s, c: c, root: root, entries: map[string]map[string]bool{}, pids: map[string]int{},
		covdata: strings.TrimSpace(testenv.Output(t, "go", "tool", "-n", "covdata"))}
	m.prepare(t, programs)
	for _, w := range walks {
		t.Run(w.name, func(t *testing.T) {
			files := m.walk(t, w.name)
			check(t, w, files, string(text), root)
		})
	}
}

// build makes a directory of programs for the system, and walker and idle beside it. It compiles a
// copy of the sources, in which the daemons have the hook.
func build(t *testing.T, root string) (programs string) {
	dir, source := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(filepath.Dir(dir), 0o711)) // who compiles may be another user
	began := time.Now()
	for _, file := range []string{"go.mod", "go.sum"} {
		must(copyFile(filepath.Join(source, file), filepath.Join(root, file)))
	}
	walker := "test/walks/testdata/walker"
	for _, part := range []string{"kernel", "sched", "sdk", "sigma", "trees", "wire", walker} {
		must(os.CopyFS(filepath.Join(source, part), os.DirFS(filepath.Join(root, part))))
	}
	args := []string{"-C", source, "build", "-trimpath", "-ldflags=-w", "-cover", "-covermode=atomic",
		"-coverpkg=sigmaos.dev/...", "-o", dir + "/", "./" + walker}
	for _, d := range daemons {
		part := filepath.Join("cmd", d)
		must(os.CopyFS(filepath.Join(source, part), os.DirFS(filepath.Join(root, part))))
		must(copyFile(filepath.Join(source, part, "hook.go"), "testdata/hook.go"))
		args = append(args, "./"+part)
	}
	bin := os.Getenv("SIGMA_TEST_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
	}
	for _, name := range []string{"sigma", "launcher"} {
		must(copyFile(filepath.Join(dir, name), filepath.Join(bin, name)))
	}
	testenv.RunGo(t, dir, args...)
	testenv.BuildGo(t, dir, "testdata/idle")
	t.Logf("the programs were built within %v", time.Since(began).Round(time.Second))
	t.Setenv("SIGMA_TEST_BIN", dir)
	return dir
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// measure makes walks and counts.
type measure struct {
	ctx     context.Context
	s       *testenv.System
	c       *sdk.Client
	covdata string
	root    string                     // of the sources
	entries map[string]map[string]bool // by file; the places where functions begin
	pids    map[string]int             // of the daemons
	asked   int                        // how often the daemons were asked for their counters
}

// prepare stores what the walks need.
func (m *measure) prepare(t *testing.T, programs string) {
	for _, dir := range []string{"/walks", "/s3/walks"} {
		if err := m.c.MkdirAll(m.ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.put(t, "/s3/walks/x", []byte("x"))
	for _, name := range []string{"walker", "idle"} {
		m.s.Install(m.ctx, t, m.c, filepath.Join(programs, name))
	}
	for _, d := range daemons {
		if pid := m.s.PID(d); pid != 0 { // as that of dbd before a realm uses databases
			m.pids[d] = pid
		}
	}
	m.spawn(t, "listen", "/walks")
	m.waitFor(t, "/walks/endpoint")
}

func (m *measure) put(t *testing.T, path string, data []byte) {
	t.Helper()
	if _, err := m.c.Put(m.ctx, path, data, sigma.PutOptions{Perm: 0o644}); err != nil {
		t.Fatal(err)
	}
}

func (m *measure) waitFor(t *testing.T, path string) {
	t.Helper()
	if err := m.c.WaitFor(m.ctx, path); err != nil {
		t.Fatal(err)
	}
}

func (m *measure) spawn(t *testing.T, args ...string) {
	t.Helper()
	ids, err := m.c.Spawn(m.ctx, sigma.Descriptor{Program: "/bin/walker", Args: args, Memory: 64 * sigma.MiB})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(m.ctx)
		m.c.Kill(ctx, ids[0])
		if st, err := m.c.WaitExit(ctx, ids[0]); err != nil || st.Code != sigma.StatusEvicted {
			t.Errorf("walker %q: %+v, %v", args, st, err)
		}
	})
}

// entered is how often each function was entered in a process; one is called "sdk/sdk.go:12.3".
type entered map[string]int

// walk gives the files that each act of a walk crosses, with the processes in which they are.
func (m *measure) walk(t *testing.T, name string) map[string][]string {
	if err := m.c.MkdirAll(m.ctx, "/walks/"+name, 0o755); err != nil {
		t.Fatal(err)
	}
	m.spawn(t, name, "/walks/"+name, fmt.Sprint(acts))
	var crossed map[string][]string
	for n := range warmups + rounds {
		acted, idle := m.round(t, name, n)
		if n < warmups {
			continue
		}
		files := map[string][]string{}
		for process, dir := range acted {
			rest := m.read(t, idle[process])
			for function, n := range m.read(t, dir) {
				file, _, _ := strings.Cut(function, ":")
				if n-rest[function] >= enough && !slices.Contains(files[file], process) {
					files[file] = append(files[file], process)
				}
			}
		}
		if crossed == nil {
			crossed = files
		}
		for file, in := range crossed {
			crossed[file] = slices.DeleteFunc(in, func(p string) bool { return !slices.Contains(files[file], p) })
		}
	}
	maps.DeleteFunc(crossed, func(_ string, in []string) bool { return len(in) == 0 })
	return crossed
}

// round makes the acts once and gives the directories of the counters, by process: those of the
// acts and those of the idle time after.
func (m *measure) round(t *testing.T, name string, n int) (acted, idle map[string]string) {
	prefix := fmt.Sprintf("/walks/%s/%d", name, n)
	phase := func(order, answer string) map[string]string {
		<-time.After(settle)
		m.ask(t)
		m.put(t, prefix+order, nil)
		m.waitFor(t, prefix+answer)
		<-time.After(settle)
		return m.ask(t)
	}
	acted, idle = phase("-act", "-acted"), phase("-rest", "-rested")
	m.put(t, prefix+"-undo", nil)
	m.waitFor(t, prefix+"-over")
	for what, to := range map[string]map[string]string{"acts": acted, "idle": idle} {
		dir := t.TempDir()
		meta := m.get(t, "/s3/walks/"+name+"-meta")
		hash := fmt.Sprintf("%x", meta[24:40])
		for file, data := range map[string][]byte{"covmeta." + hash: meta,
			"covcounters." + hash + ".1.1": m.get(t, fmt.Sprintf("/s3/walks/%s-%d-%s", name, n, what))} {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		to["proc"] = dir
	}
	return acted, idle
}

func (m *measure) get(t *testing.T, path string) []byte {
	t.Helper()
	data, _, err := m.c.Get(m.ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ask has each daemon write its counters and begin anew, and gives the directories of the counters.
func (m *measure) ask(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	for d, pid := range m.pids {
		dirs[d] = filepath.Join(m.s.DataDir, d, "walks", strconv.Itoa(m.asked))
		if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	m.asked++
	for d, dir := range dirs {
		testenv.Eventually(t, d+" writes its counters", func() error {
			_, err := os.Stat(dir)
			return err
		})
	}
	return dirs
}

// read reads a directory of counters.
func (m *measure) read(t *testing.T, dir string) entered {
	t.Helper()
	out := filepath.Join(t.TempDir(), "text")
	testenv.Output(t, m.covdata, "textfmt", "-i", dir, "-o", out)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	all := entered{}
	for line := range strings.Lines(string(text)) { // sigmaos.dev/FILE:LINE.COLUMN,LINE.COLUMN STATEMENTS TIMES
		block, numbers, _ := strings.Cut(strings.TrimPrefix(line, "sigmaos.dev/"), " ")
		at, _, ok := strings.Cut(block, ",")
		if _, times, _ := strings.Cut(strings.TrimSpace(numbers), " "); ok && times != "0" && m.isEntry(t, at) {
			if all[at], err = strconv.Atoi(times); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	}
	return all
}

// isEntry says whether a function begins at a place of our code, as in "sdk/sdk.go:12.3". Of the
// mains and the tests' programs nothing is asked.
func (m *measure) isEntry(t *testing.T, at string) bool {
	file, _, _ := strings.Cut(at, ":")
	if m.entries[file] == nil {
		m.entries[file] = map[string]bool{}
		if strings.HasPrefix(file, "test/") || strings.HasPrefix(file, "cmd/") {
			return false
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, filepath.Join(m.root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			var body *ast.BlockStmt
			switch f := n.(type) {
			case *ast.FuncDecl:
				body = f.Body
			case *ast.FuncLit:
				body = f.Body
			}
			if body != nil {
				p := set.Position(body.Lbrace)
				m.entries[file][fmt.Sprintf("%s:%d.%d", file, p.Line, p.Column)] = true
			}
			return true
		})
	}
	return m.entries[file][at]
}

var quoted = regexp.MustCompile("`([a-z0-9/_]+)(/[a-z0-9_]+\\.go)?`")

// check compares a walk with its section of ARCHITECTURE.md.
func check(t *testing.T, w walk, files map[string][]string, text, root string) {
	_, section, ok := strings.Cut(text, "\n"+w.section)
	if !ok {
		t.Errorf("ARCHITECTURE.md has no section %q", w.section)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for _, m := range quoted.FindAllStringSubmatch(section, -1) {
		named[m[1]] = true
	}
	var list strings.Builder
	missing := map[string]bool{}
	count := 0
	for _, file := range slices.Sorted(maps.Keys(files)) {
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(source), "// Code generated") {
			continue
		}
		count++
		slices.Sort(files[file])
		fmt.Fprintf(&list, "  %s (%s)\n", file, strings.Join(files[file], ", "))
		if dir := path.Dir(file); !named[dir] {
			missing[dir] = true
		}
	}
	t.Logf("%s crosses %d files; the goal is %d:\n%s", w.name, count, w.goal, list.String())
	for _, dir := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s crosses the package %s, which the section %q of ARCHITECTURE.md does not name", w.name, dir,
			w.section)
	}
	if count > w.most {
		t.Errorf("%s crosses %d files, and %d are the most", w.name, count, w.most)
	}
}
