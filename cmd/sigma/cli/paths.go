package cli

import (
	"strings"

	"sigmaos.dev/files"
	"sigmaos.dev/namespace"
	"sigmaos.dev/sigma"
)

// BucketsDir is where buckets are.
const BucketsDir = "/s3"

// BinDir is where programs live in a realm.
const BinDir = "/bin"

// CleanPath makes a realm path of what a person typed. Double and trailing slashes are forgiven;
// what else is wrong is said, and a mistake in the command line.
func CleanPath(typed string) (string, error) {
	if len(typed) <= 2*sigma.PathMax && strings.HasPrefix(typed, "/") {
		typed = namespace.Clean(typed)
	}
	_, err := sigma.ParsePath(typed)
	return typed, WithCode(ExitUsage, err)
}

// PlainPath is CleanPath for a path where nothing is looked up: what is to be made.
func PlainPath(typed string) (string, error) {
	p, err := CleanPath(typed)
	return files.Unquoted(p), err
}

// PlainPaths is PlainPath of each.
func PlainPaths(typed []string) ([]string, error) {
	paths := make([]string, len(typed))
	for i, t := range typed {
		p, err := PlainPath(t)
		if err != nil {
			return nil, err
		}
		paths[i] = p
	}
	return paths, nil
}
