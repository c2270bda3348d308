// Package group keeps a program running in several procs, of which one leads and the others stand
// by (000 §3.6's groupmgr), with a document that describes what they do.
//
// It promises: one member leads at a time, as far as it has an effect: what a former leader writes
// into the document, or into directories that are fenced, is refused. When the leader's proc dies
// the next member leads at once, in the order in which they came; when its machine dies, after
// TTL. The document survives all of them; it is changed by the leader only, at the version it
// read, and every reader follows it by a watch.
//
// It assumes that the group's directory is kept by named.
//
// It costs: of a member a lease and two puts to stand by, and nothing while it does; of a leader a
// put and what it fences; of a change of the document one put; of a reader one read for each
// change.
package group
