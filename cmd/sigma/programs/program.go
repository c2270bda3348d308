// Package programs finds the program that a word of the command line means, on this host or in the
// realm, checks it, and stores one of this host in the realm.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/sigma"
)

// A PROGRAM on the command line is a local file or a realm path: with a slash but not in front it
// is local; with a slash in front it is a realm path if there is such a file, else local; a bare
// word is a local file if there is one, else a program in /bin.

// Local opens the local file that word names, or gives nil if word cannot mean one or (for
// words that may also mean a realm path) there is none.
func Local(word string) (*os.File, error) {
	mayBeRemote := strings.HasPrefix(word, "/") || !strings.Contains(word, "/")
	f, err := os.OpenFile(word, os.O_RDONLY|syscall.O_NONBLOCK,
		0) // so that a named pipe does not make us wait for a writer
	if err == nil {
		st, err := f.Stat()
		if err == nil && st.IsDir() && mayBeRemote {
			f.Close()
			return nil, nil
		}
		return f, err
	}
	switch {
	case mayBeRemote && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) ||
		errors.Is(err, syscall.ENOTDIR)):
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, cli.WithCode(cli.ExitNoProgram, noProgram(word, "there is no such file"))
	case errors.Is(err, fs.ErrPermission):
		return nil, cli.WithCode(cli.ExitNoExec, &sigma.Error{Op: "sigma.localFile", Path: word,
			Kind: sigma.KindPermission,
			Msg:  "may not be read", Hint: "run as root, or: chmod a+r " + word})
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return nil, cli.WithCode(cli.ExitNoProgram, &sigma.Error{Op: "sigma.localFile", Path: word, Kind: sigma.KindOf(err),
		Msg: "cannot be opened", Err: err})
}

func noProgram(word, msg string) error {
	return &sigma.Error{Op: "sigma.run", Path: word, Kind: sigma.KindNotFound, Msg: msg,
		Hint: "give the path of a static executable, such as ./hello, or the name of one in the realm: sigma ls " +
			cli.BinDir}
}

// Check says why a local file cannot run as a proc.
func Check(f *os.File) error {
	bad := func(msg, hint string) error {
		return cli.WithCode(cli.ExitNoExec, &sigma.Error{Op: "sigma.checkProgram", Path: f.Name(),
			Kind: sigma.KindNoExec,
			Msg:  msg, Hint: hint})
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		return cli.WithCode(cli.ExitRun, sigma.Wrap("sigma.checkProgram", f.Name(), err))
	case st.IsDir():
		return bad("is a directory", "give the path of an executable file")
	case !st.Mode().IsRegular():
		return bad("is not a regular file", "give the path of an executable file")
	case st.Mode()&0o111 == 0:
		return bad("is not executable", "if it is a program: chmod +x "+f.Name())
	case st.Size() == 0:
		return bad("is empty", "")
	}
	err = binfs.Check(f, st.Size())
	var e *sigma.Error
	if errors.As(err, &e) && e.Kind == sigma.KindNoExec {
		return bad(e.Msg, e.Hint)
	}
	return cli.WithCode(cli.ExitRun, err)
}

// Find gives the realm path of the program that word names, and puts a local file there
// first. local is what Local gave for word.
func Find(ctx context.Context, a *cli.App, c sigma.Namespace, word string, local *os.File) (string, error) {
	if strings.HasPrefix(word, "/") {
		remote, err := cli.CleanPath(word)
		if err != nil {
			return "", cli.WithCode(cli.ExitNoProgram, err)
		}
		if st, err := c.Stat(ctx, remote); err == nil && st.ID.Kind != sigma.KindDir {
			return remote, nil
		} else if err == nil && local == nil {
			return "", cli.WithCode(cli.ExitNoExec, &sigma.Error{Op: "sigma.findProgram", Path: remote,
				Kind: sigma.KindNoExec,
				Msg:  "is a directory", Hint: "give the path of a program"})
		} else if err != nil && sigma.KindOf(err) != sigma.KindNotFound && sigma.KindOf(err) != sigma.KindNotDir {
			return "", cli.WithCode(cli.ExitRun, err)
		}
	}
	if local != nil {
		if err := Check(local); err != nil {
			return "", err
		}
		remote, err := Put(ctx, a, c, local)
		return remote, cli.WithCode(cli.ExitRun, err)
	}
	if !strings.HasPrefix(word, "/") {
		if err := sigma.CheckName(word); err != nil {
			return "", cli.WithCode(cli.ExitNoProgram, err)
		}
		remote := path.Join(cli.BinDir, word)
		if _, err := c.Stat(ctx, remote); err == nil {
			return remote, nil
		} else if sigma.KindOf(err) != sigma.KindNotFound {
			return "", cli.WithCode(cli.ExitRun, err)
		}
		return "", cli.WithCode(cli.ExitNoProgram,
			noProgram(word, "there is no such file here and no such program in the realm's "+cli.BinDir))
	}
	return "", cli.WithCode(cli.ExitNoProgram, noProgram(word,
		"there is no such file in the realm and none on this machine"))
}

// Path is where a local program is stored in a realm: under a name that has its content's
// hash in it, so that the same program is stored once.
func Path(f *os.File) (remote string, size int64, err error) {
	h := sha256.New()
	if size, err = io.Copy(h, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return "", 0, sigma.Wrap("sigma.Path", f.Name(), err)
	}
	base := programName(f)
	return path.Join(cli.BinDir, base+"-"+hex.EncodeToString(h.Sum(nil))[:12]), size, nil
}

func programName(f *os.File) string {
	base := filepath.Base(f.Name())
	return base[:min(len(base), 200)]
}

// Put stores a local program in the realm, if it is not there.
func Put(ctx context.Context, a *cli.App, c sigma.Namespace, f *os.File) (string, error) {
	remote, size, err := Path(f)
	if err != nil {
		return "", err
	}
	st, err := c.Stat(ctx, remote)
	if err == nil && st.Size == uint64(size) {
		return remote, nil
	}
	if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return "", err
	}
	p := a.ProgressBytes("storing "+programName(f), size)
	defer p.Done()
	return remote, files.OfRealm(c).Store(ctx, remote, &files.Source{Reader: io.NewSectionReader(f, 0, size),
		Perm: 0o755}, p)
}

// Beside opens a program that lies beside this one.
func Beside(name string) (*os.File, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(self), name)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sigma.Error{Op: "sigma.Beside", Path: path, Kind: sigma.KindNotFound,
			Msg: "the program " + name + " is missing beside sigma", Hint: "build it with: make build"}
	}
	return f, err
}
