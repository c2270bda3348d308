package tree

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

func newPutCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "put [-r] LOCAL... PATH",
		Short: "Store local files in the realm",
		Long: `Store a local file at a realm path, or, if PATH ends with / or is a directory, below it
with its own name; "-" is standard input. With -r, store what is in a local directory at
PATH (or, if PATH ends with /, at PATH/NAME), making directories as needed. What is
there under the same name is replaced, each file atomically; other files stay. Symbolic
links and devices of the local directory are skipped and counted.

A bucket has to exist: make it with "sigma mkdir /s3/NAME".`,
		Example: `  sudo sigma mkdir /s3/in
  sudo sigma put a.txt /s3/in/
  sudo sigma mkdir /s3/in
  sudo sigma put -r texts /s3/in/texts
  date | sudo sigma put - /s3/in/now`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.put(cmd.Context(), args, moving{recursive: recursive})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "store directories")
	return cmd
}

func newGetCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "get [-r] [--stale] PATH... [LOCAL]",
		Short: "Fetch files of the realm",
		Long: `Fetch a file of the realm into a local file, or, if LOCAL ends with / or is a directory
(default: this one), below it with its own name; "-" is standard output. With -r, fetch what
is in a directory into the directory LOCAL (or, if LOCAL ends with /, is not given, or there
are several PATHs, LOCAL/NAME), making directories as needed. Modes are kept, but nobody else
gets the right to write; new directories are this user's alone until all is there. Local
files of the same name are replaced; each is whole or as it was. Links and files without
content are skipped and counted, and links below LOCAL on this machine are not followed.`,
		Example: `  sudo sigma get /s3/in/a.txt
  sudo sigma get '/s3/in/*.txt' texts/
  sudo sigma get -r /s3/out results
  sudo sigma get /s3/in/a.txt - | wc`,
		Args: cli.Between(1, -1),
	}
	a.Reading(cmd, func(ctx context.Context, args []string, _ *sigma.Age) error {
		local, last := "./", len(args)-1
		if last > 0 {
			args, local = args[:last], args[last]
		}
		return a.get(ctx, args, local, moving{recursive: recursive})
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "fetch directories")
	return cmd
}

// hostPrefix marks paths of this host where paths of the realm are meant otherwise.
const hostPrefix = "file:"

func newCpCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "cp [-r] FROM... TO",
		Short: "Copy files within the realm, from and to this host",
		Long: `Copy files. A path with a slash in front is the realm's; any other, such as a.txt, ./texts
or ../texts, is this host's, and so is file:/tmp/a.txt; "-" is standard input or output. What
is copied goes below TO with its name if TO is a directory or ends with /; it may come from
another server than it goes to (from /s3 to /ux, say).

With -r, copy directories with all that is in them. Modes are kept. Links within the realm
are copied as links; endpoints, callable files, and links and devices of this host are
skipped and counted. What is there under the same name is replaced, each file atomically.`,
		Example: `  sudo sigma cp /s3/in/a.txt /s3/in/b.txt
  sudo sigma cp -r /s3/in /ux/~local/in
  sudo sigma cp a.txt b.txt /s3/in/
  sudo sigma cp '/s3/in/*.txt' ./texts/`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.cp(cmd.Context(), args, moving{recursive: recursive, below: true})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also directories")
	return cmd
}

// hostPath says whether a word of cp names a file of this host, and which.
func hostPath(word string) (name string, host bool) {
	if rest, ok := strings.CutPrefix(word, hostPrefix); ok {
		if strings.HasPrefix(rest, "//") { // a URL without a host
			rest = "/" + strings.TrimLeft(rest, "/")
		}
		return rest, true
	}
	return word, !strings.HasPrefix(word, "/")
}

