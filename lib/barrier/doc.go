// Package barrier lets n programs wait for each other, round after round.
//
// It promises: Await returns when all n parties are at the barrier, with the number of the round
// that begins, the same for all. When a party that has come to a round dies, or leaves, before it
// began, the others that wait are told which one it was; who takes its place joins by its name and
// the round can be tried again. Who waits is woken by a watch; nothing polls.
//
// It assumes that all parties name the same directory and n, and different names. A party that is
// cut off for longer than TTL counts as dead.
//
// It costs: of Join a lease and a put; of Await a read and a conditional put, as often as others
// were faster, and a watch. It is meant for some hundred parties.
package barrier
