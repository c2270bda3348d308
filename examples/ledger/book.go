// Package ledger is the service of the walk-through docs/guide/calls.md: ledger.proto declares it,
// ledger.pb.go, ledger.sigma.go and ledger.md are generated of that, and Book serves it.
package ledger

import (
	"context"
	"io"
	"math"
	"sync"

	"google.golang.org/protobuf/proto"

	"sigmaos.dev/sdk/call/service"
	"sigmaos.dev/sigma"
)

// Book keeps accounts in memory. The zero value is ready.
type Book struct {
	mu        sync.Mutex
	accounts  map[string]int64       // mu
	followers map[chan<- *Entry]bool // mu
}

var _ LedgerServer = (*Book)(nil)

// behindMax is how many entries a follower may be behind before it is told that it lost some.
const behindMax = 128

// Balance implements LedgerServer.
func (b *Book) Balance(_ context.Context, in *BalanceRequest) (*BalanceReply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	cents, ok := b.accounts[in.Account]
	if !ok {
		return nil, &sigma.Error{Op: "ledger.Balance", Path: in.Account, Kind: sigma.KindNotFound,
			Msg: "nothing was ever entered there", Hint: "enter something first"}
	}
	return &BalanceReply{Cents: cents}, nil
}

// Enter implements LedgerServer.
func (b *Book) Enter(_ context.Context, in *Entry) (*BalanceReply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.enterLocked(in); err != nil {
		return nil, err
	}
	return &BalanceReply{Cents: b.accounts[in.Account]}, nil
}

// enterLocked enters all of them or none.
func (b *Book) enterLocked(entries ...*Entry) error {
	after := map[string]int64{}
	for _, e := range entries {
		cents, seen := after[e.Account]
		if !seen {
			cents = b.accounts[e.Account]
		}
		if e.Account == "" || e.Cents < -cents || e.Cents > math.MaxInt64-cents {
			return sigma.Errorf("ledger.Enter", sigma.KindInvalid, "%d cents cannot be entered to %q, which has %d",
				e.Cents, e.Account, cents)
		}
		after[e.Account] = cents + e.Cents
	}
	if b.accounts == nil {
		b.accounts = map[string]int64{}
	}
	for name, cents := range after {
		b.accounts[name] = cents
	}
	for _, e := range entries {
		for f := range b.followers {
			select {
			case f <- e:
			default: // it is too slow
				delete(b.followers, f)
				close(f)
			}
		}
	}
	return nil
}

// Import implements LedgerServer.
func (b *Book) Import(_ context.Context, in *service.Receiver[*Entry]) (*ImportReply, error) {
	var entries []*Entry
	for e, err := range in.All() {
		if err != nil {
			return nil, err
		}
		if entries = append(entries, e); len(entries) > 10_000 {
			return nil, sigma.Errorf("ledger.Import", sigma.KindTooBig, "more than 10,000 entries at once")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.enterLocked(entries...); err != nil {
		return nil, err
	}
	return &ImportReply{Entries: uint32(len(entries))}, nil
}

// Follow implements LedgerServer.
func (b *Book) Follow(ctx context.Context, in *BalanceRequest, send func(*Entry) error) error {
	entries := make(chan *Entry, behindMax)
	b.mu.Lock()
	if b.followers == nil {
		b.followers = map[chan<- *Entry]bool{}
	}
	b.followers[entries] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.followers, entries)
	}()
	if err := send(&Entry{Account: in.Account}); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-entries:
			if !ok {
				return sigma.Errorf("ledger.Follow", sigma.KindBusy, "the follower is more than %d entries behind",
					behindMax)
			}
			if e.Account != in.Account {
				continue
			}
			if err := send(proto.CloneOf(e)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Teller implements LedgerServer.
func (b *Book) Teller(ctx context.Context, both *service.Stream[*BalanceReply, *Entry]) error {
	for {
		e, err := both.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		balance, err := b.Enter(ctx, e)
		if err == nil {
			err = both.Send(balance)
		}
		if err != nil {
			return err
		}
	}
}