func (a *app) cp(ctx context.Context, args []string, o moving) error {
	from, to := slices.Clone(args[:len(args)-1]), args[len(args)-1]
	to, toHost := hostPath(to)
	hosts := 0
	for i, f := range from {
		name, host := hostPath(f)
		if name == "" {
			return cli.UsageError(nil, "write . for this directory", "a name is empty")
		}
		if from[i] = name; host {
			hosts++
		}
	}
	switch {
	case to == "":
		return cli.UsageError(nil, "write . for this directory", "a name is empty")
	case hosts == len(from) && toHost:
		return cli.UsageError(nil, "realm paths begin with /, as in /s3/in/a.txt; between files of this host use cp(1)",
			"cp: all of these are files of this host")
	case hosts == len(from):
		return a.put(ctx, append(from, to), o)
	case hosts > 0:
		return cli.UsageError(nil, "copy them one after the other",
			"cp: some of these are files of this host and some are the realm's")
	case toHost:
		return a.get(ctx, from, to, o)
	}
	err := a.copyWithin(ctx, from, to, o)
	if sigma.KindOf(err) == sigma.KindNotFound && sigma.HintOf(err) == "" && len(from) == 1 {
		if _, serr := os.Stat(from[0]); serr == nil {
			return &sigma.Error{Op: "sigma.cp", Path: from[0], Kind: sigma.KindNotFound,
				Msg: "the realm has no such file, but this host has", Hint: "this host's is written file:" + from[0]}
		}
	}
	return err
}

// moving says how files are copied, and what is said of it.
type moving struct {
	recursive bool
	below     bool   // a directory goes below one that is there, as cp has it, not over it
	verb      string // put, get or cp
	done      string // stored, fetched or copied
	skips     string // what is skipped
}

// refuse is why what was named and is st cannot be copied.
func (o moving) refuse(name string, st sigma.Stat, hint string) error {
	switch {
	case st.ID.Kind == sigma.KindDir && !o.recursive:
		return &sigma.Error{Op: "sigma." + o.verb, Path: name, Kind: sigma.KindIsDir, Hint: hint}
	case st.ID.Kind == sigma.KindCallable:
		return files.NoContent(name)
	}
	return nil
}

// into says whether what is copied goes below the target with its name.
func (o moving) into(typed string, isDir bool, st sigma.Stat) bool {
	return strings.HasSuffix(typed, "/") || isDir && (o.below || st.ID.Kind != sigma.KindDir)
}

// copyWithin copies within the realm.
func (a *app) copyWithin(ctx context.Context, from []string, typed string, o moving) error {
	o.verb, o.done, o.skips = "cp", "copied", "endpoints, callable files, and links where none can be"
	to, err := cli.PlainPath(typed)
	if err != nil {
		return err
	}
	c, from, err := a.connectFor(ctx, from)
	if err != nil {
		return err
	}
	isDir, err := isDirectory(ctx, c, to)
	if err != nil {
		return err
	}
	if !isDir && len(from) > 1 {
		return notDirectory("sigma.cp", to)
	}
	realm := files.OfRealm(c)
	p := &files.Copy{To: realm}
	for _, f := range from {
		st, err := c.Stat(ctx, f)
		if err != nil {
			return err
		}
		at := to
		if o.into(typed, isDir, st) {
			at = path.Join(to, path.Base(f))
		}
		if err = checkApart(ctx, c, f, at); err == nil {
			err = o.refuse(f, st, "copy it with all that is in it: sigma cp -r "+f+" "+at)
		}
		if err == nil {
			err = p.Add(ctx, realm, f, st, at)
		}
		if err != nil {
			return err
		}
	}
	return a.carryOut(ctx, p, o, from)
}

func isDirectory(ctx context.Context, c sigma.Namespace, p string) (bool, error) {
	st, err := c.Stat(ctx, p)
	if files.Gone(err) {
		return false, nil
	}
	return err == nil && st.ID.Kind == sigma.KindDir, err
}

func notDirectory(op, p string) error {
	return &sigma.Error{Op: op, Path: p, Kind: sigma.KindNotDir, Msg: "is not a directory",
		Hint: "make it with: sigma mkdir -p " + p}
}

