// Command forger is the program of the procs that the attack suite uses: victims, attackers by
// sigmaP, and a reader.
//
//	forger hold             keeps secrets, listens, prints its forge.World as JSON, and waits to be evicted
//	forger attack           tries forge.All with what the environment's FORGE tells of others
//	forger raw NAME [SEED]  sends bytes that no client sends
//	forger store SEED        sends spoilt messages to the object store
//	forger descriptor [F]   misuses a passed descriptor, or as a control the file F
//	forger socket           misuses a socket that was passed to it by its dialling itself
//	forger mapped [N]       writes to its own pages of a passed file, N times all of it or without end
//	forger former           tries forge.Former with what FORGE tells of the former realm
//	forger count FILE...    counts words by passed descriptors
//	forger hoard            keeps as many connections and files as it gets, and prints how many
//	forger listen           listens, prints what it has of a forge.World, and accepts nobody
//	forger nothing          ends well
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "forger:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("what to do?")
	}
	switch args[0] {
	case "nothing":
		return nil
	case "raw":
		return raw(args[1:])
	case "descriptor":
		return descriptor(ctx, args[1:])
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	switch args[0] {
	case "hold":
		return hold(ctx, c)
	case "listen":
		return listen(ctx, c)
	case "attack":
		return attack(ctx, c)
	case "former":
		return former(ctx, c)
	case "count":
		return count(ctx, c, args[1:])
	case "hoard":
		return hoard(ctx, c)
	case "socket":
		return socket(ctx, c)
	case "mapped":
		return mapped(ctx, c, args[1:])
	case "store":
		return store(ctx, c, args[1:])
	}
	return fmt.Errorf("cannot %s", args[0])
}

// hold makes everything that an attempt is after.
func hold(ctx context.Context, c *sdk.Client) error {
	w := forge.World{Realm: c.Info().Principal.Realm, Proc: c.Info().Principal.Proc}
	w.Secret = "the secret of " + string(w.Proc)
	for _, dir := range []string{forge.Dir, forge.UX, forge.Bucket} {
		if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
			return err
		}
		if _, err := c.Put(ctx, dir+"/secret", []byte(w.Secret), sigma.PutOptions{}); err != nil {
			return err
		}
	}
	if err := forge.KeepInDatabase(ctx, c, w.Secret); err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
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
	w.Endpoint = l.Endpoint().String()
	if w.Lease, _, err = c.Lease(ctx, time.Minute); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(w); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return c.WaitEvict(ctx)
}

// listen is dialled by who then goes for the connection that waits, and killed by who goes for its
// endpoint.
func listen(ctx context.Context, c *sdk.Client) error {
	ep, err := forge.Bare(ctx, c, "")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(forge.World{Proc: c.Info().Principal.Proc,
		Endpoint: ep.String()}); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return c.WaitEvict(ctx)
}

// eachMax bounds one attempt, of which one that waits for ever has got nothing, and ownMax its
// control, which must succeed on a host that stands still for seconds, too.
const (
	eachMax = 2 * time.Second
	ownMax  = 30 * time.Second
)

func attack(ctx context.Context, c *sdk.Client) error {
	e := forge.Env{C: c}
	if err := json.Unmarshal([]byte(os.Getenv("FORGE")), &e); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, a := range forge.All() {
		what := act{a.Name, a.Attempt, a.Asset}
		tell(out, what, bounded(ctx, eachMax, func(ctx context.Context) error { return a.Try(ctx, &e) }), "blocked")
		if a.Own != nil {
			tell(out, what, bounded(ctx, ownMax, func(ctx context.Context) error {
				return a.Own(ctx, &e)
			}), "control failed")
		}
	}
	return nil
}

func former(ctx context.Context, c *sdk.Client) error {
	e := forge.Env{C: c}
	if err := json.Unmarshal([]byte(os.Getenv("FORGE")), &e); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for name, err := range forge.Former(ctx, &e) {
		tell(out, act{name, "use what a former realm of the name had", "a former realm"}, err, "blocked")
	}
	return nil
}

func bounded(ctx context.Context, most time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return f(ctx)
}

// act is one thing that is done, for which attempt, and what that goes for.
type act struct{ name, attempt, asset string }

// tell writes a line; kind is what an error means, "blocked" or "control failed".
func tell(out io.Writer, a act, err error, kind string) {
	result, detail := kind, ""
	switch {
	case err == nil && kind == "blocked":
		result = "SUCCEEDED"
	case err == nil:
		result = "control"
	default:
		detail = fmt.Sprintf("%v: %q", sigma.KindOf(err), err.Error())
	}
	fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", a.name, result, detail, a.attempt, a.asset)
}

// count does what a mapper of MapReduce does with its input: it takes a descriptor for each file
// and counts.
func count(ctx context.Context, c *sdk.Client, paths []string) error {
	words := 0
	for _, path := range paths {
		h, err := c.Open(ctx, path, sigma.OpenRead)
		if err != nil {
			return err
		}
		f, err := h.File()
		if err != nil {
			return err
		}
		s := bufio.NewScanner(f)
		s.Split(bufio.ScanWords)
		for s.Scan() {
			words++
		}
		if err := errors.Join(s.Err(), f.Close(), h.Close()); err != nil {
			return err
		}
	}
	fmt.Println(words)
	return nil
}

// hoard takes what it can get: connections to the store that are never used, files that are never
// closed, calls that never end.
func hoard(ctx context.Context, c *sdk.Client) error {
	text, err := c.ReadLink(ctx, "/s3")
	if err != nil {
		return err
	}
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	conns, files := 0, 0
	for ; conns < 3000; conns++ {
		if _, err := c.Dial(ctx, e); err != nil {
			break
		}
	}
	for ; files < 10000; files++ {
		if _, err := c.Open(ctx, forge.UX+"/secret", sigma.OpenRead); err != nil {
			break
		}
	}
	for range 10000 {
		go c.WaitEvict(ctx)
	}
	fmt.Printf("%d connections, %d files\n", conns, files)
	return c.WaitEvict(ctx)
}
