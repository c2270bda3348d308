// Command goprobe is the Go side of the tests: procs that use the SDK, one per word.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/wire/ring"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		err = run(ctx, c, os.Args[1], os.Args[2:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v: %v\n", sigma.KindOf(err), err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *sdk.Client, what string, args []string) error {
	switch what {
	case "start": // starts when told to
		fmt.Println("before")
		if err := c.WaitFor(ctx, args[0]); err != nil {
			return err
		}
		return c.Started(ctx)
	case "exit": // says more than an exit code can
		if err := c.Exited(ctx, sigma.Status{Code: sigma.StatusError, Msg: "the sum does not add up",
			Data: []byte{0, 1, 2, 255}}); err != nil {
			return err
		}
		os.Exit(3)
	case "opens": // opens a file, or files of a directory in turn, without end
		return opens(ctx, c, args)
	case "notice": // goes in good order
		if err := c.Started(ctx); err != nil {
			return err
		}
		if err := c.WaitEvict(ctx); err != nil {
			return err
		}
		fmt.Println("noticed")
		return nil
	case "farewell": // when it is to go, it takes a second to write a file
		return farewell(ctx, c, args[0])
	case "late": // asks for its notice only after it was given as a signal
		return late(ctx, c)
	case "survive": // waits for its child, and at a listener, while sigmad is replaced
		return survive(ctx, c, args)
	case "parent": // its child outlives it
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: args[0], Args: args[1:]})
		if err != nil {
			return err
		}
		fmt.Print(ids[0])
		return c.WaitStart(ctx, ids[0])
	case "parent-of-waiting": // it is gone before its child starts
		memory, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return err
		}
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: args[1], Args: args[2:], Memory: sigma.Bytes(memory)})
		if err != nil {
			return err
		}
		fmt.Print(ids[0])
		return nil
	case "ephemeral":
		return ephemeral(ctx, c, args[0], args[1])
	case "watches":
		return watches(ctx, c, args[0])
	case "names":
		return names(ctx, c, args[0])
	case "echo":
		return echo(ctx, c, args[0])
	case "echo-ring":
		c.UseTransport(ring.Shared)
		return echo(ctx, c, args[0])
	case "ring":
		return inRing(ctx, c, args[0])
	case "transport":
		return transport(ctx, c, args[0])
	case "say":
		return say(ctx, c, args[0], args[1])
	case "hold", "hold-ring": // has a connection until that ends
		if what == "hold-ring" {
			c.UseTransport(ring.Shared)
		}
		return hold(ctx, c, args[0])
	case "pour", "pour-ring":
		if what == "pour-ring" {
			c.UseTransport(ring.Shared)
		}
		return pour(ctx, c, args[0])
	case "dial":
		return dial(ctx, c, args[0])
	case "dial-often": // until it is refused
		return dialOften(ctx, c, args[0])
	case "http":
		return serveHTTP(ctx, c, args[0])
	case "get":
		return get(ctx, c, args[0])
	case "read": // prints a file
		h, err := c.Open(ctx, args[0], sigma.OpenRead)
		if err != nil {
			return err
		}
		defer h.Close()
		_, err = io.Copy(os.Stdout, h)
		return err
	case "tree":
		return serveTree(ctx, c, args[0])
	case "walk":
		return walk(ctx, c, args[0])
	}
	return fmt.Errorf("no such word: %s", what)
}

func late(ctx context.Context, c *sdk.Client) error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	if err := c.Started(ctx); err != nil {
		return err
	}
	<-told
	if err := c.WaitEvict(ctx); err != nil {
		return err
	}
	fmt.Println("noticed late")
	return nil
}

func ephemeral(ctx context.Context, c *sdk.Client, path, text string) error {
	ttl, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	lease, _, err := c.Lease(ctx, ttl)
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, path, []byte("here"), sigma.PutOptions{Lease: lease}); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	select {}
}

