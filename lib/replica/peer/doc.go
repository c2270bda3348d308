// Package peer carries the messages of replicated groups (package replica) between procs, as
// streams of sdk/call.
//
// It promises: Send never blocks; what waits for a member is bounded by 16 MiB, and dropped beyond.
// A snapshot of any length is sent with a stream's window in memory. Messages are taken only from
// procs of the group's realm, and from those that Config.Is knows as the member they say they are.
//
// It assumes that a member's proc serves the methods of Register under the member's name, and that
// its call.Server takes messages as long as the group's commands (call.Config.MessageMax).
//
// It costs: a connection and a goroutine for each member that is sent to.
//
// Locks: Transport.mu guards the table of lines, line.mu a line's queue. line.mu is taken after
// Transport.mu; neither is held while anything is sent.
package peer
