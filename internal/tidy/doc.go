// Package tidy enforces the rules of the house that a machine can check: layers, package names and
// comments, exits, mutable state, sizes, sleeping tests, moments that lose their clock, files of
// the host that are changed by path, open tasks, paths of somebody's machine, unexplained unsafe,
// decoders without a fuzz target, heavy dependencies, dead links.
//
// A rule is a function from a Tree to Findings. Each finding says where, what, why the rule exists
// and what to do. The rules read syntax, not types, so some are approximations; each says which. If
// a rule makes code worse, change the rule and say so in the commit.
//
// It is used by its own test, which runs every rule on this repository and on bad examples in
// testdata that show each rule able to fail.
package tidy
