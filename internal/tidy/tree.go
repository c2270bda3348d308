package tidy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Module is the prefix of our packages, as in go.mod.
const Module = "sigmaos.dev"

// Finding is one breach of a rule.
type Finding struct {
	Rule string
	File string // relative to the root; may be a directory
	Line int    // 0 if it is about the whole file
	Msg  string // what is wrong, why it matters, what to do
}

func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s: %s", f.File, f.Rule, f.Msg)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Msg)
}

// Tree is the repository in memory.
type Tree struct {
	FS       fs.FS
	Fset     *token.FileSet
	Packages []*Package          // by directory
	Texts    map[string][]string // lines of every text file, by name
}

// Package is the Go files of one directory, tests of both kinds included.
type Package struct {
	Dir   string // "." or "internal/tidy"
	Files []*File
}

// File is one Go file.
type File struct {
	Name string
	Test bool
	AST  *ast.File
}

// textMax is the size of the largest file that is read, in bytes; larger ones are data.
const textMax = 4 << 20

// skipDirs are not ours to judge: what tools make, and bad examples.
var skipDirs = []string{".git", "bin", "target", "testdata", "results", "node_modules"}

// Load reads the tree. A Go file that cannot be parsed is an error.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{FS: fsys, Fset: token.NewFileSet(), Texts: map[string][]string{}}
	byDir := map[string]*Package{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if slices.Contains(skipDirs, d.Name()) {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || d.Name() == ".git": // a file in a linked work tree
			return nil
		}
		return t.load(name, d, byDir)
	})
	if err != nil {
		return nil, err
	}
	for _, p := range byDir {
		t.Packages = append(t.Packages, p)
	}
	slices.SortFunc(t.Packages, func(a, b *Package) int { return strings.Compare(a.Dir, b.Dir) })
	return t, nil
}

func (t *Tree) load(name string, d fs.DirEntry, byDir map[string]*Package) error {
	info, err := d.Info()
	if err != nil || info.Size() > textMax {
		return err
	}
	data, err := fs.ReadFile(t.FS, name)
	if err != nil {
		return err
	}
	if slices.Contains(data, 0) {
		return nil // not text
	}
	t.Texts[name] = strings.Split(string(data), "\n")
	if !strings.HasSuffix(name, ".go") {
		return nil
	}
	f, err := parser.ParseFile(t.Fset, name, data, parser.ParseComments)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	if byDir[dir] == nil {
		byDir[dir] = &Package{Dir: dir}
	}
	byDir[dir].Files = append(byDir[dir].Files, &File{Name: name, Test: strings.HasSuffix(name, "_test.go"), AST: f})
	return nil
}

// line gives the line of a position.
func (t *Tree) line(pos token.Pos) int { return t.Fset.Position(pos).Line }

// names gives the names of the text files with a suffix, in order.
func (t *Tree) names(suffixes ...string) []string {
	var names []string
	for name := range t.Texts {
		if slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// eachFile calls f for every Go file.
func (t *Tree) eachFile(f func(*Package, *File)) {
	for _, p := range t.Packages {
		for _, file := range p.Files {
			f(p, file)
		}
	}
}

// within reports whether dir is one of roots or below one.
func within(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

// importName gives the name a file uses for an import path, or "" if it does not import it. The
// last component stands for the package's name.
func importName(f *ast.File, importPath string) string {
	for _, im := range f.Imports {
		if strings.Trim(im.Path.Value, `"`) != importPath {
			continue
		}
		if im.Name != nil {
			return im.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

// calls calls f for every call of a function of an imported package, as in time.Sleep: the
// selector's name and position.
func calls(f *ast.File, importPath string, found func(name string, pos token.Pos)) {
	pkg := importName(f, importPath)
	if pkg == "" {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg && x.Obj == nil {
				found(sel.Sel.Name, sel.Pos())
			}
		}
		return true
	})
}
