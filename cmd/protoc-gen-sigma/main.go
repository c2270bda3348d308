// Command protoc-gen-sigma is a plug-in of protoc and buf: of each service in a .proto file it
// makes a typed Go client, what a server has to implement, and a reference page
// (docs/reference/protoc-gen-sigma.md). The messages' own code is protoc-gen-go's.
package main

import (
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() { protogen.Options{}.Run(generate) }

// generate answers protoc's request.
func generate(p *protogen.Plugin) error {
	p.SupportedFeatures =
		uint64(
			pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL |
				pluginpb.CodeGeneratorResponse_FEATURE_SUPPORTS_EDITIONS)
	p.SupportedEditionsMinimum = descriptorpb.Edition_EDITION_PROTO2
	p.SupportedEditionsMaximum = descriptorpb.Edition_EDITION_2024
	for _, f := range p.Files {
		if f.Generate && len(f.Services) > 0 {
			code(p, f)
			page(p, f)
		}
	}
	return nil
}
