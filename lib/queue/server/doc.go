// Package server serves a queue (package queue): run Serve in two or more procs, on different
// machines. One leads, which keeps the queue in memory and writes each change into names before it
// answers; the others stand by.
//
// It promises what package queue says. It assumes that all servers of a queue have the same
// Config. When a leader dies with its proc another one serves within some 10 ms and the time to
// read the log (about 1 ms for each 16 files); when its machine dies, after Config.TTL. Holds have
// their whole lease again then.
//
// Locks: server.mu guards core and journal, and is not held while anything is waited for.
package server
