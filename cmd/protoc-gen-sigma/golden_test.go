package main

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

var rewrite = flag.Bool("rewrite", false, "write what is generated to where it is compared with")

// plugin, in the environment, has the test's program be the plug-in.
const plugin = "TEST_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(plugin) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// request compiles a .proto file to what protoc asks a plug-in.
func request(t *testing.T, dir, name string) *pluginpb.CodeGeneratorRequest {
	t.Helper()
	c :=
		protocompile.Compiler{Resolver: protocompile.WithStandardImports(
			&protocompile.SourceResolver{ImportPaths: []string{dir}}), SourceInfoMode: protocompile.SourceInfoStandard}
	files, err := c.Compile(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	r := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name},
		Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	var add func(d protoreflect.FileDescriptor)
	add = func(d protoreflect.FileDescriptor) {
		if seen[d.Path()] {
			return
		}
		seen[d.Path()] = true
		for i := range d.Imports().Len() {
			add(d.Imports().Get(i).FileDescriptor)
		}
		r.ProtoFile = append(r.ProtoFile, protodesc.ToFileDescriptorProto(d))
	}
	add(files[0])
	// protoc hands plug-ins options as bytes that they know the meaning of; the compiler's are of
	// its own types.
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again := &pluginpb.CodeGeneratorRequest{}
	if err := proto.Unmarshal(b, again); err != nil {
		t.Fatal(err)
	}
	return again
}

// generated gives the files that f makes of a request, by name.
func generated(t *testing.T, r *pluginpb.CodeGeneratorRequest, f func(*protogen.Plugin) error) map[string]string {
	t.Helper()
	p, err := protogen.Options{}.New(r)
	if err == nil {
		err = f(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	answer := p.Response()
	if answer.Error != nil {
		t.Fatal(*answer.Error)
	}
	out := map[string]string{}
	for _, f := range answer.File {
		out[f.GetName()] = f.GetContent()
	}
	return out
}

// Goal: the code and pages that are in the repository are what the plug-in makes, and so is the
// messages' code, so that nobody needs protoc to change a service here: go test
// ./cmd/protoc-gen-sigma -rewrite.
func TestGolden(t *testing.T) {
	for _, x := range []struct {
		dir, name, suffix string
		messages          bool
	}{{"../../examples/ledger", "ledger.proto", "", true}, {"testdata", "odd.proto", ".golden", false}} {
		r := request(t, x.dir, x.name)
		files := generated(t, r, generate)
		if x.messages {
			for name, text := range generated(t, r, func(p *protogen.Plugin) error {
				p.SupportedFeatures = internal_gengo.SupportedFeatures
				for _, f := range p.Files {
					if f.Generate {
						internal_gengo.GenerateFile(p, f)
					}
				}
				return nil
			}) {
				files[name] = text
			}
		}
		for name, text := range files {
			at := filepath.Join(x.dir, name+x.suffix)
			if *rewrite {
				if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(at); err != nil || string(want) != text {
				t.Errorf("%s is not what is generated (%v); see: go test ./cmd/protoc-gen-sigma -rewrite, and git diff",
					at, err)
			}
		}
	}
}

// Goal: a file without services makes nothing, and a hostile one does not end up outside its
// comments.
func TestNothing(t *testing.T) {
	none := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{"n.proto"},
		ProtoFile: []*descriptorpb.FileDescriptorProto{{Name: proto.String("n.proto"), Syntax: proto.String("proto3"),
			Options: &descriptorpb.FileOptions{GoPackage: proto.String("x/n")}}}}
	if got := generated(t, none, generate); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	dir := t.TempDir()
	text :=
		"syntax = \"proto3\"; package x; option go_package = \"x/x\";\nmessage M {}\n/* ends */ // */\n// a\r// func " +
			"init() {}\nservice S { rpc Do(M) returns (M); }\n"
	if err := os.WriteFile(filepath.Join(dir, "x.proto"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, text := range generated(t, request(t, dir, "x.proto"), generate) {
		if strings.HasSuffix(name, ".go") && strings.Contains(text, "\nfunc init") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Goal: what protoc runs, by its protocol on standard input and output, is the same.
func TestPlugin(t *testing.T) {
	in, err := proto.Marshal(request(t, "../../examples/ledger", "ledger.proto"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), plugin+"=1")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	answer := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out.Bytes(), answer); err != nil || len(answer.File) != 2 || answer.Error != nil {
		t.Errorf("got %d files, %v, %v", len(answer.File), answer.Error, err)
	}
}
