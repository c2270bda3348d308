// Program confined plays the web server of 000 §5.3 and its worker: as "parent" it spawns itself as
// "worker" with a view of a directory of static files and a pipe, and passes on what comes over the
// pipe; as "worker" it answers over the pipe and then tries whatever it can think of to reach more,
// one line an attempt. "free" makes the same attempts.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		switch os.Args[1] {
		case "parent":
			err = parent(ctx, c, os.Args[2])
		case "worker":
			if err = answer(ctx, c); err == nil {
				attempts(ctx, c, "w", os.Args[2:])
			}
		case "nothing":
		case "sleep":
			select {}
		case "free":
			attempts(ctx, c, "f", os.Args[2:])
		}
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// parent serves one request: the worker's answer, its standard output, and its status.
func parent(ctx context.Context, c *sdk.Client, program string) error {
	pipe, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	other, err := c.Listen(ctx, sigma.FormStream) // whose text the worker is told, which must not do
	if err != nil {
		return err
	}
	for path, l := range map[string]sigma.Listener{"/cgi/pipes/1": pipe, "/cgi/pipes/2": other} {
		if err := c.Publish(ctx, path, l.Endpoint(), 0); err != nil {
			return err
		}
	}
	free, err := c.Spawn(ctx, sigma.Descriptor{Program: program, Name: "victim", Args: []string{"sleep"}})
	if err != nil {
		return err
	}
	args := []string{other.Endpoint().String(), program, string(free[0])}
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: program, Name: "worker", Args: append([]string{"worker"},
		args...), View: []sigma.ViewEntry{
		{Path: "/static", Target: "/cgi/static", Rights: sigma.RightsRead}, {Path: "/pipe", Target: "/cgi/pipes/1",
			Rights: sigma.RightsRead}}})
	if err != nil {
		return err
	}
	conn, from, err := pipe.AcceptFrom(ctx)
	if err != nil {
		return err
	}
	if from.Proc != ids[0] {
		return fmt.Errorf("%s dialled", from.Proc)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	st, err := c.WaitExit(ctx, ids[0])
	if err != nil {
		return err
	}
	fmt.Printf("worker %s answered %q and ended %v\n", ids[0], got, st.Code)
	control, err := c.Spawn(ctx, sigma.Descriptor{Program: program, Name: "free", Args: append([]string{"free"},
		args...)})
	if err != nil {
		return err
	}
	st, err = c.WaitExit(ctx, control[0])
	fmt.Printf("free %s ended %v\n", control[0], st.Code)
	return err
}

// answer is what an honest worker does.
func answer(ctx context.Context, c *sdk.Client) error {
	page, _, err := c.Get(ctx, "/static/index.html")
	if err != nil {
		return err
	}
	conn, err := c.Dialer("/pipe").DialContext(ctx, "", "")
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(page)
	return err
}

