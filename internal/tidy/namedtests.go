package tidy

import (
	"go/ast"
	"regexp"
	"strings"
)

var (
	testWords = regexp.MustCompile("`[^`]*`|[a-z][a-z0-9-]*(?:/[a-z0-9-]+)*")
	goTest    = regexp.MustCompile("^`((?:Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9]*)(?:/[^`]*)?`$")
	rustTest  = regexp.MustCompile("^`([a-z0-9]+(?:_[a-z0-9]+){2,})`$")
)

// CheckNamedTests finds tests that a Markdown file names and that do not exist: a promise that
// nothing enforces. `TestX` has to be a function of a test file, and of the directory that stands
// before it in the line, if one does ("trees/named `TestX`, `TestY`; test/machine `TestZ`"); a name
// with underscores after launcher/tests one of the launcher's.
func CheckNamedTests(t *Tree) []Finding {
	dirs, anywhere := map[string]map[string]bool{}, map[string]bool{}
	t.eachFile(func(p *Package, f *File) {
		if dirs[p.Dir] == nil {
			dirs[p.Dir] = map[string]bool{}
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.Test && fn.Recv == nil {
				dirs[p.Dir][fn.Name.Name], anywhere[fn.Name.Name] = true, true
			}
		}
	})
	var found []Finding
	for _, name := range t.names(".md") {
		for i, line := range prose(t.Texts[name]) {
			dir := ""
			for _, word := range testWords.FindAllString(line, -1) {
				switch m := goTest.FindStringSubmatch(word); {
				case word == "launcher/tests" || dirs[word] != nil:
					dir = word
				case word[0] != '`' && word != "and":
					dir = ""
				case m != nil && (dirs[dir] != nil && !dirs[dir][m[1]] || !anywhere[m[1]]):
					found = append(found, Finding{"named-test", name, i + 1,
						"there is no " + strings.TrimSpace(dir+" "+m[1]) +
							": name the test that shows it, or write it"})
				case dir == "launcher/tests":
					if m := rustTest.FindStringSubmatch(word); m != nil && !t.hasRust(m[1]) {
						found = append(found, Finding{"named-test", name, i + 1,
							"the launcher has no test " + m[1] + ": name the one that shows it, or write it"})
					}
				}
			}
		}
	}
	return found
}

// hasRust says whether a source of the launcher has a function of this name.
func (t *Tree) hasRust(fn string) bool {
	for _, name := range t.names(".rs") {
		for _, line := range t.Texts[name] {
			if strings.HasPrefix(strings.TrimSpace(line), "fn "+fn+"(") {
				return true
			}
		}
	}
	return false
}
