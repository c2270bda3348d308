package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// page writes the reference page of a file's services, of which its comments are the prose.
func page(p *protogen.Plugin, f *protogen.File) {
	g := p.NewGeneratedFile(f.GeneratedFilenamePrefix+".md", f.GoImportPath)
	g.P("<!-- Made by protoc-gen-sigma of ", path.Base(f.Desc.Path()), ". Do not edit. -->")
	for _, s := range f.Services {
		servicePage(g, s)
	}
	var seen []protoreflect.FullName
	for _, s := range f.Services {
		for _, m := range s.Methods {
			seen = messagePage(g, m.Input, f, seen)
			seen = messagePage(g, m.Output, f, seen)
		}
	}
}

func paragraph(g *protogen.GeneratedFile, text string) {
	if text != "" {
		g.P()
		g.P(text)
	}
}

func servicePage(g *protogen.GeneratedFile, s *protogen.Service) {
	g.P("# ", s.Desc.FullName())
	paragraph(g, prose(s.Comments))
	if deprecated(s.Desc) {
		paragraph(g, "Deprecated.")
	}
	g.P()
	g.P("| method | takes | gives | again |")
	g.P("|---|---|---|---|")
	for _, m := range s.Methods {
		again := "no"
		if idempotent(m) {
			again = "yes"
		}
		g.P("| [", m.Desc.Name(), "](#", anchor(string(m.Desc.Name())), ") | ", many(m.Desc.IsStreamingClient()),
			link(m.Input), " | ", many(m.Desc.IsStreamingServer()), link(m.Output), " | ", again, " |")
	}
	g.P()
	g.P(
		"*again*: whether a call whose connection broke is made once more, elsewhere; others are made at most once, " +
			"and their callers told that they may have had an effect.")
	for _, m := range s.Methods {
		g.P()
		g.P("## ", m.Desc.Name())
		paragraph(g, "`"+wireName(s, m)+"`")
		paragraph(g, prose(m.Comments))
		if deprecated(m.Desc) {
			paragraph(g, "Deprecated.")
		}
	}
}

func many(stream bool) string {
	if stream {
		return "any number of "
	}
	return ""
}

// anchor is how headings are referred to.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return -1
	}, heading)
}

func link(m *protogen.Message) string {
	return fmt.Sprintf("[%s](#%s)", m.Desc.Name(), anchor(string(m.Desc.FullName())))
}

// messagePage writes what a message of the file has in it, and those that it has in it, once each.
// Of others their name says enough.
func messagePage(g *protogen.GeneratedFile, m *protogen.Message, f *protogen.File,
	seen []protoreflect.FullName) []protoreflect.FullName {
	if slices.Contains(seen, m.Desc.FullName()) {
		return seen
	}
	seen = append(seen, m.Desc.FullName())
	g.P()
	g.P("## ", m.Desc.FullName())
	paragraph(g, prose(m.Comments))
	if m.Desc.ParentFile().Path() != f.Desc.Path() {
		paragraph(g, fmt.Sprintf("Of `%s`.", m.Desc.ParentFile().Path()))
		return seen
	}
	if len(m.Fields) > 0 {
		g.P()
		g.P("| number | field | type | |")
		g.P("|---:|---|---|---|")
		for _, x := range m.Fields {
			g.P("| ", x.Desc.Number(), " | ", x.Desc.Name(), " | ", typeOf(x), " | ", cell(x), " |")
		}
	}
	for _, x := range m.Fields {
		of := x
		if x.Desc.IsMap() {
			of = x.Message.Fields[1]
		}
		switch {
		case of.Message != nil && of.Message.Desc.ParentFile().Path() == f.Desc.Path():
			seen = messagePage(g, of.Message, f, seen)
		case of.Enum != nil && of.Enum.Desc.ParentFile().Path() == f.Desc.Path():
			seen = enumPage(g, of.Enum, seen)
		}
	}
	return seen
}

func enumPage(g *protogen.GeneratedFile, e *protogen.Enum, seen []protoreflect.FullName) []protoreflect.FullName {
	if slices.Contains(seen, e.Desc.FullName()) {
		return seen
	}
	g.P()
	g.P("## ", e.Desc.FullName())
	paragraph(g, prose(e.Comments))
	g.P()
	g.P("| number | name | |")
	g.P("|---:|---|---|")
	for _, v := range e.Values {
		g.P("| ", v.Desc.Number(), " | ", v.Desc.Name(), " | ", oneLine(v.Comments), " |")
	}
	return append(seen, e.Desc.FullName())
}

func typeOf(f *protogen.Field) string {
	d := f.Desc
	name := d.Kind().String()
	switch {
	case d.IsMap():
		return fmt.Sprintf("map of %s to %s", typeOf(f.Message.Fields[0]), typeOf(f.Message.Fields[1]))
	case f.Message != nil:
		name = string(f.Message.Desc.FullName())
	case f.Enum != nil:
		name = string(f.Enum.Desc.FullName())
	}
	if f.Message != nil && f.Message.Desc.ParentFile().Path() == d.ParentFile().Path() || f.Enum != nil &&
		f.Enum.Desc.ParentFile().Path() == d.ParentFile().Path() {
		name = fmt.Sprintf("[%s](#%s)", name, anchor(name))
	}
	if d.IsList() {
		return "list of " + name
	}
	return name
}

// cell is what a table says about a field.
func cell(f *protogen.Field) string {
	text := oneLine(f.Comments)
	if o := f.Oneof; o != nil && !o.Desc.IsSynthetic() {
		text = strings.TrimSpace("one of " + string(o.Desc.Name()) + ". " + text)
	}
	if deprecated(f.Desc) {
		text = strings.TrimSpace("Deprecated. " + text)
	}
	return text
}

// oneLine is a comment before or after something, for the cell of a table.
func oneLine(c protogen.CommentSet) string {
	text := strings.Join(strings.Fields(prose(c)+" "+string(c.Trailing)), " ")
	return strings.ReplaceAll(text, "|", `\|`)
}
