package tidy

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// hostile are the packages that read bytes somebody else wrote.
var hostile = []string{
	"sigma", "wire/sigmap", "wire/session", "trees/treeserver", "trees/fence", "trees/resolve", "trees/named",
	"trees/s3", "trees/ux", "wire/launch", "sched/schedd", "kernel/dialproxy", "kernel/binfs", "sched/besched",
	"sched/lcsched", "kernel", "kernel/identity", "kernel/machines", "kernel/link", "sdk/call", "apps",
}

var decoderName = regexp.MustCompile(`^(Decode|Parse|Unmarshal)`)

// CheckFuzz finds exported functions Decode*, Parse* and Unmarshal* of hostile packages that take
// bytes or text and that no test file with a fuzz target mentions. Whether the target really
// reaches it is for a reviewer to see.
func CheckFuzz(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if !within(p.Dir, hostile...) {
			continue
		}
		mentioned := map[string]bool{}
		for _, f := range p.Files {
			if f.Test && hasFuzz(f.AST) {
				ast.Inspect(f.AST, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						mentioned[id.Name] = true
					}
					return true
				})
			}
		}
		for _, f := range p.Files {
			for _, d := range f.AST.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if ok && !f.Test && decoderName.MatchString(fn.Name.Name) && takesText(fn) && !mentioned[fn.Name.Name] {
					found = append(found, Finding{"fuzz", f.Name, t.line(fn.Pos()),
						fmt.Sprintf(
							"%s reads what others wrote and no fuzz target of the package mentions it: write one, "+
								"with a corpus", fn.Name.Name)})
				}
			}
		}
	}
	return found
}

func hasFuzz(f *ast.File) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz")
	})
}

// takesText reports whether a parameter is a []byte or string.
func takesText(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(p *ast.Field) bool {
		switch typ := p.Type.(type) {
		case *ast.Ident:
			return typ.Name == "string"
		case *ast.ArrayType:
			elem, ok := typ.Elt.(*ast.Ident)
			return ok && typ.Len == nil && elem.Name == "byte"
		}
		return false
	})
}
