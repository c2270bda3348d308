// Command tenant is a proc that tries to reach what decides about machines. It prints one JSON
// object for each attempt.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

type words struct {
	What, Control, Err string
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := sdk.Open(ctx)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	walk := func(names ...string) error {
		f, _, err := c.Root().Walk(ctx, names)
		if err == nil && f == nil {
			err = sigma.PathError("tenant", sigma.KindNotFound, sigma.JoinPath(names...))
		}
		return err
	}
	call := func(file, method string) error {
		f, _, err := c.Root().Walk(ctx, []string{"sys", file})
		if err != nil {
			return err
		}
		caller, ok := f.(sigma.Caller)
		if !ok {
			return sigma.PathError("tenant", sigma.KindNotFound, file)
		}
		_, _, err = caller.Call(ctx, method, nil, nil)
		return err
	}
	self := call("self", "info")
	say := func(what string, control, err error) {
		w := words{What: what}
		if control != nil {
			w.Control = control.Error()
		}
		if err != nil {
			w.Err = err.Error()
		}
		b, _ := json.Marshal(w)
		fmt.Println(string(b))
	}
	seen := func(path, word string) error {
		text, _, err := c.Get(ctx, path)
		if err == nil && !strings.Contains(string(text), word) {
			err = sigma.Errorf("tenant", sigma.KindNotFound, "%s says nothing of %s", path, word)
		}
		return err
	}
	say("addresses of machines", seen("/sys/machines", `"name":"m1"`), seen("/sys/machines", `"address"`))
	say("lives of machines", seen("/sys/machines", `"state":"alive"`), seen("/sys/machines", `"incarnation"`))
	say("the machine's sums", seen("/sys/utilisation", `"realm":"default"`),
		seen("/sys/utilisation", `"procs_memory_free_bytes"`))
	say("/sys/metrics", walk("sys", "self"), walk("sys", "metrics"))
	say("a call of /sys/machines", self, call("machines", "list"))
	say("/sys/names", walk("sys", "self"), walk("sys", "names"))
	say("a call of /sys/names", self, call("names", "members"))
	say("the services of the machine", self, call("machine", "status"))
	say("the state of the machines in names", walk("bin"), walk("machines", "state"))
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		say("listen", err, err)
		return
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	dial := func(e sigma.Endpoint) error {
		conn, err := c.Dial(ctx, e)
		if err == nil {
			conn.Close()
		}
		return err
	}
	e := l.Endpoint()
	system := e
	system.Realm, system.Form = sigma.SystemRealm, sigma.FormTree
	say("its own endpoint, as one of the system's", dial(e), dial(system))
	far := e
	far.Machine, far.Realm = "m2", sigma.SystemRealm
	say("an endpoint of the system on m2", dial(e), dial(far))
	conn, err := net.DialTimeout("tcp", os.Args[1], 5*time.Second)
	if err == nil {
		conn.Close()
	}
	say("the machine's own port", self, err)
}
