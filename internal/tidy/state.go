package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// CheckState finds what makes two users of a package in one process see each other: init functions,
// imports for their side effects and package variables that change.
//
// A package variable counts as constant if no function of the package assigns it, an element or a
// field of it, or takes its address, and its type is not one that changes through methods (locks,
// atomics, sync.Map, channels, maps made empty). Changes through an alias escape this.
func CheckState(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if within(p.Dir, programs...) {
			continue
		}
		vars := map[string]bool{}
		for _, f := range p.Files {
			if !f.Test {
				found = append(found, declaredState(t, f, vars)...)
			}
		}
		for _, f := range p.Files {
			if !f.Test {
				found = append(found, changedState(t, f, vars)...)
			}
		}
	}
	return found
}

const stateWhy = "package variables that change make two users in one process see each other and tests depend on their order; put it into a struct that New returns"

// declaredState collects the package's variables into vars and finds init functions, side-effect
// imports and variables of changing types.
func declaredState(t *Tree, f *File, vars map[string]bool) []Finding {
	var found []Finding
	for _, im := range f.AST.Imports {
		if im.Name != nil && im.Name.Name == "_" && im.Path.Value != `"embed"` {
			found = append(found, Finding{"state", f.Name, t.line(im.Pos()),
				"import of " + im.Path.Value + " for its side effects outside cmd/: register explicitly"})
		}
	}
	for _, d := range f.AST.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !ast.IsGenerated(f.AST) && d.Recv == nil && d.Name.Name == "init" {
				found = append(found, Finding{"state", f.Name, t.line(d.Pos()),
					"init function outside cmd/: it costs every program that links the package and cannot fail; do " +
						"it in New or make it a literal"})
			}
		case *ast.GenDecl:
			if d.Tok != token.VAR {
				continue
			}
			for _, s := range d.Specs {
				spec := s.(*ast.ValueSpec)
				for i, name := range spec.Names {
					vars[name.Name] = true
					if name.Name != "_" && changingType(spec, i) {
						found = append(found, Finding{"state", f.Name, t.line(name.Pos()),
							fmt.Sprintf("%s is made to be changed: %s", name.Name, stateWhy)})
					}
				}
			}
		}
	}
	delete(vars, "_")
	return found
}

// harmless are types of sync whose change nobody can see.
var harmless = []string{"Pool", "OnceFunc", "OnceValue", "OnceValues"}

// changingType reports whether the i-th variable of a declaration is of a type that changes through
// methods.
func changingType(spec *ast.ValueSpec, i int) bool {
	if changing(spec.Type) {
		return true
	}
	if i >= len(spec.Values) {
		return false
	}
	switch v := spec.Values[i].(type) {
	case *ast.CompositeLit:
		return changing(v.Type)
	case *ast.UnaryExpr:
		lit, ok := v.X.(*ast.CompositeLit)
		return ok && v.Op == token.AND && changing(lit.Type)
	case *ast.CallExpr:
		fn, ok := v.Fun.(*ast.Ident)
		if !ok || len(v.Args) == 0 {
			return false
		}
		_, isMap := v.Args[0].(*ast.MapType)
		_, isChan := v.Args[0].(*ast.ChanType)
		return fn.Name == "make" && (isMap || isChan) || fn.Name == "new" && changing(v.Args[0])
	}
	return false
}

func changing(typ ast.Expr) bool {
	switch typ := typ.(type) {
	case *ast.ChanType:
		return true
	case *ast.StarExpr:
		return changing(typ.X)
	case *ast.IndexExpr: // atomic.Pointer[T]
		return changing(typ.X)
	case *ast.SelectorExpr:
		x, ok := typ.X.(*ast.Ident)
		return ok && (x.Name == "sync" && !slices.Contains(harmless, typ.Sel.Name) || x.Name == "atomic")
	}
	return false
}

// changedState finds where functions of f change one of vars.
func changedState(t *Tree, f *File, vars map[string]bool) []Finding {
	var found []Finding
	check := func(e ast.Expr, how string) {
		if id := rootIdent(e); id != nil && vars[id.Name] && packageLevel(f.AST, id) {
			found = append(found, Finding{"state", f.Name, t.line(e.Pos()), fmt.Sprintf("package variable %s is %s: %s",
				id.Name, how, stateWhy)})
		}
	}
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					if n.Tok != token.DEFINE {
						check(e, "assigned")
					}
				}
			case *ast.IncDecStmt:
				check(n.X, "assigned")
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					check(n.Key, "assigned")
					check(n.Value, "assigned")
				}
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					check(n.X, "handed out by address")
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (fn.Name == "delete" || fn.Name == "clear" ||
					fn.Name == "copy") {
					check(n.Args[0], "changed")
				}
			}
			return true
		})
	}
	return found
}

// rootIdent gives x of x, x.f, x[i], *x and their like.
func rootIdent(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// packageLevel reports whether id stands for a package variable and not for a local one or an
// imported package of the same name. The parser resolves names within one file: what it resolved to
// something else than this file's package scope is local.
func packageLevel(f *ast.File, id *ast.Ident) bool {
	if id.Obj != nil {
		return f.Scope.Lookup(id.Name) == id.Obj
	}
	for _, im := range f.Imports {
		p := strings.Trim(im.Path.Value, `"`)
		if im.Name != nil && im.Name.Name == id.Name || im.Name == nil &&
			p[strings.LastIndexByte(p, '/')+1:] == id.Name {
			return false
		}
	}
	return true
}
