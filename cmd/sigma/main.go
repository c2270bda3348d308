// Command sigma is how people and scripts use sigmaOS: it starts and stops a machine's system,
// makes realms, runs procs, and reads and writes a realm's tree.
//
// It holds no state. Each verb is a file named after its group with its help text in it; app
// (root.go) is what they share: the global flags, the streams, the connection.
// docs/reference/commands has a page for each verb; a test compares the two.
package main

import (
	"context"
	"os"
)

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}
	os.Exit(a.execute(context.Background(), os.Args[1:]))
}
