// Package history records what clients of a store did and were told, and checks whether the store
// behaved as if it did one operation after the other (linearizability).
//
// It promises: a history that Check calls linearizable has an order of all operations in which each
// stands between its call and its answer, and in which each answer follows from the operations
// before it. A violation is one for certain, if the history has all operations that changed the
// keys. An operation whose answer never came may have happened at any time after its call, or
// never. Each key is checked alone: a violation across keys is not found.
//
// It assumes that all times of a history are of one clock, and that a recording client outlives its
// operations: what a killed client was doing is not in its history, although it may have happened.
//
// It costs: recording an operation takes about a microsecond and 300 bytes. The checker
// (anishathalye/porcupine) needs about n*n/8 bytes for n operations on a key, which is why their
// number is bounded, and time that grows exponentially with the operations that overlap; a key that
// is not decided in time is reported as such.
//
// A Recorder has a lock, which is held while a line is written.
package history
