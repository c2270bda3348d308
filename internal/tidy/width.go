package tidy

import (
	"fmt"
	"go/scanner"
	"go/token"
	"strings"
	"unicode/utf8"
)

// Columns beyond which a line is refused. A tab counts as four.
const (
	commentMax = 100
	codeMax    = 120
	// longString is the length of a literal that may make its line longer: text that is better in
	// one piece.
	longString = 50
)

// CheckWidth finds lines of Go that are too long to be read beside others. Comments that are set as
// they stand (those that begin with two spaces: tables, examples) and lines with a long string are
// left alone.
func CheckWidth(t *Tree) []Finding {
	var found []Finding
	t.eachFile(func(_ *Package, f *File) {
		lines := t.Texts[f.Name]
		if generated(lines) {
			return
		}
		var strs map[int]bool
		for i, l := range lines {
			text, isComment := strings.CutPrefix(strings.TrimSpace(l), "//")
			n := columns(l)
			switch {
			case isComment && n > commentMax && !strings.HasPrefix(text, "  ") && !strings.HasPrefix(text, "\t") &&
				strings.Contains(strings.TrimSpace(text), " "):
				found = append(found, Finding{"width", f.Name, i + 1,
					fmt.Sprintf("a comment of %d columns, %d are allowed", n,
						commentMax)})
			case !isComment && n > codeMax:
				if strs == nil {
					strs = longStrings(strings.Join(lines, "\n"))
				}
				if !strs[i+1] {
					found = append(found, Finding{"width", f.Name, i + 1,
						fmt.Sprintf("%d columns, %d are allowed: break it, or "+
							"name a part of it", n, codeMax)})
				}
			}
		}
	})
	return found
}

func columns(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// longStrings are the lines on which a part of a long literal stands.
func longStrings(text string) map[int]bool {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, 0)
	on := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return on
		}
		if tok == token.STRING && len(lit) >= longString {
			for i := range strings.Count(lit, "\n") + 1 {
				on[file.Line(pos)+i] = true
			}
		}
	}
}
