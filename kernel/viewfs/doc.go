// Package viewfs is the tree of a realm as a session with a view sees it (docs/reference/views.md).
//
// A [Viewer] decides about each request of one session. Its files carry the rights of the entry
// by which they were reached, so a right goes with whatever is reached by it.
// It enters trees behind endpoints for the session, and keeps which endpoints the session was told.
// Package kernel gives it the realm's root, a way to dial, and the session's leases.
package viewfs
