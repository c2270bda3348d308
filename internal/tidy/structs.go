package tidy

import (
	"fmt"
	"go/ast"
	"strings"
)

// What one struct may have. A larger one is several nouns in one.
const (
	fieldsMax  = 25
	methodsMax = 60
)

// largeStruct is what a struct may have, and why.
type largeStruct struct {
	fields, methods int
	why             string
}

// note says why a struct is an exception, if it is one.
func (x largeStruct) note() string {
	if x.why == "" {
		return ""
	}
	return " (it is an exception: " + x.why + ")"
}

// largeStructs are those that are larger for a reason, with the most they may have: the numbers
// only fall.
var largeStructs = map[string]largeStruct{
	"kernel/binfs.program":         {36, 0, "one version of a program: two locks, each with the fields that it guards"},
	"kernel/dialproxy.Proxy":       {0, 89, "listeners, connections and pools take one lock: each act changes two of them"},
	"kernel/cluster.Cluster":       {0, 79, "the steps of one life: they follow one another and share its locks"},
	"lib/fleet/core.Fleet":         {0, 75, "a pure core: all rules of a fleet change the same members"},
	"trees/named/member.etcdStore": {28, 0, "what is known of an etcd: counters of its room and of its revisions"},
	"wire/ring.Conn":               {27, 0, "one allocation for each connection"},
	"sched/schedd.Core":            {0, 97, "a pure core: all rules of procs of one machine change the same procs"},
	"sched/schedd.Proc":            {32, 0, "all that is known of a proc in one allocation"},
	"sdk.Client":                   {0, 67, "what programs call: a method for each system call"},
	"wire/sigmap.Coder":            {0, 66, "a method for each type on the wire"},
}

// structSize is what a struct has.
type structSize struct {
	file            string
	line            int
	fields, methods int
}

// CheckStructSizes finds structs that have outgrown what one person can hold in mind.
func CheckStructSizes(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		for name, s := range structSizes(t, p) {
			x := largeStructs[p.Dir+"."+name]
			fields, methods := max(fieldsMax, x.fields), max(methodsMax, x.methods)
			if s.fields > fields || s.methods > methods {
				found = append(found, Finding{"struct-size", s.file, s.line, fmt.Sprintf(
					"%s has %d fields and %d methods, %d and %d are allowed: look for the noun that is a type of its own%s",
					name, s.fields, s.methods, fields, methods, x.note())})
			}
		}
	}
	return found
}

// structSizes counts what each struct of a package has, tests and generated files left out.
func structSizes(t *Tree, p *Package) map[string]structSize {
	sizes, methods := map[string]structSize{}, map[string]int{}
	for _, f := range p.Files {
		if f.Test || strings.HasSuffix(f.Name, ".pb.go") || ast.IsGenerated(f.AST) {
			continue
		}
		for _, d := range f.AST.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && len(d.Recv.List) == 1 {
					methods[receiverName(d.Recv.List[0].Type)]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					ts, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					if st, ok := ts.Type.(*ast.StructType); ok {
						sizes[ts.Name.Name] = structSize{file: f.Name, line: t.line(ts.Pos()),
							fields: st.Fields.NumFields()}
					}
				}
			}
		}
	}
	for name, s := range sizes {
		s.methods = methods[name]
		sizes[name] = s
	}
	return sizes
}

// receiverName is the name of a method's type.
func receiverName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.IndexListExpr:
		return receiverName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
