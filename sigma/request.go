package sigma

import (
	"context"
	"sync/atomic"
	"time"
)

// What a request may carry beside itself (000 Fig 4-2). It travels in the context, because it
// concerns every operation of a File alike: who makes a request adds it, the session's client
// writes it into the message, the server kit takes it out, and whoever passes the request on need
// not know of it.

// Once names one mutation, so that it can be sent again and is applied at most once: a server that
// remembers replies answers the second sending as it answered the first.
type Once struct {
	Client uint64 // who numbers: a random number, never 0
	Seq    uint64 // counts the client's mutations from 1
	Done   uint64 // the client has the replies of all up to this one; they may be forgotten
	Again  bool   // it may have been sent before: a server that remembers no replies answers KindLost and does nothing
}

// Fence protects from deposed leaders (000 §3.6): a server that has seen a newer epoch of a fence
// refuses, as KindStale, requests that carry an older one.
type Fence struct {
	// of the fence within the realm, most often the path of its epoch file; "" = not fenced. At
	// most PathMax bytes
	Name  string
	Epoch Epoch
}

// Rememberer is a File whose server remembers its replies to numbered mutations, or that passes
// them on to one that is asked the same. To others a mutation that may have been sent before does
// not come: the server kit answers KindLost for them.
type Rememberer interface {
	Remembers() bool
}

type (
	onceKey  struct{}
	fenceKey struct{}
	syncKey  struct{}
	staleKey struct{}
)

// WithOnce makes the requests of ctx carry o. It is for one mutation.
func WithOnce(ctx context.Context, o Once) context.Context {
	return context.WithValue(ctx, onceKey{}, o)
}

// OnceOf returns what WithOnce put into ctx; Client is 0 if nothing did.
func OnceOf(ctx context.Context) Once {
	o, _ := ctx.Value(onceKey{}).(Once)
	return o
}

// WithFence makes the requests of ctx carry f.
func WithFence(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

// FenceOf returns what WithFence put into ctx; Name is "" if nothing did.
func FenceOf(ctx context.Context) Fence {
	f, _ := ctx.Value(fenceKey{}).(Fence)
	return f
}

// WithSync makes the reads of ctx tell what is current: all that was acknowledged to anybody before
// they were asked is in them (they are linearizable). Other reads of a realm's names may be
// answered by what the machine remembers, see docs/reference/named.md.
func WithSync(ctx context.Context) context.Context {
	return context.WithValue(ctx, syncKey{}, true)
}

// IsSync reports whether WithSync made ctx.
func IsSync(ctx context.Context) bool {
	is, _ := ctx.Value(syncKey{}).(bool)
	return is
}

// WithStale lets the reads of ctx tell what the machine remembers of a realm's names while the name
// service does not answer, however old that is; the Age says whether they did. What is not
// remembered is asked for as ever. It may lack even the caller's own last changes. Of reads that
// are to be current (WithSync) nothing is remembered.
func WithStale(ctx context.Context) (context.Context, *Age) {
	a := &Age{}
	return context.WithValue(ctx, staleKey{}, a), a
}

// AgeOf returns what WithStale put into ctx; nil if nothing did.
func AgeOf(ctx context.Context) *Age {
	a, _ := ctx.Value(staleKey{}).(*Age)
	return a
}

// Age gathers how old the answers of several reads were. Safe for concurrent use.
type Age struct{ most atomic.Int64 }

// Most is the greatest age noted: all that had changed so long ago is in every answer. 0: the
// answers were as of reads without WithStale.
func (a *Age) Most() time.Duration { return time.Duration(a.most.Load()) }

// Note is called by who answers from memory.
func (a *Age) Note(d time.Duration) {
	for {
		was := a.most.Load()
		if int64(d) <= was || a.most.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}
