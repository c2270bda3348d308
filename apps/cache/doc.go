// Package cache is a cache in memory as a service: the program cmd/cache serves it, as a fleet
// whose members divide the keys among themselves, and Clerk uses it.
//
// It promises: an item is at one member, the owner of its key's range. When members come or go, the
// items of the ranges that move are lost, and no others. Each member answers calls and, at the same
// endpoint, RESP and memcached's text protocol (package text); a command for a key of another
// member is forwarded. What a member's store promises is told in package store.
//
// A cache may lose any item at any time: with its member, or to make room. It assumes that its
// members' clocks are about right, for expiry times. It costs one call to the owner, or of a client
// of a text protocol one to the member that it is connected to, and another one to the owner.
package cache
