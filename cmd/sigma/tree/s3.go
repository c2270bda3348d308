package tree

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/stores"
	"sigmaos.dev/sigma"
)

// s3Scheme begins the names of objects and buckets, as in S3's own tools.
const s3Scheme = "s3://"

func newS3Command(a *app) *cobra.Command {
	cmd := cli.Parent("s3", "Work with buckets and objects, and say where they are kept",
		`Work with the buckets and objects of the realm by the names that S3's tools use:
s3://BUCKET/KEY is the file /s3/BUCKET/KEY of the realm's tree, and all that "sigma ls",
"cp", "rm" and other commands can do with files they do with objects too.

Objects are on the disk of the first machine, or in a store of S3's kind that you have:
"sigma s3 store" says which.`, newS3BucketCommand(a), newS3LsCommand(a), newS3CpCommand(a), newS3RmCommand(a), stores.Command(a.App))
	cmd.Example = `  sudo sigma s3 bucket create photos
  sudo sigma s3 cp -r ./summer s3://photos/
  sudo sigma s3 ls s3://photos/summer
  sudo sigma s3 cp 's3://photos/summer/*.jpg' ./back/`
	return cmd
}

// s3Path is the path in the realm's tree of s3://BUCKET/KEY, BUCKET/KEY, or such a path itself.
func s3Path(word string) (string, error) {
	rest, ok := strings.CutPrefix(word, s3Scheme)
	if !ok && (word == cli.BucketsDir || strings.HasPrefix(word, cli.BucketsDir+"/")) {
		return word, nil
	}
	if strings.HasPrefix(rest, "/") || !ok && strings.Contains(rest, "://") {
		return "", cli.UsageError(nil, "write "+s3Scheme+"BUCKET/KEY", "%.200q names no object", word)
	}
	return cli.BucketsDir + "/" + rest, nil
}

func s3Paths(words []string) ([]string, error) {
	out := make([]string, len(words))
	for i, w := range words {
		p, err := s3Path(w)
		if err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

func newS3LsCommand(a *app) *cobra.Command {
	var o lsOptions
	cmd := &cobra.Command{
		Use:   "ls [-l] [-R] [s3://BUCKET[/KEY]...]",
		Short: "List buckets, or what is in them",
		Long: `List the buckets of the realm or, where some are named, the objects and directories in
them. With -l also sizes and times; -R lists directories below too. Patterns are expanded:
quote them.`,
		Example: `  sudo sigma s3 ls
  sudo sigma s3 ls -l s3://photos/summer
  sudo sigma s3 ls --json 's3://photos/*/a*.jpg'`,
		Args: cli.Between(0, -1),
	}
	a.Reading(cmd, func(ctx context.Context, args []string, age *sigma.Age) error {
		paths, err := s3Paths(args)
		if err != nil {
			return err
		}
		if len(paths) == 0 {
			paths = []string{cli.BucketsDir}
		}
		return a.ls(ctx, paths, o, age)
	})
	cmd.Flags().BoolVarP(&o.long, "long", "l", false, "print details")
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "list directories below too")
	return cmd
}

func newS3CpCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "cp [-r] FROM... TO",
		Short: "Copy objects from and to this host, and between buckets",
		Long: `Copy objects: s3://BUCKET/KEY is the realm's, anything else is a file of this host, and
"-" is standard input or output. What is copied goes below TO with its name if TO is a
directory or ends with /. With -r, copy directories with all that is in them. An object
appears when all of it is there; what was there under the same name is replaced then.
Patterns are expanded: quote them.`,
		Example: `  sudo sigma s3 cp a.jpg s3://photos/summer/
  sudo sigma s3 cp 's3://photos/summer/*.jpg' ./back/
  sudo sigma s3 cp -r s3://photos/summer s3://archive/
  pg_dump shop | sudo sigma s3 cp - s3://archive/shop.sql`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			words, err := s3Words(args)
			if err != nil {
				return err
			}
			return a.cp(cmd.Context(), words, moving{recursive: recursive, below: true})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also directories")
	return cmd
}

// s3Words turns what S3's tools would understand into what cp does.
func s3Words(args []string) ([]string, error) {
	out := make([]string, len(args))
	for i, w := range args {
		switch {
		case strings.HasPrefix(w, s3Scheme):
			p, err := s3Path(w)
			if err != nil {
				return nil, err
			}
			out[i] = p
		case w == "-" || strings.HasPrefix(w, hostPrefix):
			out[i] = w
		default:
			out[i] = hostPrefix + w
		}
	}
	return out, nil
}

