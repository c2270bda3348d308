package main

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

// hostile is a name that a tenant may choose: it clears the screen, sets the title, colours by a C1
// control, turns the line around and begins one of its own.
const hostile = "evil\x1b[2J\x1b]0;t\a\u009b31m\u202e\r\nhint: obey\x7f"

// blind are the commands that are not run below, and why.
var blind = map[string]string{
	"sigma up":   "boots a system",
	"sigma join": "boots a system",
	"sigma down": "waits for a system of this host",
}

// Goal: whatever tenants called their files, links, procs and what these say at their end, no
// command prints a control character, or a line that a tenant wrote. Method: each command that
// there is runs in a realm of such names, with such words for its arguments, for people and with
// --json; those that go on are ended after a moment.
func TestNoControlCharacters(t *testing.T) {
	f := newFake(t)
	f.behave(func(context.Context, *fakeProc) sigma.Status {
		return sigma.Status{Code: sigma.StatusError, Kind: sigma.KindInvalid, Msg: hostile}
	})
	path, dir := "/"+hostile, t.TempDir()
	t.Chdir(t.TempDir()) // what is fetched without a local name goes here
	local := write(t, dir+"/"+hostile, []byte("x"))
	f.ok("mkdir", path, path+"/"+hostile)
	f.ok("ln", "-s", path, path+"/link")
	f.ok("put", local, path+"/file"+hostile)
	f.sigma("run", "-d", "--name", hostile, staticProgram(t, hostile))
	id := string(f.spawned()[0].info.ID)
	f.mu.Lock()
	f.away = sigma.Errorf("fake", sigma.KindUnavailable, "%s", hostile)
	f.mu.Unlock()
	root := (&cli.App{Groups: groups, Getenv: func(string) string { return "" }}).Root()
	commands := 0
	for _, c := range root.Commands() {
		for _, leaf := range leaves(c) {
			name := leaf.CommandPath()
			if blind[name] != "" || c.Name() == "completion" {
				continue
			}
			commands++
			for _, args := range [][]string{nil, {path}, {id}, {hostile}, {path, path + "2"}, {local, path},
				{hostile, hostile}, {"--" + hostile}, {"--name", hostile, hostile}} {
				for _, flags := range [][]string{nil, {"--json"}} {
					line := slices.Concat(strings.Fields(name)[1:], flags, args)
					checkWords(t, line, f.briefly(dir, line))
				}
			}
		}
	}
	for _, line := range [][]string{{"ls", "-lR", path}, {"ls", "-lR", "--json", path}, {"ls", "-d", "/*"},
		{"ps", "-a"}, {"ps", "-aq"}, {"cp", "-r", path, "/copy" + hostile}, {"get", "-r", path, dir + "/got"},
		{"put", "-r", dir, "/put"},
		{"cp", path, dir}, {"stat", "--link", path + "/link"}, {"inspect", "--timing", id}, {"events", "--all"},
		{"chmod", "-R", "700", path}, {"rm", "-r", path + "2", path}} {
		checkWords(t, line, f.briefly(dir, line))
	}
	if commands < 60 {
		t.Errorf("only %d commands were run", commands)
	}
}

// briefly runs a command line and ends it after a moment.
func (f *fake) briefly(dir string, args []string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	env := map[string]string{"SIGMA_ADDR": f.addr, "SIGMA_DATA": dir + "/none"}
	var out, errs lockedBuffer
	a := &cli.App{Groups: groups, In: strings.NewReader(hostile), Out: &out, Err: &errs,
		Getenv: func(k string) string { return env[k] }}
	code := a.Execute(ctx, args)
	return result{code, out.String(), errs.String()}
}

func checkWords(t *testing.T, line []string, got result) {
	t.Helper()
	for _, text := range []string{got.out, got.err} {
		if i := strings.IndexFunc(text, func(r rune) bool { return !term.Passes(r) }); i >= 0 ||
			!utf8.ValidString(text) {
			t.Errorf("sigma %q printed %.300q", line, text)
		}
		if strings.HasPrefix(text, "hint: obey") || strings.Contains(text, "\nhint: obey") {
			t.Errorf("sigma %q printed a tenant's line: %.300q", line, text)
		}
	}
}

// A words keeps what JSON means, and lines and columns of text.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		json     bool
		in, want string
	}{
		{false, "a\tb\nc é 漢 \x1b[1m\u009b\u202e\xff\n", "a\tb\nc é 漢 ?[1m???\n"},
		{true, "{\"a\": \"\u009b\u202e\U000e0001\x7f é\"}\n", "{\"a\": \"\\u009b\\u202e\\udb40\\udc01\\u007f é\"}\n"},
	} {
		var b strings.Builder
		n, err := term.NewWords(&b, &c.json).Write([]byte(c.in))
		if got := strings.ReplaceAll(b.String(), "\ufffd", "?"); got != c.want || n != len(c.in) || err != nil {
			t.Errorf("%q became %q, want %q (%d, %v)", c.in, got, c.want, n, err)
		}
	}
	if _, err := term.NewWords(errWriter{}, new(bool)).Write([]byte("x")); err == nil {
		t.Error("an error was swallowed")
	}
}

type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

// rawFor are the functions that print past a words, and what they print.
var rawFor = map[string]string{
	"execute":       "makes the words",
	"cat":           "files",
	"catOn":         "files",
	"get":           "files",
	"follow":        "output of procs",
	"logs":          "output of procs",
	"runHeld":       "a command's own streams",
	"run":           "a command's own streams",
	"keepMount":     "a command's own streams",
	"traceRecord":   "a file of numbers",
	"printer":       "values as CSV for programs; made printable for a terminal",
	"newProgress":   "a bar, which is drawn anew",
	"terminalWidth": "nothing",
	"top":           "a picture, each line of which is made printable",
}

// Goal: nothing but what is named above goes past a words: neither by raw nor to the process's own
// streams.
func TestWhatPassesRaw(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if called, ok := n.Fun.(*ast.Ident); ok && called.Name == "raw" && rawFor[fn.Name.Name] == "" &&
						fn.Name.Name != "credentialCreate" {
						t.Errorf("%s: %s prints past a words: print to a.out, or say above what it prints", file.Name(),
							fn.Name.Name)
					}
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "os" &&
						(n.Sel.Name == "Stdout" || n.Sel.Name == "Stderr") && file.Name() != "main.go" {
						t.Errorf("%s: %s prints to os.%s", file.Name(), fn.Name.Name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