// watches asks for watches of a file that never changes, more and more of them, until as many wait
// as may, and goes on waiting.
func watches(ctx context.Context, c *sdk.Client, path string) error {
	const askers, each = 6000, 10 // a session takes 4,096 requests
	var busy, other atomic.Int64
	var last atomic.Value
	refused := make(chan struct{}, askers)
	for range askers {
		go func() {
			for range each {
				_, err := c.Watch(ctx, path, 1<<60)
				if kind := sigma.KindOf(err); kind == sigma.KindBusy || kind == sigma.KindNoSpace {
					busy.Add(1)
				} else {
					other.Add(1)
					last.Store(fmt.Sprint(err))
				}
			}
			refused <- struct{}{}
		}()
	}
	for range askers - 4096 {
		<-refused
	}
	fmt.Printf("%d refused, %d others %v\n", busy.Load(), other.Load(), last.Load())
	select {}
}

// names works through the file operations below dir.
func names(ctx context.Context, c *sdk.Client, dir string) error {
	if err := c.MkdirAll(ctx, dir+"/a/b", 0o755); err != nil {
		return err
	}
	id, err := c.Put(ctx, dir+"/a/b/f", []byte("one"), sigma.PutOptions{MustMake: true})
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, dir+"/a/b/f", nil,
		sigma.PutOptions{MustMake: true}); sigma.KindOf(err) != sigma.KindExists {
		return fmt.Errorf("a second making: %v", err)
	}
	if _, err := c.Put(ctx, dir+"/a/b/f", []byte("two"), sigma.PutOptions{IfVersion: id.Version}); err != nil {
		return err
	}
	if _, err := c.Put(ctx, dir+"/a/b/f", []byte("three"),
		sigma.PutOptions{IfVersion: id.Version}); sigma.KindOf(err) != sigma.KindVersion {
		return fmt.Errorf("a put on an old version: %v", err)
	}
	from := dir + "/a/b/f"
	if err := c.Symlink(ctx, dir+"/a/b", dir+"/link"); err == nil {
		from = dir + "/link/f"
	} else if sigma.KindOf(err) != sigma.KindUnsupported { // the object store has no links
		return err
	}
	if err := c.Rename(ctx, from, dir+"/g"); err != nil {
		return err
	}
	b, _, err := c.Get(ctx, dir+"/g")
	if err != nil || string(b) != "two" {
		return fmt.Errorf("after the rename: %q, %v", b, err)
	}
	if err := c.RemoveAll(ctx, dir); err != nil {
		return err
	}
	if _, err := c.Stat(ctx, dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("after the removal: %v", err)
	}
	fmt.Println("names work")
	return nil
}

// listen makes an endpoint, publishes it and says that the proc has started.
func listen(ctx context.Context, c *sdk.Client, form sigma.ConnForm, path string) (sigma.Listener, error) {
	l, err := c.Listen(ctx, form)
	if err != nil {
		return nil, err
	}
	if err := c.Publish(ctx, path, l.Endpoint(), 0); err != nil {
		return nil, err
	}
	return l, c.Started(ctx)
}

// echo tells each caller who it is, then sends back what it sends.
func echo(ctx context.Context, c *sdk.Client, path string) error {
	l, err := listen(ctx, c, sigma.FormStream, path)
	if err != nil {
		return err
	}
	for {
		conn, p, err := l.AcceptFrom(ctx)
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			fmt.Fprintf(conn, "you are %s in %s\n", p.Proc, p.Realm)
			io.Copy(conn, conn)
		}()
	}
}