func newS3RmCommand(a *app) *cobra.Command {
	var recursive, force bool
	cmd := &cobra.Command{
		Use:   "rm [-r] [-f] s3://BUCKET/KEY...",
		Short: "Remove objects",
		Long: `Remove objects; with -r also directories with all that is in them. With -f it is no
failure if there is no such object. Patterns are expanded: quote them. Buckets are removed
with "sigma s3 bucket rm".`,
		Example: `  sudo sigma s3 rm s3://photos/summer/a.jpg
  sudo sigma s3 rm -r 's3://photos/20*'`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			paths, err := s3Paths(args)
			if err != nil {
				return err
			}
			for _, p := range paths {
				if clean := path.Clean(p); path.Dir(clean) == cli.BucketsDir {
					return cli.UsageError(nil,
						"remove the bucket with all that is in it: sigma s3 bucket rm -r "+path.Base(clean),
						"%s names a bucket, no object", s3Scheme+path.Base(clean))
				}
			}
			return a.rm(cmd.Context(), paths, recursive, force)
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also directories")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "no failure if there is no such object")
	return cmd
}

func newS3BucketCommand(a *app) *cobra.Command {
	cmd := cli.Parent("bucket", "Make, list and remove buckets",
		`Make, list and remove buckets of the realm. A name is 1 to 63 of a-z, 0-9 and -,
beginning and ending with a letter or digit; other realms may use the same.`)
	cmd.Example = `  sudo sigma s3 bucket create photos
  sudo sigma s3 bucket ls`
	recursive := false
	rm := &cobra.Command{
		Use:     "rm [-r] NAME...",
		Short:   "Remove buckets",
		Long:    `Remove buckets of the realm: those that are empty or, with -r, with all that is in them.`,
		Example: `  sudo sigma s3 bucket rm -r photos`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.s3BucketRm(cmd.Context(), args, recursive) },
	}
	rm.Flags().BoolVarP(&recursive, "recursive", "r", false, "with all that is in them")
	cmd.AddCommand(&cobra.Command{
		Use:     "create NAME...",
		Short:   "Make buckets",
		Long:    `Make buckets in the realm.`,
		Example: `  sudo sigma s3 bucket create photos archive`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.s3BucketCreate(cmd.Context(), args) },
	}, &cobra.Command{
		Use:     "ls",
		Short:   "List the buckets of the realm",
		Long:    `List the buckets of the realm.`,
		Example: `  sudo sigma s3 bucket ls --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ls(cmd.Context(), []string{cli.BucketsDir}, lsOptions{}, nil)
		},
	}, rm)
	return cmd
}

// bucketPath is the directory of a bucket that is named alone.
func bucketPath(word string) (string, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(word, s3Scheme), "/")
	if name == "" || strings.Contains(name, "/") {
		return "", cli.UsageError(nil, "write for example photos or s3://photos", "%.100q is no name of a bucket", word)
	}
	return cli.BucketsDir + "/" + name, nil
}

func (a *app) s3BucketCreate(ctx context.Context, words []string) error {
	return a.eachBucket(ctx, words, func(c sigma.Namespace, p string) error {
		err := c.Mkdir(ctx, p, 0o755)
		if err != nil && sigma.KindOf(err) == sigma.KindExists {
			return &sigma.Error{Op: "sigma.s3BucketCreate", Kind: sigma.KindExists,
				Msg:  fmt.Sprintf("there is a bucket %q already", path.Base(p)),
				Hint: "list buckets with: sigma s3 bucket ls"}
		}
		return err
	})
}

func (a *app) s3BucketRm(ctx context.Context, words []string, recursive bool) error {
	return a.eachBucket(ctx, words, func(c sigma.Namespace, p string) error {
		remove := c.Remove
		if recursive {
			remove = c.RemoveAll
		}
		_, err := c.Lstat(ctx, p)
		if err == nil {
			err = remove(ctx, p)
		}
		switch kind := sigma.KindOf(err); {
		case err == nil:
			return nil
		case kind == sigma.KindNotFound:
			return &sigma.Error{Op: "sigma.s3BucketRm", Kind: kind, Msg: fmt.Sprintf("there is no bucket %q",
				path.Base(p)), Hint: "list buckets with: sigma s3 bucket ls"}
		case kind == sigma.KindNotEmpty:
			return &sigma.Error{Op: "sigma.s3BucketRm", Kind: kind, Msg: fmt.Sprintf("the bucket %q has objects",
				path.Base(p)), Hint: "remove it with all that is in it: sigma s3 bucket rm -r " + path.Base(p)}
		}
		return err
	})
}

// eachBucket does something with buckets, in their order, and prints the names of those with which
// it was done.
func (a *app) eachBucket(ctx context.Context, words []string, do func(c sigma.Namespace, p string) error) error {
	paths := make([]string, len(words))
	for i, w := range words {
		p, err := bucketPath(w)
		if err != nil {
			return err
		}
		paths[i] = p
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := do(c, p); err != nil {
			return err
		}
		fmt.Fprintln(a.Out, a.Shown(path.Base(p)))
	}
	return nil
}
