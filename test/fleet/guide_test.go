//go:build system

// Package fleet runs fleets on a real machine: the coordinator, members of every protocol, and the
// guide.
package fleet

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

// blocks gives the fenced blocks of a kind in a Markdown file.
func blocks(text, kind string) (out []string) {
	for i, block := range strings.Split(text, "```") {
		if of, code, _ := strings.Cut(block, "\n"); i%2 == 1 && of == kind {
			out = append(out, code)
		}
	}
	return out
}

// follow runs the commands of a guide, of which program has the Go code, and gives what they print.
// The programs are built before.
func follow(t *testing.T, guide, program string, built ...string) string {
	t.Helper()
	s := shared.Get(t)
	ctx := testContext(t)
	text, err := os.ReadFile("../../docs/guide/" + guide)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../examples/" + program + "/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range blocks(string(text), "go") {
		if !strings.Contains(string(source), code) {
			t.Errorf("examples/%s has not:\n%s", program, code)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range built {
		testenv.BuildGo(t, filepath.Join(dir, "bin"), "../../examples/"+name)
	}
	sigmaProgram := s.Command(ctx).Path
	var said strings.Builder
	for i, block := range blocks(string(text), "sh") {
		// The programs are built, and this is root.
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
			"go() { :; }\nsudo() { shift; '"+sigmaProgram+"' \"$@\"; }\n"+block)
		cmd.Dir, cmd.Env = dir, s.Command(ctx).Env
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		err := cmd.Run()
		t.Logf("%s\n%s(%v)", block, out.String(), time.Since(began).Round(time.Millisecond))
		if err != nil {
			t.Fatalf("block %d: %v", i+1, err)
		}
		said.WriteString(out.String())
	}
	return said.String()
}

// says fails the test unless a text has what each pattern means.
func says(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, want := range patterns {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("nothing that the commands print is %s", want)
		}
	}
}

// Goal: who follows the guide gets what it promises: members that are checked, a fleet that grows
// with its load, an update in which no request fails, and a bad version that is undone.
func TestGuide(t *testing.T) {
	said := follow(t, "services.md", "web", "web", "webload")
	says(t, said, `(?m)^web would be made, with 2 to 6 members`, `(?m)^web made, with 2 to 6 members`,
		`(?m)^\d+ times answered: hello$`, `(?m)^\d+ times answered: good day$`, `(?m)^undone$`, `undone`,
		`\bgrow\b|from [0-9] to [3-6] members`)
	if strings.Contains(said, "times failed") {
		t.Error("requests failed")
	}
}

// Goal: who follows the guide finds the mistake that shows under faults only: the history without
// faults has one order, that with them has none, and that of the mended service has one again.
func TestFaultsGuide(t *testing.T) {
	said := follow(t, "faults.md", "register", "register", "toolkit/history")
	says(t, said, `(?m)^linearizable: \d+ operations on 3 keys`, `(?m)^not linearizable: \d+ operations on 3 keys`,
		`(?m)^It could have been answered: `, `(?m)^  kill of register@1 \(`,
		`(?ms)^not linearizable: .*^linearizable: `)
}

// Goal: a call to all members of a fleet reaches all that serve, and each once.
func TestBroadcast(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, shared.Program(t, "../../examples/ledgerserver"))
	apply(t, s, `{"name":"ledger","program":"`+path+`","least":3,"most":3,"health":{"kind":"call"}}`)
	group := call.NewGroup(c.Dialer(fleet.Members("ledger")).Members, call.Config{})
	defer group.Close()
	answers, err := group.Call(ctx, call.StatsMethod, nil)
	if err != nil || len(answers) != 3 {
		t.Errorf("%d members answer, %v, want 3", len(answers), err)
	}
	for _, a := range answers {
		if a.Err != nil || len(a.Reply) == 0 {
			t.Errorf("%s: %q, %v", a.Member, a.Reply, a.Err)
		}
	}
	s.Must(t, "fleet", "rm", "ledger")
}

// apply puts a description in force and waits until its members serve.
func apply(t *testing.T, s *testenv.System, spec string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.json")
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Must(t, "fleet", "apply", "--wait", "60s", file)
}