// say sends words to an echo server after it has left other connections to it silent.
func say(ctx context.Context, c *sdk.Client, path, words string) error {
	for range 20 {
		if _, err := c.DialPath(ctx, path); err != nil {
			return err
		}
	}
	conn, err := c.DialPath(ctx, path)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(conn, words); err != nil {
		return err
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(bytes.Replace(b, []byte(c.Info().Principal.Proc), []byte("ME"), 1))
	return err
}

// hold talks to an echo server for as long as it answers.
func hold(ctx context.Context, c *sdk.Client, path string) error {
	conn, err := c.DialPath(ctx, path)
	if err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	for i := 0; ; i++ {
		if _, err = io.WriteString(conn, "still there?\n"); err == nil {
			_, err = answers.ReadString('\n')
		}
		if err != nil {
			fmt.Printf("it ended, after answers: %v\n", i > 100)
			return nil
		}
		if i == 100 { // in memory by now, if that is wanted
			if err := c.Started(ctx); err != nil {
				return err
			}
		}
	}
}

// dialOften dials an endpoint again and again, so that connections are made in advance, until it is
// refused; and then it has to be every time.
func dialOften(ctx context.Context, c *sdk.Client, path string) error {
	text, err := c.ReadLink(ctx, path)
	if err != nil {
		return err
	}
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		conn, err := c.Dial(ctx, e)
		if err != nil {
			fmt.Printf("refused, after dials: %v\n", i > 100)
			break
		}
		io.ReadFull(conn, make([]byte, 1))
		conn.Close()
		if i == 100 {
			if err := c.Started(ctx); err != nil {
				return err
			}
		}
	}
	for range 100 {
		conn, err := c.Dial(ctx, e)
		if err == nil {
			conn.Close()
			fmt.Println("dialled again")
			break
		}
	}
	return nil
}

// pour has an echo server answer 100 messages of 1,000 bytes one by one, then says that it has
// started and keeps the connection until it is made to end.
func pour(ctx context.Context, c *sdk.Client, path string) error {
	conn, err := c.DialPath(ctx, path)
	if err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	if _, err := answers.ReadString('\n'); err != nil {
		return err
	}
	b := make([]byte, 1000)
	for range 100 {
		if _, err := conn.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(answers, b); err != nil {
			return err
		}
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// inRing has an echo server's answers until both directions of the connection are in memory, and
// then some more.
func inRing(ctx context.Context, c *sdk.Client, path string) error {
	c.UseTransport(ring.Shared)
	nc, err := c.DialPath(ctx, path)
	if err != nil {
		return err
	}
	conn := nc.(*sdk.Conn)
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	for n, left := 0, 1000; left > 0; n++ {
		if _, err := fmt.Fprintln(conn, n); err != nil {
			return err
		}
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintln(n) {
			return fmt.Errorf("got %q, %v for %d", line, err, n)
		}
		if st := conn.Stats(); st.Reading == ring.Shared && st.Writing == ring.Shared {
			left--
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	if b, err := io.ReadAll(lines); err != nil || len(b) > 0 {
		return fmt.Errorf("got %q, %v after the last answer", b, err)
	}
	_, err = fmt.Println("1000 answers in memory")
	return err
}

// transport says what carries a connection that is busy.
func transport(ctx context.Context, c *sdk.Client, path string) error {
	nc, err := c.DialPath(ctx, path)
	if err != nil {
		return err
	}
	conn := nc.(*sdk.Conn)
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	for range 1000 {
		if _, err := fmt.Fprintln(conn, "word"); err != nil {
			return err
		}
		if _, err := lines.ReadString('\n'); err != nil {
			return err
		}
	}
	st := conn.Stats()
	_, err = fmt.Println(st.Reading, st.Writing)
	return err
}

// dial tries an endpoint's text as it was handed to us.
func dial(ctx context.Context, c *sdk.Client, text string) error {
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	conn, err := c.Dial(ctx, e)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	return conn.Close()
}

func serveHTTP(ctx context.Context, c *sdk.Client, path string) error {
	l, err := listen(ctx, c, sigma.FormStream, path)
	if err != nil {
		return err
	}
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s with %d bytes", r.Method, r.URL.Path, len(body))
	}))
}

func get(ctx context.Context, c *sdk.Client, path string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return c.DialPath(ctx, path)
	}}}
	for i := range 3 {
		r, err := client.Post(fmt.Sprintf("http://server/page/%d", i), "text/plain",
			bytes.NewReader(make([]byte, i*100_000)))
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", r.Status, b)
	}
	return nil
}

func serveTree(ctx context.Context, c *sdk.Client, path string) error {
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	root, err := tree.Attach(ctx, c.Info().Principal, "")
	if err != nil {
		return err
	}
	if err := root.Mkdir(ctx, "deep", 0o755); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- c.ServeTree(ctx, l, tree) }()
	if err := c.Publish(ctx, path, l.Endpoint(), 0); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return <-served
}

