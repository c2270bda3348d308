package layout

import (
	"math/rand/v2"
	"testing"

	"sigmaos.dev/sigma"
)

// settle lets all moves arrive until nothing is to change, and counts moves.
func settle(t *testing.T, c *Config) (*Config, int) {
	t.Helper()
	moves := 0
	for range 10_000 {
		if now := c.Step(nil); now != nil {
			c = now
		} else if len(c.Moves) == 0 {
			return c, moves
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if len(c.Moves) > MovesMax {
			t.Fatalf("%d moves at a time", len(c.Moves))
		}
		for shard, m := range c.Moves {
			c = c.Arrived(shard, m.Epoch)
			moves++
			break
		}
	}
	t.Fatal("it does not settle")
	return nil, 0
}

// Goal: shards are divided evenly after each change of the number of groups, no more move than
// must, and groups that leave are gone.
func TestStep(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	c := New("s", "/bin/kv", 64, 1, 1)
	for range 200 {
		before := len(c.Groups)
		c.Want = 1 + rnd.IntN(7)
		now, moves := settle(t, c)
		if len(now.Groups) != now.Want {
			t.Fatalf("%d groups, %d are wanted", len(now.Groups), now.Want)
		}
		for id := range now.Groups {
			if n := len(now.Of(id)); n < 64/now.Want || n > 64/now.Want+1 {
				t.Fatalf("group %d of %d has %d shards", id, now.Want, n)
			}
		}
		least := 64 - 64*min(before, now.Want)/max(before, now.Want)
		if moves > least+now.Want {
			t.Errorf("from %d to %d groups %d shards moved, %d must", before, now.Want, moves, least)
		}
		if again := now.Step(nil); again != nil {
			t.Fatal("it changes again")
		}
		c = now
	}
}

// Goal: busy shards are divided too.
func TestLoad(t *testing.T) {
	c := New("s", "/bin/kv", 4, 1, 1)
	c.Want = 2
	c = c.Step(nil)
	load := map[uint16]uint64{0: 100, 1: 100, 2: 1, 3: 1}
	for range 10 {
		for shard, m := range c.Moves {
			c = c.Arrived(shard, m.Epoch)
		}
		if now := c.Step(load); now != nil {
			c = now
		}
	}
	if len(c.Of(1)) != 2 || len(c.Of(2)) != 2 {
		t.Error(c.Owners)
	}
}

func TestBegin(t *testing.T) {
	c := New("s", "/bin/kv", 4, 2, 1)
	for _, bad := range []struct {
		shard int
		to    uint32
	}{{-1, 1}, {4, 1}, {0, 3}, {0, 1}} {
		if _, err := c.Begin(bad.shard, bad.to); err == nil {
			t.Errorf("%+v may move", bad)
		}
	}
	c, err := c.Begin(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(0, 2); err == nil {
		t.Error("a shard moves twice at a time")
	}
	if c.Arrived(0, 1) != nil || c.Arrived(1, 2) != nil {
		t.Error("a move ends that is none")
	}
	if c = c.Arrived(0, 2); c.Owners[0] != 2 || c.Epoch != 3 {
		t.Error(c)
	}
}

// Goal: the configuration of one store does not pass for that of another one, and the numbers of
// groups have a bound.
func TestParseOf(t *testing.T) {
	text := New("orders", "/p", 4, 1, 1).Text()
	if c, err := ParseOf("orders", text); err != nil || c.Name != "orders" {
		t.Error(c, err)
	}
	if c, err := ParseOf("rm-me", text); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("the configuration of another store: %v, %v", c, err)
	}
	many := New("orders", "/p", 4, 1, 1)
	many.Next = NextMax + 1
	if err := many.Check(); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("%d groups: %v", many.Next, err)
	}
}

// FuzzParse: whatever a file holds is refused, or is a configuration that can be stepped.
func FuzzParse(f *testing.F) {
	f.Add(New("s", "/bin/kv", 8, 2, 3).Text())
	f.Add([]byte(`{"name":"a","epoch":1,"replicas":1,"want":1,"next":3,"groups":{"1":{"leaving":true}},"owners":[1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := Parse(text); err == nil {
			c.Step(nil)
			if _, err := Parse(c.Text()); err != nil {
				t.Error(err)
			}
		}
	})
}

// All groups are replaced by the members of another program; what a late balancer says of a former
// roll has no effect.
func TestRoll(t *testing.T) {
	c := New("s", "/bin/kv", 4, 2, 3)
	if !c.Settled(1) || !c.Settled(2) {
		t.Error("a new store is to be rolled")
	}
	c = c.Roll("/bin/kv2")
	if c.Settled(1) || c.Program != "/bin/kv2" || c.Revision != 1 {
		t.Errorf("%+v", c)
	}
	for i := 1; i <= 3; i++ {
		if c = c.Replace(1, 1, i); c == nil || c.Settled(1) != (i == 3) || c.Settled(2) {
			t.Errorf("%d members: %+v", i, c)
		}
	}
	if c, err := c.Scale(3); err != nil || !c.Step(nil).Settled(3) {
		t.Error("a new group is to be rolled", err)
	}
	c = c.Roll("/bin/kv3")
	if c.Settled(1) || c.Replace(1, 1, 3) != nil || c.Replace(9, 2, 1) != nil {
		t.Errorf("%+v", c)
	}
	text := c.Text()
	if again, err := Parse(text); err != nil || string(again.Text()) != string(text) {
		t.Error(err)
	}
}
