package forge

import (
	"context"
	"fmt"
	"strings"

	"sigmaos.dev/sigma"
)

// tricks are names that mean something to a file system, and must mean nothing to sigmaOS.
var tricks = [...]string{"..", ".", "", "../x", "a/../../x", "/etc/passwd", "x\x00y", strings.Repeat("x", 256)}

// operations take one name in a directory.
var operations = []struct {
	name string
	do   func(ctx context.Context, dir sigma.File, name string) error
}{
	{"walk", func(ctx context.Context, dir sigma.File, name string) error {
		f, _, err := dir.Walk(ctx, []string{name})
		if f != nil {
			f.Close()
		} else if err == nil {
			err = errNothing
		}
		return err
	}},
	{"create", func(ctx context.Context, dir sigma.File, name string) error {
		f, err := dir.Create(ctx, name, sigma.OpenWrite|sigma.OpenTruncate, 0o644)
		if err == nil {
			f.Close()
		}
		return err
	}},
	{"mkdir", func(ctx context.Context, dir sigma.File, name string) error { return dir.Mkdir(ctx, name, 0o755) }},
	{"symlink", func(ctx context.Context, dir sigma.File, name string) error {
		return dir.Symlink(ctx, name, "/etc/passwd")
	}},
	{"remove", func(ctx context.Context, dir sigma.File, name string) error { return dir.Remove(ctx, name) }},
	{"rename", func(ctx context.Context, dir sigma.File, name string) error {
		return dir.Rename(ctx, "kept", dir, name)
	}},
	{"get", func(ctx context.Context, dir sigma.File, name string) error {
		_, stop, err := dir.(sigma.Getter).Get(ctx, []string{name}, 0, 100)
		if err == nil && stop != nil {
			err = errNothing
		}
		return err
	}},
	{"put", func(ctx context.Context, dir sigma.File, name string) error {
		_, stop, err := dir.(sigma.Putter).Put(ctx, []string{name}, []byte("x"), sigma.PutOptions{})
		if err == nil && stop != nil {
			err = errNothing
		}
		return err
	}},
}

// names sends each trick with each operation to each server, past the SDK's own check of paths.
func names() []Attempt {
	var out []Attempt
	for _, place := range []string{Dir, UX, Bucket} {
		for _, op := range operations {
			for _, name := range tricks {
				shown := name[:min(len(name), 20)]
				out = append(out, Attempt{Name: fmt.Sprintf("%s %q in %s", op.name, shown, place),
					Try: func(ctx context.Context, e *Env) error { return inDir(ctx, e, place, op.do, name) },
					Own: func(ctx context.Context, e *Env) error { return ordinary(ctx, e, place, op.name, op.do) }})
			}
		}
	}
	return out
}

func inDir(ctx context.Context, e *Env, place string, do func(context.Context, sigma.File, string) error,
	name string) error {
	dir, err := handle(ctx, e, place)
	if err != nil {
		return fmt.Errorf("no way to %s: %w", place, err)
	}
	defer dir.Close()
	return do(ctx, dir, name)
}

// handle walks to a directory as a client does that follows nothing by itself but the store's
// endpoint.
func handle(ctx context.Context, e *Env, place string) (sigma.File, error) {
	root, path := e.C.Root(), place
	if rest, ok := strings.CutPrefix(place, "/s3"); ok {
		text, err := e.C.ReadLink(ctx, "/s3")
		if err != nil {
			return nil, err
		}
		ep, err := sigma.ParseEndpoint(text)
		if err != nil {
			return nil, err
		}
		if e.store == nil {
			if e.store, err = e.C.DialTree(ctx, ep); err != nil {
				return nil, err
			}
		}
		if root, err = e.store.Attach(ctx, ""); err != nil {
			return nil, err
		}
		defer root.Close()
		path = rest
	}
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, err
	}
	f, _, err := root.Walk(ctx, names)
	if err == nil && f == nil {
		err = errNothing
	}
	return f, err
}

