// Package calls is what clerks, members and movers of a kv store say to each other: methods, and
// the layouts of what is not a request of package store. It promises that bytes which are no
// message are refused and make nobody take memory. Users: apps/kv and its packages.
package calls

import (
	"time"

	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/wire/sigmap"
)

// The methods of a member. All are answered by the member that leads the group; others redirect
// there. Writes of clerks are known by their sessions and steps of moves by their attempts, so all
// can be made again.
var (
	Do     = method("Do")     // a store.Request of a clerk
	Step   = method("Step")   // a store.Request of a move
	Export = method("Export") // an ExportArg
	Watch  = method("Watch")  // a WatchArg
	Join   = method("Join")   // a JoinArg
	Leave  = method("Leave")  // a JoinArg of a member that is to be one no more
	Status = method("Status") // answers with JSON of Member
)

func method(name string) *call.Method {
	return &call.Method{Name: "sigma.KV/" + name, Idempotent: true}
}

// Leader is the key by which routers remember who leads a group.
const Leader = "leader"

// What of a shard Export gives.
const (
	Items = iota
	Changes
	Sessions
	// Saved are items as they were at one moment. The first page is asked for with version 0, and
	// tells which picture it is of; the others with that as the version.
	Saved
	partEnd
)

// ExportArg asks for a page of a shard. The answer is a store.Result.
type ExportArg struct {
	Shard   uint16
	Part    uint8
	After   string // of Items
	Version uint64 // of Changes
}

// Code reads or writes a.
func (a *ExportArg) Code(c *sigmap.Coder) {
	c.U16(&a.Shard)
	c.U8(&a.Part)
	c.Str(&a.After)
	c.U64(&a.Version)
	if a.Part >= partEnd {
		c.Fail("a shard has no such part")
	}
}

// WaitMost bounds how long a Watch waits for changes.
const WaitMost = 20 * time.Second

// WatchArg asks for the changes after places, of one key or of those with a prefix. A place at
// version Now asks for the shard's present version. The answer is a list of store.News.
type WatchArg struct {
	Prefix string
	Exact  bool
	Wait   time.Duration
	Places []store.At
}

// Code reads or writes a.
func (a *WatchArg) Code(c *sigmap.Coder) {
	c.Str(&a.Prefix)
	c.Bool(&a.Exact)
	c.Duration(&a.Wait)
	sigmap.List(c, &a.Places, 10, func(p *store.At) {
		c.U16(&p.Shard)
		c.U64(&p.Version)
	})
}

// Now is the version of a place that stands for the present one.
const Now = 1<<64 - 1

// JoinArg asks for a new member of the group.
type JoinArg struct {
	ID   uint64
	Name string
}

// Code reads or writes a.
func (a *JoinArg) Code(c *sigmap.Coder) {
	c.U64(&a.ID)
	c.Str(&a.Name)
}

// Member is what the leader of a group tells of it.
type Member struct {
	Leader  string            `json:"leader"`
	Members []string          `json:"members"`
	Durable bool              `json:"durable"` // the group's log is on disk
	Term    uint64            `json:"term"`
	Bytes   int               `json:"bytes"`
	Limit   int               `json:"limit"`
	Shards  []store.ShardInfo `json:"shards"`
}
