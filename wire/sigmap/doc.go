// Package sigmap is the codec of sigmaP, the one protocol of sigmaOS: 9P2000.L plus messages for
// whole-file get and put, watches, leases, calls, passed file descriptors and walks that stop at
// links (docs/reference/protocol.md). It turns messages into bytes and back and does no I/O. It
// promises that no input makes it panic or allocate more than a small multiple of the input's
// length; every decoder has a fuzz target.
//
// Layouts are written once, in the fields method of each message, which both the encoder and the
// decoder run.
//
// Users: session and treeserver (messages), sdk and kernel (payloads of system calls, calls.go).
package sigmap
