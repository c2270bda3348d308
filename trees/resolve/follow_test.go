package resolve_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// TestFollow lets several change a directory at random, and checks that who applies the events has
// in the end what is there, and was never told what cannot be.
func TestFollow(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/d", "/other", "/d/sub")
	w.put("/d/early", "x")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	model, told, ended := map[string]sigma.FileID{}, make(chan struct{}, 1), make(chan error, 1)
	var mu sync.Mutex // guards model
	go func() {
		for e, err := range w.Follow(ctx, "/d") {
			if err != nil {
				ended <- err
				return
			}
			mu.Lock()
			was, there := model[e.Name]
			switch e.Kind {
			case resolve.Created:
				if there {
					t.Errorf("%s was created twice", e.Name)
				}
				model[e.Name] = e.ID
			case resolve.Changed:
				if !there || was == e.ID {
					t.Errorf("%s changed from %+v to %+v, there %t", e.Name, was, e.ID, there)
				}
				model[e.Name] = e.ID
			case resolve.Removed:
				if !there || was != e.ID {
					t.Errorf("%s was removed, there %t", e.Name, there)
				}
				delete(model, e.Name)
			default:
				t.Errorf("got %+v", e)
			}
			mu.Unlock()
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	var writers sync.WaitGroup
	for i := range 4 {
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		writers.Go(func() {
			for range 100 {
				name := fmt.Sprintf("/d/%d", rng.IntN(6))
				switch rng.IntN(5) {
				case 0, 1:
					w.Put(t.Context(), name, fmt.Append(nil, rng.Int()), sigma.PutOptions{})
				case 2:
					w.Remove(t.Context(), name)
				case 3:
					w.Rename(t.Context(), name, fmt.Sprintf("/d/%d", rng.IntN(6)))
				case 4:
					w.Rename(t.Context(), name, "/other/x")
				}
			}
		})
	}
	writers.Wait()
	w.put("/d/early", "changed in the end") // its content only
	same := func() bool {
		es, err := w.ReadDir(t.Context(), "/d")
		w.ok("ReadDir", err)
		now := map[string]sigma.FileID{}
		for _, e := range es {
			now[e.Name] = e.ID
		}
		mu.Lock()
		defer mu.Unlock()
		return maps.Equal(now, model)
	}
	for !same() { // or the test's timeout
		<-told
	}
	cancel()
	if err := <-ended; sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("ended with %v", err)
	}
}

// TestFollowOverflow: when the server was away, and when there are more files than are watched,
// events say so, and go on.
func TestFollowOverflow(t *testing.T) {
	w := newWorld(t, nil)
	tree := memfs.New(memfs.Config{})
	s := w.serve("/far", "m2", tree)
	w.mkdir("/far/d")
	w.put("/far/d/a", "x")
	step := 0
	for e, err := range w.Follow(t.Context(), "/far/d") {
		if err != nil {
			w.fails("Follow of a directory that is removed", err, sigma.KindNotFound, "/far/d")
			break
		}
		want := []resolve.Event{{Kind: resolve.Created, Name: "a"}, {Kind: resolve.Overflow},
			{Kind: resolve.Created, Name: "b"}, {Kind: resolve.Removed, Name: "a"},
			{Kind: resolve.Removed, Name: "b"}}[min(step, 4)]
		if e.Kind != want.Kind || e.Name != want.Name {
			t.Fatalf("event %d: got %v %q, want %v %q", step, e.Kind, e.Name, want.Kind, want.Name)
		}
		switch step {
		case 0:
			s.kill()
			s.revive()
			w.put("/far/d/b", "x")
		case 2:
			w.ok("Remove", w.Remove(t.Context(), "/far/d/a"))
		case 3:
			w.ok("Remove", w.Remove(t.Context(), "/far/d/b"))
		case 4:
			w.ok("Remove", w.Remove(t.Context(), "/far/d"))
		}
		step++
	}
	if step != 5 {
		t.Errorf("%d events", step)
	}

	w.mkdir("/many")
	for i := range resolve.FollowMax + 1 {
		w.put(fmt.Sprintf("/many/%d", i), "")
	}
	n := 0
	for e, err := range w.Follow(t.Context(), "/many") {
		w.ok("Follow", err)
		if n == 0 && e.Kind != resolve.Overflow {
			t.Errorf("the first event is %v", e.Kind)
		}
		if n++; n == resolve.FollowMax+2 {
			w.put("/many/new", "")
		} else if n > resolve.FollowMax+2 {
			if e.Kind != resolve.Created || e.Name != "new" {
				t.Errorf("got %v %q", e.Kind, e.Name)
			}
			break
		}
	}
	for _, err := range w.Follow(t.Context(), "/none") {
		w.fails("Follow of nothing", err, sigma.KindNotFound, "/none")
	}
	w.put("/file", "")
	for _, err := range w.Follow(t.Context(), "/file") {
		w.fails("Follow of a file", err, sigma.KindNotDir, "/file")
	}
}