// walk uses the tree behind the endpoint at path as if it were part of the realm's.
func walk(ctx context.Context, c *sdk.Client, path string) error {
	big := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	for name, data := range map[string][]byte{"small": []byte("words"), "big": big} {
		if _, err := c.Put(ctx, path+"/deep/"+name, data, sigma.PutOptions{}); err != nil {
			return err
		}
		b, _, err := c.Get(ctx, path+"/deep/"+name)
		if err != nil || !bytes.Equal(b, data) {
			return fmt.Errorf("%s: %d bytes, %w", name, len(b), err)
		}
	}
	es, err := c.ReadDir(ctx, path+"/deep")
	if err != nil {
		return err
	}
	for _, e := range es {
		fmt.Println(e.Name)
	}
	return nil
}

func survive(ctx context.Context, c *sdk.Client, args []string) error {
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: args[0], Args: args[1:]})
	if err != nil {
		return err
	}
	if err := c.WaitStart(ctx, ids[0]); err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	held, err := c.Create(ctx, fmt.Sprintf("/ux/%s/held", c.Info().Principal.Machine), sigma.OpenWrite, 0o644)
	if err != nil {
		return err
	}
	if err := c.Publish(ctx, "/survives", l.Endpoint(), 0); err != nil {
		return err
	}
	accepted := make(chan error)
	go func() { _, err := l.Accept(); accepted <- err }() // of who dials after sigmad has died
	appending, stop := context.WithCancel(ctx)
	defer stop()
	appended := make(chan error)
	go func() { appended <- appendLines(appending, c, "/appended") }()
	fmt.Println("child", ids[0])
	ended := make(chan error)
	go func() {
		st, err := c.WaitExit(ctx, ids[0])
		if err == nil && st.ExitCode != 3 {
			err = fmt.Errorf("the child ended with %+v", st)
		}
		ended <- err
	}()
	noticed := make(chan error, 1)
	go func() { noticed <- c.WaitEvict(ctx) }()
	fmt.Println("accept", <-accepted)
	_, err = held.Write([]byte("x"))
	fmt.Println("write", sigma.KindOf(err))
	if err := <-ended; err != nil {
		return err
	}
	fmt.Println("child ended")
	select {
	case err := <-noticed:
		return fmt.Errorf("it was told to go: %w", err)
	default:
	}
	stop()
	if err := <-appended; err != nil {
		return err
	}
	if _, err := c.Put(ctx, "/survived", []byte("yes"), sigma.PutOptions{}); err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK, Msg: "survived"})
}

// appendLines appends numbers to a file until ctx ends. The last may be there or not.
func appendLines(ctx context.Context, c *sdk.Client, path string) error {
	for i := 0; ; i++ {
		if _, err := c.Put(ctx, path, fmt.Appendf(nil, "%d\n", i), sigma.PutOptions{Append: true}); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("append %d: %w", i, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// opens opens so many files, or one so often, says after how many it could not and why, and keeps
// them until it is ended.
func opens(ctx context.Context, c *sdk.Client, args []string) error {
	files, n := 0, 0
	fmt.Sscan(args[1], &files)
	fmt.Sscan(args[2], &n)
	var handles []sigma.Handle
	for i := range n {
		path := args[0]
		if files > 0 {
			path += fmt.Sprint(i % files)
		}
		h, err := c.Open(ctx, path, sigma.OpenRead)
		if err != nil {
			fmt.Printf("%d %v: %v\n", i, sigma.KindOf(err), err)
			break
		}
		handles = append(handles, h)
	}
	err := c.WaitEvict(ctx)
	runtime.KeepAlive(handles)
	return err
}

func farewell(ctx context.Context, c *sdk.Client, path string) error {
	signal.Ignore(syscall.SIGTERM) // which is the notice of who does not wait for it yet
	if err := c.Started(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	if err := c.WaitEvict(ctx); err != nil {
		return err
	}
	<-time.After(time.Second)
	if _, err := c.Put(ctx, path, []byte("farewell"), sigma.PutOptions{Perm: 0o644}); err != nil {
		return err
	}
	fmt.Println("gone in good order")
	return nil
}
