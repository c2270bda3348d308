package cache

import (
	"context"
	"encoding/json"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// Clerk uses a cache. It sends each operation to the owner of its key, over shared memory where
// that one is on the same machine. Safe for concurrent use.
//
// An operation is made again if its owner left before it saw it. Get, Touch, and Set and Delete
// without a condition are also made again if the connection broke; the others fail with KindLost
// then, and may have taken effect.
type Clerk struct {
	members *call.Router
	all     *call.Group
}

// NewClerk makes a clerk of the cache that a fleet of that name is. It asks nobody. Close it.
func NewClerk(c *sdk.Client, name string) *Clerk { return NewClerkOf(c, fleet.Members(name)) }

// NewClerkOf is NewClerk for members in a directory.
func NewClerkOf(c *sdk.Client, dir string) *Clerk {
	d := c.Dialer(dir)
	return &Clerk{members: call.NewRouter(d.Find, call.Config{MessageMax: messageMax}),
		all: call.NewGroup(d.Members, call.Config{})}
}

// Close ends all connections; operations under way fail.
func (k *Clerk) Close() error {
	k.all.Close()
	return k.members.Close()
}

// Item is what a cache has of a key.
type Item struct {
	Value   []byte
	Flags   uint32    // the caller's
	Expiry  time.Time // zero = it does not expire
	Version uint64    // for Swap
}

func (k *Clerk) do(ctx context.Context, o op.Op) (op.Result, error) {
	r, err := route(ctx, k.members, &o, rangeOf(o.Key))
	return r, sigma.Wrap("cache.Clerk", "", err)
}

// Get gives an item. found is false if there is none.
func (k *Clerk) Get(ctx context.Context, key []byte) (it Item, found bool, err error) {
	r, err := k.do(ctx, op.Op{Kind: op.Get, Key: key})
	if err != nil || !r.Found {
		return Item{}, false, err
	}
	it = Item{Value: r.Value, Flags: r.Flags, Version: r.Version}
	if r.Expiry != 0 {
		it.Expiry = time.UnixMilli(r.Expiry)
	}
	return it, true, nil
}

// Set stores an item for a time; 0 = until it is evicted. KindTooBig: the key or the value is too
// long for the cache.
func (k *Clerk) Set(ctx context.Context, key, value []byte, ttl time.Duration) error {
	_, err := k.do(ctx, op.Op{Kind: op.Set, Key: key, Value: value, Expiry: expiry(ttl)})
	return err
}

// Add is Set if there is no item; else stored is false.
func (k *Clerk) Add(ctx context.Context, key, value []byte, ttl time.Duration) (stored bool, err error) {
	r, err := k.do(ctx, op.Op{Kind: op.Set, Condition: op.IfAbsent, Key: key, Value: value, Expiry: expiry(ttl)})
	return r.Status == op.OK, err
}

// Swap is Set if the item still has the version; else stored is false.
func (k *Clerk) Swap(ctx context.Context, key, value []byte, version uint64, ttl time.Duration) (stored bool,
	err error) {
	r, err := k.do(ctx, op.Op{Kind: op.Set, Condition: op.IfVersion, Version: version, Key: key, Value: value,
		Expiry: expiry(ttl)})
	return r.Status == op.OK, err
}

// Delete removes an item. found is false if there was none.
func (k *Clerk) Delete(ctx context.Context, key []byte) (found bool, err error) {
	r, err := k.do(ctx, op.Op{Kind: op.Delete, Key: key})
	return r.Found, err
}

// Touch has an item expire after a time; 0 = never. found is false if there is none.
func (k *Clerk) Touch(ctx context.Context, key []byte, ttl time.Duration) (found bool, err error) {
	r, err := k.do(ctx, op.Op{Kind: op.Expire, Key: key, Expiry: expiry(ttl)})
	return r.Found, err
}

// Count adds to a decimal number, which is 0 if there is none, and gives the sum. KindInvalid: the
// value is no number, or the sum would have more than 64 bits.
func (k *Clerk) Count(ctx context.Context, key []byte, delta int64) (int64, error) {
	r, err := k.do(ctx, op.Op{Kind: op.Add, Key: key, Delta: delta})
	if err == nil && r.Status != op.OK {
		err = &sigma.Error{Op: "cache.Count", Kind: sigma.KindInvalid,
			Msg: "the value is no number that can be added to", Hint: "delete the key to begin at 0"}
	}
	return r.Number, err
}

// Flush removes all items of all members.
func (k *Clerk) Flush(ctx context.Context) error { return flush(ctx, k.all) }

// Stats asks all members, by name. Of one that does not answer there is nothing; the error is one
// of those.
func (k *Clerk) Stats(ctx context.Context) (members map[string]MemberStats, err error) {
	answers, err := k.all.Call(ctx, statsMethod, nil)
	members = map[string]MemberStats{}
	for _, a := range answers {
		var st MemberStats
		if a.Err == nil {
			a.Err = json.Unmarshal(a.Reply, &st)
		}
		if a.Err == nil {
			members[a.Member] = st
		} else if err == nil {
			err = sigma.Wrap("cache.Stats", a.Member, a.Err)
		}
	}
	return members, err
}

// expiry is the time after which an item is gone, by this machine's clock.
func expiry(ttl time.Duration) int64 {
	if ttl == 0 {
		return 0
	}
	return max(store.Now()+max(ttl.Milliseconds(), 1), 1)
}
