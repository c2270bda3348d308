//go:build system

package examples

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/examples/ledger"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// Goal: the walk-through of docs/guide/calls.md: generated code, from one proc to another, prints
// what the page shows; the server leaves in good order and has counted the calls.
func TestLedger(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	m := &members{t: t, ctx: ctx, c: c, dir: "/ledgers", program: s.Install(ctx, t, c, example(t, "ledgerserver"))}
	m.join()
	client := m.spawn(sigma.Descriptor{Program: s.Install(ctx, t, c, example(t, "ledgerclient")),
		Args: []string{m.dir}})
	if st, err := c.WaitExit(ctx, client); err != nil || !st.OK() {
		text, _, _ := c.Get(ctx, "/proc/"+string(client)+"/stderr")
		t.Fatalf("client ended with %+v, %v: %s", st, err, text)
	}
	out, _, err := c.Get(ctx, "/proc/"+string(client)+"/stdout")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/guide/calls.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(guide), "```text\n"+string(out)+"```") {
		t.Errorf("the guide does not show\n%s", out)
	}
	server := m.ids[0]
	if shown := s.Must(t, "calls", m.dir); !regexp.MustCompile(string(server)+
		` +ledger.Ledger/Enter +1 +0 `).MatchString(shown) || !regexp.MustCompile(`Balance +2 +1 `).MatchString(shown) {
		t.Errorf("sigma calls shows\n%s", shown)
	}
	if _, err := c.Put(ctx, m.dir+"/junk", []byte("x"), sigma.PutOptions{}); err != nil {
		t.Error(err)
	}
	if shown := s.Must(t, "calls", "--json", m.dir+"/"+string(server)); !strings.Contains(shown, `"not found": 1`) {
		t.Errorf("sigma calls --json shows\n%s", shown)
	}
	if err := c.Evict(ctx, server, time.Minute); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, server); err != nil || !st.OK() {
		t.Errorf("server ended with %+v, %v", st, err)
	}
	counts, _, err := c.Get(ctx, "/proc/"+string(server)+"/stderr")
	if want := `sigma_call_duration_seconds_count{side="server",method="ledger.Ledger/Enter"} 1`; err != nil ||
		!strings.Contains(string(counts), want) {
		t.Errorf("no %s in %s, %v", want, counts, err)
	}
	if err := c.RemoveAll(ctx, m.dir); err != nil {
		t.Error(err)
	}
}

// Goal: of servers that are killed in the middle of streams and calls the client hears so at once,
// as lost: never a message that was not sent, nor the end as if all were well; what goes elsewhere
// is answered there.
func TestLedgerKilled(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	m := &members{t: t, ctx: ctx, c: c, dir: "/killed", killed: map[string]bool{},
		program: s.Install(ctx, t, c, example(t, "ledgerserver"))}
	m.join()
	servers := c.Dialer(m.dir)
	calls := call.NewClient(func(ctx context.Context) (net.Conn, error) { return servers.Dial(ctx, "") }, call.Config{})
	defer calls.Close()
	book := ledger.NewLedgerClient(calls)
	for round := range 3 {
		account := fmt.Sprint("account-", round) // the next server may have had an entry for that of the round before
		following, err := book.Follow(ctx, &ledger.BalanceRequest{Account: account})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := following.Recv(); err != nil { // it has begun
			t.Fatal(err)
		}
		entering := make(chan error, 1)
		go func() {
			for i := int64(1); ; i++ {
				if got, err := book.Enter(ctx, &ledger.Entry{Account: account, Cents: 1}); err != nil ||
					got.Cents != i {
					entering <- err
					return
				}
			}
		}()
		for range 100 {
			if e, err := following.Recv(); err != nil || e.Cents != 1 {
				t.Fatalf("round %d: %v, %v", round, e, err)
			}
		}
		m.join()
		m.leave(true)
		for {
			e, err := following.Recv()
			if err == nil && e.Cents == 1 {
				continue
			}
			if sigma.KindOf(err) != sigma.KindLost &&
				sigma.KindOf(err) != sigma.KindBusy { // it may have been too slow before
				t.Errorf("round %d: the stream ends with %v, %v", round, e, err)
			}
			break
		}
		if err := <-entering; err != nil &&
			sigma.KindOf(err) != sigma.KindLost { // nil: the next server answered, where the account is new
			t.Errorf("round %d: a call ends with %v", round, err)
		}
		if got, err := book.Enter(ctx, &ledger.Entry{Account: "after", Cents: 1}); err != nil || got.Cents != 1 {
			t.Errorf("round %d: afterwards %v, %v", round, got, err)
		}
	}
	m.leave(false)
	if err := c.RemoveAll(ctx, m.dir); err != nil {
		t.Error(err)
	}
}
