package call

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: long arguments and answers, of more calls at once than the windows have room for, wait for
// each other in turn; callers that give up while they or the server wait lose no credit and
// nobody's turn: afterwards, when more has been given up than all windows hold, calls are answered
// as before.
func TestCrowd(t *testing.T) {
	s := echoServer(t, Config{})
	handle(t, s, block, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		reply = append(reply, arg...)
		return append(reply, make([]byte, int(arg[0])<<10)...), nil
	})
	c := client(t, serve(t, s), Config{})
	ctx := testContext(t)
	const callers, rounds = 200, 10
	var all sync.WaitGroup
	var answered, given atomic.Int32
	for i := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range rounds {
				arg := bytes.Repeat([]byte{byte(r.IntN(200))}, longLeast+r.IntN(100_000))
				limited, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(20_000))*time.Microsecond)
				if r.IntN(3) == 0 {
					limited = ctx
				}
				got, err := c.Call(limited, block, arg, nil)
				cancel()
				switch k := sigma.KindOf(err); {
				case err == nil:
					answered.Add(1)
					if !bytes.Equal(got[:len(arg)], arg) || len(got) != len(arg)+int(arg[0])<<10 {
						t.Errorf("%d bytes came back of %d", len(got), len(arg))
					}
				case k == sigma.KindTimeout && limited != ctx:
					given.Add(1)
				default:
					t.Errorf("got %v", err)
				}
			}
		})
	}
	all.Wait()
	for range 300 { // more than the windows, if little of them were left
		arg := make([]byte, pieceMax)
		if got, err := c.Call(ctx, echo, arg, nil); err != nil || len(got) != len(arg) {
			t.Fatalf("afterwards: %d bytes, %v", len(got), err)
		}
	}
	t.Logf("%d calls answered, %d given up", answered.Load(), given.Load())
}