// attempts prints one line for each.
func attempts(ctx context.Context, c *sdk.Client, turn string, told []string) {
	other, err := sigma.ParseEndpoint(told[0])
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	program, victim := told[1], sigma.ProcID(told[2])
	try := func(name string, err error) {
		said := "done"
		if err != nil {
			said = sigma.KindOf(err).String()
		}
		fmt.Printf("%s: %s\n", name, said)
	}
	get := func(path string) error { _, _, err := c.Get(ctx, path); return err }
	put := func(path string, o sigma.PutOptions) error { _, err := c.Put(ctx, path, []byte("x"), o); return err }
	spawn := func(program string, view ...sigma.ViewEntry) error {
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"nothing"}, View: view})
		if err == nil {
			_, err = c.WaitExit(ctx, ids[0])
		}
		return err
	}
	dial := func(e sigma.Endpoint) error {
		conn, err := c.Dial(ctx, e)
		if err == nil {
			conn.Close()
		}
		return err
	}
	try("get a secret", get("/cgi/secret"))
	_, err = c.ReadDir(ctx, "/cgi")
	try("list a directory", err)
	_, err = c.Lstat(ctx, "/cgi/pipes/2")
	try("stat another pipe", err)
	_, err = c.ReadLink(ctx, "/cgi/pipes/2")
	try("read another pipe's endpoint", err)
	_, err = c.Open(ctx, "/cgi/secret", sigma.OpenRead)
	try("open a secret", err)
	_, err = c.Watch(ctx, "/cgi", 0)
	try("watch a directory", err)
	_, _, err = c.Root().Walk(ctx, []string{"cgi", "secret"})
	try("walk in one message", err)
	try("follow a symlink", get(at(turn, "/static/out")))
	try("follow a symlink through a directory", get(at(turn, "/static/up/secret")))
	try("write a page", put(at(turn, "/static/new"+turn), sigma.PutOptions{}))
	try("replace a page", put(at(turn, "/static/index.html"), sigma.PutOptions{MustExist: true}))
	_, err = c.Open(ctx, at(turn, "/static/index.html"), sigma.OpenWrite|sigma.OpenTruncate)
	try("truncate a page", err)
	try("make a directory", c.Mkdir(ctx, at(turn, "/static/d"+turn), 0o755))
	try("make a symlink", c.Symlink(ctx, "/cgi/secret", at(turn, "/static/s"+turn)))
	mode := uint32(0o777)
	try("change a mode", c.SetStat(ctx, at(turn, "/static/index.html"), sigma.StatChange{Perm: &mode}))
	try("rename a page", c.Rename(ctx, at(turn, "/static/b.html"), at(turn, "/static/c.html")))
	try("remove a page", c.Remove(ctx, at(turn, "/static/d.html")))
	try("make a name at the root", c.Mkdir(ctx, "/made-by-"+turn, 0o755))
	try("dial an endpoint that it was told of", dial(other))
	_, _, err = c.Lease(ctx, 1e9)
	try("have a lease", err)
	try("scratch files", put("/ux/~local/"+turn, sigma.PutOptions{}))
	try("objects", put("/s3/bin/cgi-"+turn, sigma.PutOptions{}))
	_, err = c.ReadDir(ctx, "/bin")
	try("list programs", err)
	try("spawn a program", spawn(program))
	try("spawn a child with a view of more",
		spawn(program, sigma.ViewEntry{Path: "/x", Target: "/cgi", Rights: sigma.RightsRead}))
	_, err = c.Stat(ctx, "/proc/"+string(victim))
	try("see another proc", err)
	try("read its status", get("/proc/"+string(victim)+"/status"))
	list, err := c.List(ctx, true)
	if err == nil && !slices.ContainsFunc(list, func(p sigma.ProcInfo) bool { return p.ID == victim }) {
		err = sigma.Errorf("confined", sigma.KindNotFound, "it is not listed")
	}
	try("list it", err)
	try("wait for it", c.WaitStart(ctx, victim))
	try("read the roster", get("/sys/roster"))
	_, err = c.Lstat(ctx, "/sys/machine")
	try("the machine's file", err)
	try("mount a secret", mount(ctx, c))
	_, err = c.Caps(ctx, victim)
	if turn == "f" { // which only the provider may
		err = nil
	}
	try("ask what another may reach", err)
}

// at is where the free proc finds what the worker's view shows.
func at(turn, path string) string {
	if turn == "f" {
		return "/cgi" + path
	}
	return path
}

// mount gains nothing: what a program may not see has no other name either.
func mount(ctx context.Context, c *sdk.Client) error {
	if err := c.Mount(ctx, "/cgi", "/m"); err != nil {
		return err
	}
	b, _, err := c.Get(ctx, "/m/secret")
	if err == nil && !strings.HasPrefix(string(b), "secret") {
		err = sigma.Errorf("confined", sigma.KindInvalid, "it is %q", b)
	}
	return err
}
