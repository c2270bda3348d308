// Package replica keeps a state on several procs by state machine replication: a group agrees on
// an order of commands, and each member applies them to its own copy. The agreement is that of
// go.etcd.io/raft, the durable log that of package wal.
//
// It promises: a command whose Propose returned without an error was applied once and is not lost
// as long as a majority of the members keeps its memory, or with Config.Dir its disk. A Read that
// returned nil comes after all commands that were acknowledged before it began. A command that was
// proposed again with the same Session is applied once, and has the same result, as long as the
// group remembers the client (type Session). When the leader dies, another member leads after 0.5
// to 1.5 s, or at once if Ended is called. Who asks a member that knows of no leader waits for one
// for two times an election's time at most.
//
// It assumes: a member's ID is never used again in its group unless the member goes on from its
// Dir. A member that loses its memory or disk comes back by Change, with a new ID. Machines are
// deterministic. Config.Lease assumes that clocks run equally fast within a fourth.
//
// It costs: a command of a group of one in memory takes one mutex and the session table. Otherwise
// a command takes one round to a majority and, with Dir, one fsync at each member; all commands
// that wait share both. Memory holds Config.LogKeep bytes of log beside the state. A directory
// holds up to two snapshots and Config.SnapshotEvery bytes of log, twice that while a snapshot is
// written, and some megabytes of zeros before what comes next.
//
// On a full disk a durable member answers reads, and refuses commands that do not fit the room that
// its log has; it goes on when there is space (room.go).
//
// Users: apps/kv, and any service whose state is to outlive its proc.
//
// Locks: Replica.mu guards all of a replica, its Machine included. Nothing is written, sent or
// waited for while it is held. Storage's own lock is taken after it.
package replica
