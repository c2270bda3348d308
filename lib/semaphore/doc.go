// Package semaphore lets at most so many programs of a realm hold a permit at a time.
//
// It promises: permits are given in order of arrival. One that is released, or whose holder's proc
// or machine has died, is given to the next who waits. Who waits is woken by a watch; nothing
// polls. All who use a semaphore name the same size, or are refused.
//
// It assumes that its directory is kept by named and that nothing else is in it. A holder that
// stands still or is cut off for longer than TTL loses its permit: Lost is closed when it can know
// that, which may be later than another's having it. What must not overlap even then needs a
// fence.
//
// It costs: of Acquire two leases, two puts, a listing and a revocation, seven round trips, when
// permits are free; of Release one.
package semaphore
