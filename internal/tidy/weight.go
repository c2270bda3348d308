package tidy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Weight is a rule on what a package may depend on, directly or not.
type Weight struct {
	Dirs []string
	// Outside are the prefixes of packages outside the standard library and this module that are
	// allowed.
	Outside []string
	// Banned are packages, with those below them, that are not allowed even so.
	Banned []string
	Why    string
}

// Weights is the table of such rules.
var Weights = []Weight{
	{
		Dirs: []string{
			"sigma", "sigma/retry", "wire/sigmap", "wire/session", "trees/treeserver", "trees/resolve",
			"wire/rawio", "wire/inflight", "trees/fence", "trees/memfs", "wire/ring", "sdk", "sdk/call",
		},
		Outside: []string{"golang.org/x/sys"},
		Why:     "every proc links it: what it drags in is paid at each start and trusted everywhere",
	},
	{
		Dirs: []string{"sdk", "sdk/call", "apps/mr"},
		Banned: []string{"net/http", "net/rpc", "crypto/tls", "encoding/json", "encoding/gob", "encoding/xml",
			"text/template", "html/template",
			"google.golang.org/grpc", "google.golang.org/protobuf"},
		Why: "a proc that uses the SDK must start within 0.5 ms of an empty Go program; this has tables or init " +
			"functions that cost more",
	},
}

// listed is what go list -json tells of a package.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

// CheckWeight applies the rules to packages of the tree, asking list for the dependencies of one
// directory.
func CheckWeight(t *Tree, rules []Weight, list func(dir string) ([]listed, error)) ([]Finding, error) {
	var found []Finding
	for _, w := range rules {
		for _, dir := range w.Dirs {
			if !t.has(dir) {
				continue
			}
			deps, err := list(dir)
			if err != nil {
				return nil, err
			}
			for _, d := range deps {
				if w.forbids(d) {
					found = append(found,
						Finding{"weight", dir, 0, strings.Join(chain(deps, Module+"/"+dir, d.ImportPath),
							" imports ") + ": " + w.Why})
				}
			}
		}
	}
	return found, nil
}

func (t *Tree) has(dir string) bool {
	for _, p := range t.Packages {
		if p.Dir == dir {
			return true
		}
	}
	return false
}

func (w Weight) forbids(d listed) bool {
	if within(d.ImportPath, w.Banned...) {
		return true
	}
	return len(w.Outside) > 0 && !d.Standard && !within(d.ImportPath, Module) && !within(d.ImportPath, w.Outside...)
}

// chain gives the shortest way of imports from one package to another, or just the other.
func chain(deps []listed, from, to string) []string {
	imports := map[string][]string{}
	for _, d := range deps {
		imports[d.ImportPath] = d.Imports
	}
	by := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range imports[queue[0]] {
			if _, seen := by[next]; !seen {
				by[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	route := []string{to}
	for p := by[to]; p != ""; p = by[p] {
		route = append(route, p)
	}
	slices.Reverse(route)
	return route
}

// GoList asks the go command at root for the dependencies of dir.
func GoList(ctx context.Context, root, dir string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-e", "-deps", "-json=ImportPath,Standard,Imports", "./"+dir)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("go list: %w: %s", err, exit.Stderr)
		}
		return nil, err
	}
	return parseList(strings.NewReader(string(out)))
}

func parseList(in io.Reader) ([]listed, error) {
	var deps []listed
	for dec := json.NewDecoder(in); ; {
		var d listed
		switch err := dec.Decode(&d); {
		case errors.Is(err, io.EOF):
			return deps, nil
		case err != nil:
			return nil, err
		}
		deps = append(deps, d)
	}
}
