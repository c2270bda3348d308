package talk

import (
	"bytes"
	"testing"
	"time"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func n(v uint64) *uint64 { return &v }

// Goal: the connections of two procs are one pair, in the words of who dialled, whichever end this
// machine has; one of which nothing was counted is a connection all the same; the largest is first.
func TestPairs(t *testing.T) {
	now := time.Unix(1, 0)
	got := pairs(now, []report.Connection{
		{Realm: "a", Machine: "m1", From: "p", FromOn: "m1", Proc: "q", On: "m2", Sent: n(1), Received: n(2)},
		{Realm: "a", Machine: "m1", From: "p", FromOn: "m1", Proc: "q", On: "m2", Sent: n(10), Received: n(20)},
		{Realm: "a", Machine: "m1", From: "p", FromOn: "m1", Proc: "r", On: "m1"},
		// a program outside dialled from another machine, and this one's end listens
		{Realm: "a", Machine: "m1", FromOn: "m3", Proc: "r", On: "m1", Sent: n(700), Received: n(5)},
	})
	want := []report.Talk{
		{Machine: "m1", At: now, Realm: "a", FromOn: "m3", To: "r", On: "m1", Sent: 5, Received: 700, Connections: 1},
		{Machine: "m1", At: now, Realm: "a", From: "p", FromOn: "m1", To: "q", On: "m2", Sent: 11, Received: 22,
			Connections: 2},
		{Machine: "m1", At: now, Realm: "a", From: "p", FromOn: "m1", To: "r", On: "m1", Connections: 1},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

// Goal: of the two machines that have an end of a connection one tells of it.
func TestToldOnce(t *testing.T) {
	for _, c := range []dialproxy.Connection{
		{From: sigma.Principal{Proc: "p", Machine: "m1"}, Endpoint: sigma.Endpoint{Machine: "m2", Proc: "q"}},
		{From: sigma.Principal{Proc: "p", Machine: "m2"}, Endpoint: sigma.Endpoint{Machine: "m1", Proc: "q"}},
	} {
		tell := 0
		for _, m := range []sigma.MachineID{"m1", "m2"} {
			if New(Config{Machine: m}).tells(&c) {
				tell++
			}
		}
		if tell != 1 {
			t.Errorf("%d machines tell of %+v", tell, c)
		}
	}
}

// Goal: an answer has whole lines, as many as a message has room for.
func TestPage(t *testing.T) {
	line := append(bytes.Repeat([]byte("x"), 999), '\n')
	text, err := page(bytes.Repeat(line, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { PeerTraffic.Reply(c, &text) })
	if err != nil || len(text) == 0 || len(text)%1000 != 0 {
		t.Errorf("%d bytes, %d of them payload, %v", len(text), len(payload), err)
	}
}
