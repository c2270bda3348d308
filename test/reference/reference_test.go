//go:build system

// Package reference runs the examples of the reference's pages, of every command and of every
// well-known path, on a real system, and compares what they print with what the pages show.
//
// Each page has a realm of its own, which is SIGMA_REALM, and a directory with the program hello
// and a directory texts. The pages of commands that start and stop systems have systems of their
// own. To begin a page's output, or to see what has changed: go test -tags system ./test/reference
// -args -rewrite, and look at the difference.
package reference

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

var (
	shared  testenv.Shared
	rewrite = flag.Bool("rewrite", false, "put into the pages what the commands print")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(shared.Main(m))
}

const docs = "../../docs/reference/"

// apart are the pages whose commands start, change and stop systems: their examples follow each
// other on two systems of their own.
var apart = []string{"up", "token", "machine", "join", "down"}

func pages(t *testing.T, kind string) []string {
	files, err := filepath.Glob(docs + kind + "/*.md")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d pages of %s, %v", len(files), kind, err)
	}
	return files
}

// TestCommands runs the examples of the commands' pages.
func TestCommands(t *testing.T) {
	s := shared.Get(t)
	for _, file := range pages(t, "commands") {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name != "README" && !slices.Contains(apart, name) {
			t.Run(name, func(t *testing.T) { runPage(t, s, file, "cmd-"+name) })
		}
	}
}

// TestPaths runs the examples of the paths' pages, and looks for places of a realm that have none.
func TestPaths(t *testing.T) {
	s := shared.Get(t)
	described := map[string]bool{}
	for _, file := range pages(t, "paths") {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		described[name] = true
		if name != "README" {
			t.Run(name, func(t *testing.T) { runPage(t, s, file, "path-"+name) })
		}
	}
	hello := shared.Program(t, "testdata/hello.c")
	id := strings.TrimSpace(s.Must(t, "run", "-d", hello))
	for _, dir := range []string{"/", "/sys", "/proc/" + id} {
		for _, name := range strings.Fields(s.Must(t, "ls", dir)) {
			page := strings.Trim(strings.Replace(dir, id, "pid", 1), "/") + "/" + name
			page = strings.ReplaceAll(strings.Trim(page, "/"), "/", "-")
			if !described[page] {
				t.Errorf("%s has no page: docs/reference/paths/%s.md", filepath.Join(dir, name), page)
			}
		}
	}
}

// begin makes what a page's commands find: the files of a directory, and where sigma is.
func begin(t *testing.T, s *testenv.System) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	program, err := os.ReadFile(shared.Program(t, "testdata/hello.c"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"hello": string(program), "texts/a.txt": "one fish two fish\n",
		"texts/b.txt": "red fish blue fish\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Dir(s.Command(t.Context()).Path)
	return dir, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "SIGMA_DATA=" + s.DataDir, "SIGMA_ADDR=", "TZ=UTC",
		"LC_ALL=C.UTF-8"}
}

// runPage runs the blocks of a page one after the other, in a realm of their own.
func runPage(t *testing.T, s *testenv.System, file, realm string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute*testenv.Slow())
	defer cancel()
	admin, err := sdk.Connect(ctx, s.Socket(), sigma.DefaultRealm)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	realm = realm[:min(len(realm), 32)]
	if err := admin.Realms().Create(ctx, sigma.RealmID(realm)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := admin.Realms().Remove(context.WithoutCancel(ctx), sigma.RealmID(realm)); err != nil {
			t.Error(err)
		}
	}()
	dir, env := begin(t, s)
	runBlocks(ctx, t, file, dir, append(env, "SIGMA_REALM="+realm), []string{"/var/lib/sigma", s.DataDir, "/srv/data",
		dir})
}

// TestSystems runs the examples of the pages whose commands start, change and stop systems.
func TestSystems(t *testing.T) {
	if _, _, rootless := testenv.RootlessUIDs(); rootless {
		t.Skip("skipped: these examples start systems as root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute*testenv.Slow())
	defer cancel()
	// They are not told to be booted: what still runs at the end is stopped, and what does not need
	// not start again.
	first, second := testenv.New(t, testenv.Options{}), testenv.New(t, testenv.Options{Machine: "m2"})
	dir, env := begin(t, first)
	real := []string{"/var/lib/sigma2", second.DataDir, "127.0.0.1:7700", freeAddress(t), "127.0.0.1:7701",
		freeAddress(t)}
	for _, name := range apart {
		t.Run(name, func(t *testing.T) {
			runBlocks(ctx, t, docs+"commands/"+name+".md", dir, append(env, "SIGMA_REALM="),
				append(real, "/var/lib/sigma", first.DataDir))
		})
	}
}

// freeAddress is one that nobody listens at, with a port that the kernel does not give away by
// itself.
func freeAddress(t *testing.T) string {
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// runBlocks runs a page's blocks. real has pairs of what the page shows and what stands for it in
// this run.
func runBlocks(ctx context.Context, t *testing.T, file, dir string, env, real []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks := consoles(string(text))
	if len(blocks) == 0 {
		t.Fatal("the page has no console block")
	}
	toReal := strings.NewReplacer(real...)
	shown := slices.Clone(real)
	for i := 0; i < len(shown); i += 2 {
		shown[i], shown[i+1] = shown[i+1], shown[i]
	}
	var outputs [][]string
	for _, steps := range blocks {
		run := slices.Clone(steps)
		for i := range run {
			run[i].command = toReal.Replace(run[i].command)
		}
		out := runConsole(ctx, t, run, dir, env)
		for i := range out {
			out[i] = strings.NewReplacer(shown...).Replace(out[i])
		}
		outputs = append(outputs, out)
		if !*rewrite {
			check(t, steps, out)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(rewritten(string(text), outputs)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
