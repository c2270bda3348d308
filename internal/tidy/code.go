package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// Sizes beyond which a file or function is refused, in lines; conventions ask for half of them.
const (
	fileMax     = 800
	functionMax = 100
)

// programs are the directories whose programs may exit and keep state: commands, the test runner,
// examples, and programs that tests run.
var programs = []string{"cmd", "internal/testrun", "examples", "test"}

// CheckExits finds code outside programs that ends the process.
func CheckExits(t *Tree) []Finding {
	var found []Finding
	t.eachFile(func(p *Package, f *File) {
		if f.Test || within(p.Dir, programs...) {
			return
		}
		report := func(what string, pos token.Pos) {
			found = append(found, Finding{"exit", f.Name, t.line(pos),
				what +
					" outside cmd/: a library that exits takes every other user of the process with it; return an " +
					"error"})
		}
		calls(f.AST, "os", func(name string, pos token.Pos) {
			if name == "Exit" {
				report("os.Exit", pos)
			}
		})
		calls(f.AST, "syscall", func(name string, pos token.Pos) {
			if name == "Exit" {
				report("syscall.Exit", pos)
			}
		})
		calls(f.AST, "log", func(name string, pos token.Pos) {
			if strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic") {
				report("log."+name, pos)
			}
		})
	})
	return found
}

// CheckSleeps finds tests that sleep. The wall clock may be waited for only with a condition and a
// deadline.
func CheckSleeps(t *Tree) []Finding {
	var found []Finding
	t.eachFile(func(_ *Package, f *File) {
		if !f.Test {
			return
		}
		calls(f.AST, "time", func(name string, pos token.Pos) {
			if name == "Sleep" && !inSynctest(f.AST, pos) {
				found = append(found, Finding{"sleep", f.Name, t.line(pos),
					"time.Sleep in a test is slow where it is not wrong: use a testing/synctest bubble, or wait for " +
						"the event itself"})
			}
		})
	})
	return found
}

// inSynctest reports whether pos lies in an argument of synctest.Test, where time is not real.
func inSynctest(f *ast.File, pos token.Pos) bool {
	pkg, in := importName(f, "testing/synctest"), false
	if pkg == "" {
		return false
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && call.Pos() <= pos && pos < call.End() {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Test" {
				x, ok := sel.X.(*ast.Ident)
				in = in || ok && x.Name == pkg
			}
		}
		return !in
	})
	return in
}

// hostPaths are the files of cmd/sigma that change what is at a path of the host, and why nobody
// else can have put it there.
var hostPaths = map[string]string{
	"cmd/sigma/datadir/data.go":       "DATA and its log, in a directory of this user's",
	"cmd/sigma/host/join.go":          "directories of DATA, removed without following links",
	"cmd/sigma/mounts/mountrights.go": "control groups",
	"cmd/sigma/host/realmsocket.go":   "a socket right below DATA, which is this user's",
}

// CheckHost finds where cmd/sigma, which is run as root, changes or walks the host's files by path.
func CheckHost(t *Tree) []Finding {
	byPath := map[string][]string{
		"os": {"Create", "CreateTemp", "WriteFile", "Rename", "Chmod", "Chown", "Lchown", "Chtimes",
			"Truncate", "Link", "Symlink", "CopyFS", "RemoveAll"},
		"path/filepath": {"Walk", "WalkDir"},
	}
	var found []Finding
	t.eachFile(func(p *Package, f *File) {
		if f.Test || !within(p.Dir, "cmd/sigma") || hostPaths[f.Name] != "" {
			return
		}
		for pkg, names := range byPath {
			calls(f.AST, pkg, func(name string, pos token.Pos) {
				if slices.Contains(names, name) {
					found = append(found, Finding{"host", f.Name, t.line(pos),
						name +
							" goes by a path that another user of the host may change meanwhile: use package hostdir"})
				}
			})
		}
	})
	return found
}

// CheckPassing finds code outside inflight that sends file descriptors, and so descriptors that
// nobody counts.
func CheckPassing(t *Tree) []Finding {
	var found []Finding
	t.eachFile(func(p *Package, f *File) {
		if f.Test || within(p.Dir, "wire/inflight", "test") {
			return
		}
		for _, pkg := range []string{"syscall", "golang.org/x/sys/unix", Module + "/wire/rawio"} {
			calls(f.AST, pkg, func(name string, pos token.Pos) {
				if name == "UnixRights" || name == "Sendmsg" {
					found = append(found, Finding{"passing", f.Name, t.line(pos),
						name +
							" outside inflight: descriptors that are sent uncounted can fill the kernel's limit, and " +
							"stop every realm; use an inflight.Parcel"})
				}
			})
		}
	})
	return found
}

// CheckSizes finds files and functions that nobody can hold in mind.
func CheckSizes(t *Tree) []Finding {
	var found []Finding
	for _, name := range t.names(".go", ".rs") {
		if n := len(t.Texts[name]) - 1; n > fileMax && !generated(t.Texts[name]) {
			found = append(found, Finding{"size", name, 0,
				fmt.Sprintf("%d lines, %d are allowed: there is more than one subject in it; split it by subject", n,
					fileMax)})
		}
	}
	t.eachFile(func(_ *Package, f *File) {
		if ast.IsGenerated(f.AST) {
			return
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > functionMax {
				found = append(found, Finding{"size", f.Name, t.line(fn.Pos()),
					fmt.Sprintf("%s has %d lines, %d are allowed: name its steps and make them functions", fn.Name.Name,
						n, functionMax)})
			}
		}
	})
	return found
}

func generated(lines []string) bool {
	return slices.ContainsFunc(lines[:min(20, len(lines))], func(l string) bool {
		return strings.HasPrefix(l, "// Code generated ") && strings.HasSuffix(l, " DO NOT EDIT.")
	})
}
