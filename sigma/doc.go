// Package sigma is the vocabulary of sigmaOS: its nouns, the units they are measured in, the errors
// they answer with, and the contracts that packages above keep. It holds no behaviour beyond
// checking and printing its own types, imports only the standard library, and is what a newcomer
// reads first.
//
// # Glossary: seven nouns
//
//	realm      a tenant: one name space, one budget, one isolation boundary (RealmID)
//	proc       one unit of work, spawned asynchronously, latency-critical (LC) or best-effort (BE) (Descriptor, Status)
//	path       the only way to find anything (Path, Namespace, File)
//	endpoint   a capability to exchange bytes or calls with one proc (Endpoint, Endpoints)
//	fleet      a directory of endpoints with a policy (later)
//	partition  a slice of a machine held by one realm (later)
//	price      one posted number per resource (later)
//
// # Further words, each with one meaning
//
//	machine     a host; never called a node
//	incarnation one life of a machine, from its registration until its sigmad ends or it is declared lost (Incarnation)
//	roster      who is a member: the machines, their keys, addresses and lives
//	judge       the control machine that decides which machines are lost
//	sigmad      the sigmaOS kernel of a machine: schedd, dialproxy, binfs, ux in one process without privilege
//	launcher    the small Rust program that keeps root and makes contained processes
//	program     an executable file; a proc runs one program
//	descriptor  what Spawn takes (Descriptor). A Unix file descriptor is called a file descriptor.
//	evict       ask a proc to go (notice, grace, then kill); kill: end it at once
//	lease       keeps ephemeral names alive while somebody renews it (LeaseID)
//	fence       a promise to reject requests of an older Epoch (Fence)
//	epoch       numbers the leaders that a fence lets through (Epoch)
//	version     a 64-bit number of a file that grows with every change of it (Version)
//	session     one connection that speaks sigmaP
//	call        one request and reply by method name on a file (Caller)
//	tree        something that can be attached to and walked (Tree)
//	view        what one proc sees of its realm's tree, with which rights (ViewEntry, Rights)
//
// # Where to find what
//
// Sources are cited as "001 §4.3": seed document and section (000 the sigmaOS thesis, 001 the
// SOSP'24 paper, 002 fos, 003 nom, 004 RainForest).
//
//	id.go        identifiers and units          path.go      names and paths
//	proc.go      procs, their starts' phases     file.go      trees and files, what servers implement
//	endpoint.go  endpoints                      namespace.go what programs use: paths in, answers out
//	realm.go     realms                         error.go     Error, Kind
//	machine.go   machines                       view.go      views
package sigma
