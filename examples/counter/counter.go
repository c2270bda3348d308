// Package counter counts by key, at members of a fleet that divide the keys among themselves.
// Counts are in memory: they move with their range when members come or go in good order, and begin
// anew when a member is killed.
package counter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/lib/shard"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// Ranges is how many ranges the keys are divided into.
const Ranges = 16

// The methods. The argument is a key; the answer is read by Parse.
var (
	Add = &call.Method{Name: "counter/Add"}                   // one more; redirected to the owner
	Get = &call.Method{Name: "counter/Get", Idempotent: true} // forwarded to the owner
)

// RangeOf is what a call.Router has to know of a key.
func RangeOf(key string) string { return strconv.Itoa(shard.Of(key, Ranges)) }

// Parse reads an answer. began is the epoch at which the key's range began to be counted.
func Parse(answer []byte) (count int64, began sigma.Epoch, err error) {
	_, err = fmt.Sscan(string(answer), &count, &began)
	return count, began, err
}

// Counters are those of a member. Set Member and Others before it serves.
type Counters struct {
	Member *member.Member
	Others *call.Router

	mu    sync.Mutex
	parts [Ranges]*part // mu; of the ranges that are here
}

// part is the state of a range.
type part struct {
	Began  sigma.Epoch      `json:"began"`
	Counts map[string]int64 `json:"counts"`
}

// Gain takes a range from the member before.
func (c *Counters) Gain(_ context.Context, r member.Range, state []byte) error {
	p := &part{Began: r.Fence.Epoch, Counts: map[string]int64{}}
	if state != nil {
		if err := json.Unmarshal(state, p); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[r.Number] = p
	return nil
}

// Handoff gives a range to the next member.
func (c *Counters) Handoff(_ context.Context, r member.Range, _ string) ([]byte, error) {
	c.mu.Lock()
	p := c.parts[r.Number]
	c.parts[r.Number] = nil
	c.mu.Unlock()
	return json.Marshal(p)
}

// Register adds the methods to a server.
func (c *Counters) Register(s *call.Server) error {
	err := s.Handle(Add, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		return c.count(ctx, string(arg), 1, reply) // its error redirects the caller to the owner
	})
	if err != nil {
		return err
	}
	return s.Handle(Get, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		out, err := c.count(ctx, string(arg), 0, reply)
		if owner, ok := call.Owner(err); ok {
			return c.Others.Forward(ctx, Get, RangeOf(string(arg)), owner, arg, reply)
		}
		return out, err
	})
}

func (c *Counters) count(ctx context.Context, key string, more int64, reply []byte) ([]byte, error) {
	number := shard.Of(key, Ranges)
	done, err := c.Member.Use(ctx, number)
	if err != nil {
		return reply, err
	}
	defer done()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.parts[number]
	if more > 0 {
		p.Counts[key] += more
	}
	return fmt.Appendf(reply, "%d %d", p.Counts[key], p.Began), nil
}
