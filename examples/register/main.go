// Command register is a member of a fleet that keeps values by key, in files of /registers:
//
//	register [lazy]
//
// With "lazy" it answers a put before the value is in its file. That goes well until a member is
// killed, which docs/guide/faults.md finds out.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

func main() {
	if err := run(context.Background(), len(os.Args) > 1 && os.Args[1] == "lazy"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, lazy bool) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if err := c.MkdirAll(ctx, "/registers", 0o755); err != nil {
		return err
	}
	r := &registers{c: c}
	put := r.put
	if lazy {
		put = r.putLazily
		r.late = map[string][]byte{}
		go r.writeLate(ctx)
	}
	s := call.NewServer(call.Config{})
	if err := s.Handle(&call.Method{Name: "register/Get"}, r.get); err != nil {
		return err
	}
	if err := s.Handle(&call.Method{Name: "register/Put"}, put); err != nil {
		return err
	}
	m, err := member.Open(c, member.Options{})
	if err != nil {
		return err
	}
	return m.ServeCalls(ctx, s)
}

// registers are the values.
type registers struct {
	c *sdk.Client

	mu   sync.Mutex
	late map[string][]byte // mu; those that are not in their files yet
}

func file(key string) string { return "/registers/" + key }

// get answers a key's value; KindNotFound if it has none.
func (r *registers) get(ctx context.Context, arg, reply []byte) ([]byte, error) {
	key := string(arg)
	r.mu.Lock()
	value, is := r.late[key]
	r.mu.Unlock()
	if is {
		return append(reply, value...), nil
	}
	value, _, err := r.c.Get(sigma.WithSync(ctx), file(key))
	return append(reply, value...), err
}

// put takes a key and its value, with a space between them, and answers when the value is stored.
func (r *registers) put(ctx context.Context, arg, reply []byte) ([]byte, error) {
	key, value, _ := strings.Cut(string(arg), " ")
	_, err := r.c.Put(ctx, file(key), []byte(value), sigma.PutOptions{})
	return reply, err
}

// putLazily is put that answers at once.
func (r *registers) putLazily(_ context.Context, arg, reply []byte) ([]byte, error) {
	key, value, _ := strings.Cut(string(arg), " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[key] = []byte(value)
	return reply, nil
}

// writeLate stores now and then what putLazily took.
func (r *registers) writeLate(ctx context.Context) {
	for retry.Pause(ctx, 500*time.Millisecond) {
		r.mu.Lock()
		now := maps.Clone(r.late)
		r.mu.Unlock()
		for key, value := range now {
			if _, err := r.c.Put(ctx, file(key), value, sigma.PutOptions{}); err != nil {
				continue
			}
			r.mu.Lock()
			if string(r.late[key]) == string(value) {
				delete(r.late, key)
			}
			r.mu.Unlock()
		}
	}
}