// ordinary does the same with an ordinary name.
func ordinary(ctx context.Context, e *Env, place, what string, do func(context.Context, sigma.File,
	string) error) error {
	dir, err := handle(ctx, e, place)
	if err != nil {
		return err
	}
	defer dir.Close()
	dir.Remove(ctx, "plain")
	switch what {
	case "walk", "get", "remove":
		f, err := dir.Create(ctx, "plain", sigma.OpenWrite|sigma.OpenTruncate, 0o644)
		if err != nil {
			return err
		}
		if p, ok := f.(sigma.Publisher); ok {
			err = p.Publish(ctx)
		} else {
			err = f.Sync(ctx)
		}
		f.Close()
		if err != nil {
			return err
		}
	case "rename":
		if _, _, err := dir.(sigma.Putter).Put(ctx, []string{"kept"}, []byte("x"), sigma.PutOptions{}); err != nil {
			return err
		}
	}
	err = do(ctx, dir, "plain")
	if what == "symlink" && strings.HasPrefix(place, "/s3") && sigma.KindOf(err) == sigma.KindUnsupported {
		return nil // objects know no links, whatever the name
	}
	return err
}

// targets of symlinks that mean something on the host.
var targets = [...]string{"/etc/passwd", "../../../../../../etc/passwd", "//etc/passwd", "/proc/self/environ",
	"/proc/1/environ", "/data", "/", "..", "/sys/kernel", "/ux/../etc/passwd"}

// links makes a symlink to a file of the host and reads through it by path, by the handle that a
// walk to it gives, and by going on.
func links() []Attempt {
	var out []Attempt
	for _, place := range []string{Dir, UX} {
		for _, target := range targets {
			out = append(out,
				Attempt{Name: fmt.Sprintf("a link to %s in %s, by path", target, place), Own: followOwn(place),
					Try: func(ctx context.Context, e *Env) error {
						if err := link(ctx, e, place, target); err != nil {
							return err
						}
						b, _, err := e.C.Get(ctx, place+"/link")
						if err == nil && len(b) == 0 {
							err = errNothing
						}
						return err
					}},
				Attempt{Name: fmt.Sprintf("a link to %s in %s, by its handle", target, place), Own: followOwn(place),
					Try: func(ctx context.Context, e *Env) error {
						if err := link(ctx, e, place, target); err != nil {
							return err
						}
						f, err := handle(ctx, e, place+"/link")
						if err != nil {
							return err
						}
						defer f.Close()
						if err := f.Open(ctx, sigma.OpenRead); err != nil {
							return err
						}
						buf := make([]byte, 100)
						n, err := f.ReadAt(ctx, buf, 0)
						if err == nil && (n == 0 || string(buf[:n]) == target) {
							err = errNothing
						}
						return err
					}})
		}
	}
	return out
}

func link(ctx context.Context, e *Env, place, target string) error {
	dir, err := handle(ctx, e, place)
	if err != nil {
		return err
	}
	defer dir.Close()
	dir.Remove(ctx, "link")
	return dir.Symlink(ctx, "link", target)
}

// followOwn shows that links work: one to a file of the realm is followed.
func followOwn(place string) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		if err := link(ctx, e, place, Names); err != nil {
			return err
		}
		_, _, err := e.C.Get(ctx, place+"/link")
		return err
	}
}