// checkApart refuses to copy a file on itself and a directory into itself.
func checkApart(ctx context.Context, c sigma.Namespace, from, to string) error {
	if abs, err := c.AbsPath(ctx, from); err == nil {
		from = abs
	}
	at := to
	if dir, err := c.AbsPath(ctx, path.Dir(to)); err == nil {
		at = path.Join(dir, path.Base(to))
	}
	switch {
	case at == from:
		return &sigma.Error{Op: "sigma.cp", Path: to, Kind: sigma.KindInvalid, Msg: "is the file that is to be copied"}
	case strings.HasPrefix(at, strings.TrimSuffix(from, "/")+"/"):
		return &sigma.Error{Op: "sigma.cp", Path: to, Kind: sigma.KindInvalid,
			Msg: "lies in the directory that is to be copied, " + from}
	}
	return nil
}

func (a *app) put(ctx context.Context, args []string, o moving) error {
	typed, from := args[len(args)-1], args[:len(args)-1]
	o.verb, o.done, o.skips = "put", "stored", "symbolic links and devices"
	to, err := cli.PlainPath(typed)
	if err != nil {
		return err
	}
	for _, name := range from {
		if name == "-" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return files.HostError(err)
		}
		st := files.HostStat(info)
		if st.ID.Kind == sigma.KindPipe {
			return &sigma.Error{Op: "sigma.put", Path: name, Kind: sigma.KindInvalid,
				Msg:  "is neither a file nor a directory",
				Hint: "store what can be read from it with: sigma put - PATH < " + name}
		}
		if err := o.refuse(name, st, "store all of it with: sigma put -r "+name+" "+typed); err != nil {
			return err
		}
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if err := checkBucket(ctx, c, to); err != nil {
		return err
	}
	isDir, err := isDirectory(ctx, c, to)
	switch {
	case err != nil:
		return err
	case len(from) > 1 && !isDir:
		return &sigma.Error{Op: "sigma.put", Path: to, Kind: sigma.KindNotDir,
			Msg: "is not a directory, and there are several files to store", Hint: "make it with: sigma mkdir -p " + to}
	}
	p := &files.Copy{To: files.OfRealm(c)}
	for _, name := range from {
		host, in, st, err := a.hostSource(name)
		if err != nil {
			return err
		}
		defer host.Close()
		at := to
		if o.into(typed, isDir, st) {
			if name == "-" {
				return cli.UsageError(nil, "write for example: sigma put - "+path.Join(to, "NAME"),
					"standard input needs a whole path")
			}
			abs, err := filepath.Abs(name) // "." and ".." have names too
			if err != nil {
				abs = name
			}
			at = path.Join(to, filepath.Base(abs))
		}
		if err := p.Add(ctx, host, in, st, at); err != nil {
			return err
		}
	}
	return a.carryOut(ctx, p, o, from)
}

// hostTree is what put reads.
type hostTree interface {
	files.Tree
	Close() error
}

// stdin is a tree of one file.
type stdin struct {
	files.Tree
	in io.Reader
}

func (s stdin) Source(context.Context, string) (*files.Source, error) {
	return &files.Source{Reader: s.in, Perm: 0o644}, nil
}

func (s stdin) Close() error { return nil }

