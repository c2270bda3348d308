package tidy

import (
	"fmt"
	"go/scanner"
	"go/token"
	"strings"
)

// packageMax is how many code lines a package may have.
const packageMax = 5000

// notProduct are folders whose code is not the product's own: programs that test, measure or show
// it.
var notProduct = []string{"test", "bench", "examples", "internal", "sched/sim", "trees/treetest"}

// Count gives the code lines of each package of the product: lines with a token, without tests and
// generated files.
func Count(t *Tree) map[string]int {
	of := map[string]int{}
	t.eachFile(func(p *Package, f *File) {
		if f.Test || within(p.Dir, notProduct...) || strings.HasSuffix(f.Name, ".pb.go") {
			return
		}
		of[p.Dir] += codeLines(strings.Join(t.Texts[f.Name], "\n"))
	})
	return of
}

// codeLines counts the lines of Go source on which a token stands.
func codeLines(text string) int {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		first := file.Line(pos)
		for i := range strings.Count(lit, "\n") + 1 {
			lines[first+i] = true
		}
	}
}

// CheckPackageSizes finds packages that have outgrown what one person can hold in mind.
func CheckPackageSizes(t *Tree) []Finding {
	var found []Finding
	for dir, n := range Count(t) {
		if n > packageMax {
			found = append(found, Finding{"package-size", dir, 0, fmt.Sprintf(
				"%d code lines, %d are allowed: look for the noun that is a package of its own", n, packageMax)})
		}
	}
	return found
}
