package treeserver_test

import (
	"context"
	"os"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// called is a tree that is one callable file.
type called struct{ *treeserver.Callable }

func (c called) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return c.Callable, nil
}

// Calls that do not wait are answered where they are received, beside others that do; one that
// panics ends nothing, and files come back.
func TestPrompt(t *testing.T) {
	over := make(chan struct{})
	file := &treeserver.Callable{Handle: func(_ context.Context, method string, payload []byte) ([]byte, []*os.File,
		error) {
		switch method {
		case "later":
			<-over
		case "panic":
			panic("broken")
		case "file":
			a, b, err := os.Pipe()
			if err == nil {
				b.Close()
			}
			return nil, []*os.File{a}, err
		case "refuse":
			return nil, nil, sigma.Errorf("test", sigma.KindBusy, "no")
		}
		return payload, nil, nil
	}, Prompt: func(method string, _ []byte) bool { return method != "later" }}
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: called{file}})
	caller := root.(sigma.Caller)
	call := func(method string) ([]byte, []*os.File, error) {
		return caller.Call(t.Context(), method, []byte(method), nil)
	}
	later := make(chan error)
	go func() { _, _, err := call("later"); later <- err }()
	for range 3 {
		if reply, _, err := call("now"); err != nil || string(reply) != "now" {
			t.Errorf("got %q, %v", reply, err)
		}
		if _, _, err := call("panic"); sigma.KindOf(err) != sigma.KindOther {
			t.Errorf("a panic: %v", err)
		}
		if _, _, err := call("refuse"); sigma.KindOf(err) != sigma.KindBusy {
			t.Errorf("a refusal: %v", err)
		}
		_, files, err := call("file")
		if err != nil || len(files) != 1 {
			t.Errorf("got %v, %v", files, err)
		}
		session.CloseFiles(files)
	}
	close(over)
	if err := <-later; err != nil {
		t.Error(err)
	}
}
