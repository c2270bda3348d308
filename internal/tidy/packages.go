package tidy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// forbiddenNames say nothing about what is inside (util) or where it stands (proto).
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "srv", "clnt", "proto", "types", "misc",
	"lib"}

// CheckPackageNames finds packages named after nothing.
func CheckPackageNames(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		name := strings.TrimSuffix(p.Files[0].AST.Name.Name, "_test")
		for _, n := range []string{name, path.Base(p.Dir)} {
			if slices.Contains(forbiddenNames, n) {
				found = append(found, Finding{"package-name", p.Dir, 0,
					fmt.Sprintf(
						"a package named %q says nothing: a function without a home reveals a missing noun; find the "+
							"noun", n)})
				break
			}
		}
	}
	return found
}

// CheckPackageComments finds packages that have no package comment, or several. Test files count
// only where there is nothing else.
func CheckPackageComments(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		onlyTests := !slices.ContainsFunc(p.Files, func(f *File) bool { return !f.Test })
		var with []*File
		for _, f := range p.Files {
			if f.AST.Doc != nil && strings.TrimSpace(f.AST.Doc.Text()) != "" && (!f.Test || onlyTests) {
				with = append(with, f)
			}
		}
		switch {
		case len(with) == 0:
			found = append(found, Finding{"package-comment", p.Dir, 0,
				"there is no package comment: say what it promises, what it assumes and who uses it"})
		case len(with) > 1:
			found = append(found, Finding{"package-comment", with[1].Name, 1,
				"a second package comment (the first is in " + with[0].Name +
					"): readers see them run together; keep one"})
		default:
			text, name := with[0].AST.Doc.Text(), with[0].AST.Name.Name
			if name != "main" && !strings.HasPrefix(text, "Package "+name+" ") {
				found = append(found, Finding{"package-comment", with[0].Name, 1,
					fmt.Sprintf("the package comment does not begin with \"Package %s\", as go doc expects", name)})
			}
		}
	}
	return found
}