// hostSource gives the directory of this host in which what was named is, and its name there.
func (a *app) hostSource(name string) (host hostTree, in string, st sigma.Stat, err error) {
	if name == "-" {
		return stdin{in: a.In}, "", st, nil
	}
	root, err := filepath.EvalSymlinks(name) // what the user named is meant, also through a link
	if err != nil {
		return nil, "", st, files.HostError(err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, "", st, files.HostError(err)
	}
	if st = files.HostStat(info); st.ID.Kind != sigma.KindDir {
		root, in = filepath.Split(root)
	}
	host, err = files.OpenHost(filepath.Clean(root))
	return host, in, st, err
}

func (a *app) get(ctx context.Context, from []string, typed string, o moving) error {
	o.verb, o.done, o.skips = "get", "fetched", "links and files without content"
	if typed == "" {
		return cli.UsageError(nil, "write . for this directory", "the local name is empty")
	}
	c, from, err := a.connectFor(ctx, from)
	if err != nil {
		return err
	}
	realm := files.OfRealm(c)
	if typed == "-" {
		for _, f := range from {
			if err := realm.Content(ctx, f, term.Raw(a.Out)); err != nil {
				return err
			}
		}
		return nil
	}
	local, err := os.Stat(typed)
	isDir := err == nil && local.IsDir()
	if len(from) > 1 {
		if !isDir && (err == nil || !strings.HasSuffix(typed, "/")) {
			return &sigma.Error{Op: "sigma.get", Path: typed, Kind: sigma.KindNotDir,
				Msg:  "is not a directory on this machine, and there are several files to fetch",
				Hint: "make it, or write a / after its name"}
		}
		o.below = true
	}
	base, p := typed, &files.Copy{To: (*files.Host)(nil)}
	for _, f := range from {
		st, err := c.Stat(ctx, f)
		if err == nil {
			err = o.refuse(f, st, "fetch all of it with: sigma get -r "+f)
		}
		if err != nil {
			return err
		}
		at := ""
		if o.into(typed, isDir, st) {
			at = path.Base(f)
		} else if !isDir {
			base, at = filepath.Dir(typed), filepath.Base(typed)
		}
		if err := p.Add(ctx, realm, f, st, strings.TrimPrefix(at, "/")); err != nil {
			return err
		}
	}
	if len(from) > 1 || p.Dirs() > 0 {
		if err := os.MkdirAll(base, 0o755); err != nil {
			return files.HostError(err)
		}
	}
	host, err := files.OpenHost(base)
	if err != nil {
		return err
	}
	defer host.Close()
	p.To = host
	return a.carryOut(ctx, p, o, from)
}

// carryOut copies what was planned, shows how far it is, and says what was done.
func (a *app) carryOut(ctx context.Context, p *files.Copy, o moving, from []string) error {
	start, title := time.Now(), fmt.Sprintf("%s %d files", o.verb, p.Files())
	if p.Files() == 1 {
		title = o.verb + " " + path.Base(from[0])
	}
	bar := a.ProgressBytes(title, p.Bytes)
	err := p.Run(ctx, bar)
	bar.Done()
	if p.Skipped > 0 {
		a.Remark("skipped %d %s", p.Skipped, o.skips)
	}
	done, bytes := p.Done()
	if err != nil {
		if done > 0 {
			a.Remark("%d of %d files were %s", done, p.Files(), o.done)
		}
		return err
	}
	took := time.Since(start)
	switch {
	case a.JSON:
		return a.PrintJSON(MovedJSON{done, bytes, p.Skipped, took.Seconds()})
	case p.Dirs() > 0: // more than they named
		rate := sigma.Bytes(float64(bytes) / max(took.Seconds(), 1e-6))
		a.Remark("%s %s, %v in %v (%v/s)", o.done, cli.Count(done, "file"), sigma.Bytes(bytes),
			took.Round(time.Millisecond), rate)
	}
	return nil
}

// MovedJSON is what put, get and cp print with --json.
type MovedJSON struct {
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"`
}

// checkBucket says how to make the bucket of a path if it is missing.
func checkBucket(ctx context.Context, c sigma.Namespace, p string) error {
	names, _ := sigma.ParsePath(p)
	if len(names) < 2 || "/"+names[0] != cli.BucketsDir {
		return nil
	}
	bucket := sigma.JoinPath(names[:2]...)
	_, err := c.Stat(ctx, bucket)
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if _, err := c.Stat(ctx, cli.BucketsDir); err != nil {
		return err
	}
	if len(names) == 2 {
		return &sigma.Error{Op: "sigma.checkBucket", Path: p, Kind: sigma.KindNotFound,
			Msg:  fmt.Sprintf("there is no bucket %q", names[1]),
			Hint: "make it with: sigma mkdir " + bucket + "; files are stored in buckets: " + bucket + "/NAME"}
	}
	return &sigma.Error{Op: "sigma.checkBucket", Path: p, Kind: sigma.KindNotFound,
		Msg: fmt.Sprintf("there is no bucket %q", names[1]), Hint: "make it with: sigma mkdir " + bucket}
}
