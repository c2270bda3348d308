// Command sigma is how people and scripts use sigmaOS: it starts and stops a machine's system,
// makes realms, runs procs, and reads and writes a realm's tree.
//
// It holds no state. Package main has the table of all commands (commands.go). Packages below this
// directory have the commands, a group of them in each: a file for each verb with its help text.
// Package cli is what the groups share, and tells how a group is added.
// docs/reference/commands has a page for each verb; a test compares the two.
package main

import (
	"context"
	"os"

	"sigmaos.dev/cmd/sigma/cli"
)

func main() {
	a := &cli.App{Groups: groups, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
	os.Exit(a.Execute(context.Background(), os.Args[1:]))
}
