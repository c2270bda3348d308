// Package text serves the two text protocols that stock clients of caches speak: RESP version 2, as
// of Redis, and memcached's, on one listener. A connection speaks RESP if its first byte is '*' or
// a capital letter, and memcached's if it is a small letter.
//
// It promises: commands of a connection are answered in order. What a client can hold is bounded: a
// command by Config.ValueMax and a few KiB, all long commands of all connections by Config.LongMax,
// connections by Config.ConnsMax. A client that sends half a command, or does not read its answers,
// is disconnected after half a minute. A command that is no command gets an error; one that cannot
// be told from the next ends the connection.
//
// It assumes that whoever connects may do everything: there are no passwords. It costs one
// goroutine and 4 KiB for a connection that is silent. User: apps/cache.
//
// Locks: Server.mu only.
package text
