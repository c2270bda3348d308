// Package record is what a queue's clients, servers and log write: tasks, results, records of
// changes, and their encoding. Integers are varints, bytes and lists have their length before them.
// It promises that no bytes make it panic or take more memory than about 100 times their length.
// Users: the packages of lib/queue.
package record
