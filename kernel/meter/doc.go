// Package meter counts what realms and procs use of a machine, and keeps the counts on disk.
//
// [Ledger] has processor time, memory and traffic by realm and hour, and by proc.
// [Copies] has what other machines' ledgers told this one, for when they are lost.
// [Traffic] has what connections of procs carried; [Works] what services did for realms.
// A type asks nobody: package kernel feeds it and serves what it knows.
// Each type has a lock of its own and calls nothing that waits.
package meter
