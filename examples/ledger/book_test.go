package ledger

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sdk/call/service"
	"sigmaos.dev/sigma"
)

// serve gives a client of a new Book, and the ways below it.
func serve(t *testing.T) (*LedgerClient, *call.Client, *call.Server) {
	t.Helper()
	s := call.NewServer(call.Config{})
	if err := RegisterLedger(s, &Book{}); err != nil {
		t.Fatal(err)
	}
	c := call.NewClient(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.ServeConn(context.Background(), theirs, sigma.Principal{})
		return ours, nil
	}, call.Config{})
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return NewLedgerClient(c), c, s
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Goal: a typed call goes to the member that owns its key.
func TestByKey(t *testing.T) {
	direct, _, own := serve(t)
	other := call.NewServer(call.Config{})
	if err := other.Handle(LedgerEnterMethod, func(_ context.Context, _, reply []byte) ([]byte, error) {
		return reply, call.Redirect("owner")
	}); err != nil {
		t.Fatal(err)
	}
	r := call.NewRouter(func(_ context.Context, member, _ string) (string, func(context.Context) (net.Conn, error),
		error) {
		s := other
		if member == "owner" {
			s = own
		}
		return member, func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go s.ServeConn(context.Background(), theirs, sigma.Principal{})
			return ours, nil
		}, nil
	}, call.Config{})
	defer r.Close()
	out := &BalanceReply{}
	if err := service.Call(testContext(t), r.For("till"), LedgerEnterMethod, &Entry{Account: "till", Cents: 5},
		out); err != nil || out.Cents != 5 {
		t.Errorf("%v, %v", out, err)
	}
	if got, err := direct.Balance(testContext(t), &BalanceRequest{Account: "till"}); err != nil || got.Cents != 5 {
		t.Errorf("%v, %v", got, err)
	}
}

// Goal: generated code makes calls of every kind, and errors keep their kind and hint.
func TestKinds(t *testing.T) {
	l, _, s := serve(t)
	ctx := testContext(t)
	if err := RegisterLedger(s, &Book{}); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("registered twice: %v", err)
	}
	for range 20 {
		if _, err := l.Balance(ctx, &BalanceRequest{Account: "till"}); sigma.KindOf(err) != sigma.KindNotFound ||
			sigma.HintOf(err) == "" {
			t.Errorf("got %v", err)
		}
	}
	following, err := l.Follow(ctx, &BalanceRequest{Account: "till"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := following.Recv(); err != nil || e.Account != "till" || e.Cents != 0 {
		t.Fatalf("got %v, %v", e, err)
	}
	if got, err := l.Enter(ctx, &Entry{Account: "till", Cents: 250, Reason: Reason_REASON_SALE}); err != nil ||
		got.Cents != 250 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := l.Enter(ctx, &Entry{Account: "till", Cents: -251}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v", err)
	}

	importing, err := l.Import(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const entries = 100
	for range entries {
		if err := importing.Send(&Entry{Account: "till", Cents: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := importing.Finish(); err != nil || got.Entries != entries {
		t.Errorf("got %v, %v", got, err)
	}
	importing, err = l.Import(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := importing.Send(&Entry{Account: "other", Cents: -1}); err != nil {
		t.Fatal(err)
	}
	if got, err := importing.Finish(); got != nil || sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v, %v", got, err)
	}

	both, err := l.Teller(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := both.Send(&Entry{Account: "till", Cents: -1, Reason: Reason_REASON_REFUND}); err != nil {
			t.Fatal(err)
		}
		if got, err := both.Recv(); err != nil || got.Cents != 349-int64(i) {
			t.Errorf("got %v, %v", got, err)
		}
	}
	if err := both.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := both.Recv(); err != io.EOF {
		t.Errorf("got %v", err)
	}

	var sum int64
	n := 0
	for e, err := range following.All() {
		if err != nil {
			t.Fatal(err)
		}
		sum += e.Cents
		if n++; n == 111 {
			break
		}
	}
	if sum != 340 {
		t.Errorf("entries of %d cents were followed", sum)
	}
	if err := following.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range following.All() {
		if sigma.KindOf(err) != sigma.KindCanceled {
			t.Errorf("after Close: %v", err)
		}
	}
}

// Goal: a generated group tells what each member answered.
func TestGroup(t *testing.T) {
	members := map[string]func(context.Context) (net.Conn, error){}
	for i := range 3 {
		s := call.NewServer(call.Config{})
		b := &Book{}
		if err := RegisterLedger(s, b); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if _, err := b.Enter(t.Context(), &Entry{Account: "a", Cents: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		members[fmt.Sprint(i)] = func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go s.ServeConn(context.Background(), theirs, sigma.Principal{})
			return ours, nil
		}
	}
	g := call.NewGroup(func(context.Context) (map[string]func(context.Context) (net.Conn, error), error) {
		return members, nil
	}, call.Config{})
	defer g.Close()
	answers, err := NewLedgerGroup(g).Balance(testContext(t), &BalanceRequest{Account: "a"})
	if err != nil || len(answers) != 3 || sigma.KindOf(answers[0].Err) != sigma.KindNotFound ||
		answers[0].Message != nil || answers[1].Message.GetCents() != 1 || answers[2].Message.GetCents() != 2 {
		t.Errorf("got %v, %v", answers, err)
	}
}

// Goal: what is no message of the type is refused in words, and neither side is hurt; a caller's
// cancellation reaches a generated server.
func TestWrongMessages(t *testing.T) {
	l, c, _ := serve(t)
	ctx := testContext(t)
	if _, err := c.Call(ctx, LedgerEnterMethod, []byte{0xff, 0xff}, nil); sigma.KindOf(err) != sigma.KindInvalid ||
		!strings.Contains(fmt.Sprint(err), "ledger.Entry") {
		t.Errorf("got %v", err)
	}
	for _, m := range []*call.Method{LedgerFollowMethod, LedgerImportMethod, LedgerTellerMethod} {
		s, err := c.Stream(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		s.Send([]byte{0xff, 0xff})
		if _, err := s.Recv(nil); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	s, err := c.Stream(ctx, LedgerFollowMethod)
	if err != nil {
		t.Fatal(err)
	}
	s.CloseSend()
	if _, err := s.Recv(nil); sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(fmt.Sprint(err),
		"no argument") {
		t.Errorf("got %v", err)
	}
	if _, err := l.Enter(ctx, &Entry{Account: string([]byte{0xff})}); sigma.KindOf(err) != sigma.KindInvalid ||
		sigma.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if got, err := l.Enter(ctx, &Entry{Account: "a", Cents: 1}); err != nil || got.Cents != 1 {
		t.Errorf("afterwards: %v, %v", got, err)
	}
	if LedgerEnterMethod.Idempotent || !LedgerBalanceMethod.Idempotent {
		t.Error("what may be made again is not what the .proto file says")
	}
}