// places tries to put something of its own where the system's names are.
func places() []Attempt {
	type change struct {
		name string
		do   func(ctx context.Context, e *Env, path string) error
	}
	ctxPut := func(o sigma.PutOptions, data func(*Env) string) func(context.Context, *Env, string) error {
		return func(ctx context.Context, e *Env, path string) error {
			dir, name := cutLast(path)
			f, err := handle(ctx, e, dir)
			if err != nil {
				return err
			}
			defer f.Close()
			_, stop, err := f.(sigma.Putter).Put(ctx, []string{name}, []byte(data(e)), o)
			if err == nil && stop != nil {
				err = errNothing
			}
			return err
		}
	}
	changes := []change{
		{"a file", ctxPut(sigma.PutOptions{}, func(*Env) string { return "x" })},
		{"a link", ctxPut(sigma.PutOptions{Kind: sigma.KindSymlink}, func(*Env) string { return "/held" })},
		{"an endpoint", ctxPut(sigma.PutOptions{Kind: sigma.KindEndpoint}, func(e *Env) string {
			return e.Sibling.Endpoint
		})},
		{"a directory", func(ctx context.Context, e *Env, path string) error { return e.C.Mkdir(ctx, path, 0o755) }},
		{"a renamed file", func(ctx context.Context, e *Env, path string) error {
			if _, err := e.C.Put(ctx, "/moved", []byte("x"), sigma.PutOptions{}); err != nil {
				return err
			}
			return e.C.Rename(ctx, "/moved", path)
		}},
		{"a file renamed from below", func(ctx context.Context, e *Env, path string) error {
			if _, err := e.C.Put(ctx, Dir+"/moved", []byte("x"), sigma.PutOptions{}); err != nil {
				return err
			}
			return e.C.Rename(ctx, Dir+"/moved", path)
		}},
		{"nothing", func(ctx context.Context, e *Env, path string) error { return e.C.Remove(ctx, path) }},
	}
	var out []Attempt
	for _, path := range []string{"/s3", "/sys", "/proc", "/ux", "/sys/procs", "/proc/status", "/ux/m2"} {
		for _, c := range changes {
			own := "/replaced"
			out = append(out, Attempt{Name: fmt.Sprintf("%s in place of %s", c.name, path),
				Try: func(ctx context.Context, e *Env) error {
					return c.do(ctx, e, path)
				},
				Own: func(ctx context.Context, e *Env) error {
					e.C.Remove(ctx, own)
					if c.name == "nothing" {
						if _, err := e.C.Put(ctx, own, nil, sigma.PutOptions{}); err != nil {
							return err
						}
					}
					return c.do(ctx, e, own)
				}})
		}
	}
	return append(out, Attempt{Name: "write its own status", Uncontrolled: true, // nobody may
		Try: func(ctx context.Context, e *Env) error {
			_, err := e.C.Put(ctx, statusOf(e), []byte("state ended\n"), sigma.PutOptions{})
			return err
		}})
}

func statusOf(e *Env) string { return sigma.JoinPath("proc", string(e.Sibling.Proc), "status") }

func cutLast(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[1:]
	}
	return path[:i], path[i+1:]
}

// spawns asks for programs that are not the realm's.
func spawns() []Attempt {
	spawn := func(d sigma.Descriptor) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			ids, err := e.C.Spawn(ctx, d)
			if err != nil {
				return err
			}
			s, err := e.C.WaitExit(ctx, ids[0])
			if err == nil && s.Code != sigma.StatusOK {
				err = sigma.Errorf("forge.spawn", sigma.KindOther, "%v: %s", s.Code, s.Msg)
			}
			return err
		}
	}
	own := spawn(sigma.Descriptor{Program: "/bin/forger", Args: []string{"nothing"}})
	large := spawn(sigma.Descriptor{Program: "/bin/forger",
		Args: []string{"nothing", strings.Repeat("x", sigma.ArgsMax/2)}})
	var out []Attempt
	for _, path := range []string{"/bin/true", "/bin/../../bin/true", "/etc/passwd", "/proc/self/exe",
		"/ux/~local/held/secret", "/held/secret", "/stolen", "/sys/procs", "/held/link"} {
		out = append(out, Attempt{Name: "spawn " + path, Try: spawn(sigma.Descriptor{Program: path}), Own: own})
	}
	return append(out,
		Attempt{Name: "spawn a latency-critical proc with all cores",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger", Args: []string{"nothing"}, Class: 1, CPU: 1 << 20}),
			Own: own},
		Attempt{Name: "spawn with more memory than there is",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger", Args: []string{"nothing"}, Memory: 1 << 60}), Own: own},
		Attempt{Name: "spawn with huge arguments",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger",
				Args: []string{"nothing", strings.Repeat("x", sigma.ArgsMax)}}), Own: large},
		Attempt{Name: "spawn with huge numbers of arguments",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger", Args: append([]string{"nothing"},
				make([]string, 100_000)...)}), Own: large},
		Attempt{Name: "spawn with huge environment",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger", Args: []string{"nothing"},
				Env: []string{"X=" + strings.Repeat("x", sigma.ArgsMax)}}), Own: large},
		Attempt{Name: "spawn with an argument of two",
			Try: spawn(sigma.Descriptor{Program: "/bin/forger", Args: []string{"nothing\x00x"}}), Own: own},
	)
}
