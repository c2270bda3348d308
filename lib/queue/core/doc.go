// Package core is the state of a queue as a pure function of the records that were applied. It
// knows no time and does no I/O, so that a server that reads a log has the state of the one that
// wrote it. A record that does not fit is ignored. Not safe for concurrent use. User: package
// server.
package core
